"""The demonstrations: what happens to committed events when workers are killed or frozen, on real processes.

`run_demo` plays a shop, a receiver and three dispatchers, and judges the outcome from the tables. `run_race`
shows the well-known broken dispatcher beside the right one. The parts are imported when they are needed,
since every process of the demonstration imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run_demo", "run_race"]


def run_demo(address: str, *, console: Console, as_json: bool = False) -> int:
    """Let a shop commit orders while one worker is killed and one is frozen, then judge from the tables.

    Args:
        address: a store's address; empty for a PostgreSQL server of the demonstration's own, which is gone
            afterwards. It works in a schema of its own, which it drops and makes anew.
        console: where to show it: a live table on a terminal, lines anywhere else.
        as_json: print nothing but one JSON object with the verdict.

    Returns:
        0 when every line of the verdict is true, else 1.

    Raises:
        FencepostError: the store cannot be used, or a process of the demonstration failed.
    """
    from fencepost.demo.story import run

    return run(address, console=console, as_json=as_json)


def run_race(address: str, *, console: Console, as_json: bool = False) -> int:
    """Show two workers publishing one message twice after ``FOR UPDATE SKIP LOCKED``, and the lease that stops it.

    The arguments, the result and the errors are those of `run_demo`.
    """
    from fencepost.demo.race import run

    return run(address, console=console, as_json=as_json)
