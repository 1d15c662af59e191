"""How far long work is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fencepost.cli.output import Output

PROGRESS_SECONDS = 5.0
"""How often progress is told where there is no terminal to show a bar on."""


@contextmanager
def progress(out: Output, what: str, total: int, as_json: bool) -> Iterator[Callable[[int], None]]:
    """Yield what counts on: a bar on a terminal, a line now and then on standard error elsewhere."""
    console = out.console(stderr=True)
    if as_json or not console.is_terminal:
        yield _lines(out, what.partition(" ")[0], total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda count: shown.advance(task, count)


def _lines(out: Output, verb: str, total: int) -> Callable[[int], None]:
    done, next_line = 0, time.monotonic() + PROGRESS_SECONDS

    def tell(count: int) -> None:
        nonlocal done, next_line
        done += count
        if time.monotonic() >= next_line:
            out.note(f"{verb}: {done} of {max(total, done)}")
            next_line = time.monotonic() + PROGRESS_SECONDS

    return tell
