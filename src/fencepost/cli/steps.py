"""Long work in small steps: each committed by itself, smaller where the database's time limits end one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fencepost.cli.output import Output
from fencepost.core.error_text import describe
from fencepost.core.operation import Rows, Statement
from fencepost.drivers import driver_for

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

TRIES = 12
"""Failures in a row after which it gives up: a step of 1,000 has then become one of 1, and that fails as well."""


@dataclass(slots=True)
class Steps:
    """Makes steps of ``limit`` rows on one connection, and goes on whatever stands in their way for a while."""

    connection: psycopg.Connection[Any]
    out: Output
    limit: int
    _failures: int = 0

    def make(self, step: Callable[[Callable[[Statement], Rows], int], T]) -> T | None:
        """Make a step and commit it; return what it returned, None where it failed and a smaller one is next."""
        try:
            result = step(driver_for(self.connection).execute, self.limit)
            self.connection.commit()
        except Exception as error:  # noqa: BLE001 - raised again unless a smaller step may help
            self._make_smaller(error)
            self.connection.rollback()
            return None
        self._failures = 0
        return result

    def _make_smaller(self, error: Exception) -> None:
        """Halve the step where it took too long for the database's limits; give up where that does not help."""
        # Here and not above: without libpq psycopg cannot be imported, and `--help` has to work.
        from fencepost.drivers.faults import Fault, fault_of

        self._failures += 1
        if fault_of(error) is not Fault.TRANSIENT or self._failures > TRIES:
            raise error
        self.limit = max(1, self.limit // 2)
        self.out.note(f"{describe(error)}: going on in steps of {self.limit}")


@contextmanager
def progress(out: Output, text: str, *, is_silent: bool) -> Iterator[Callable[[int], None]]:
    """Yield what counts on: a bar on a terminal, nothing elsewhere. How many there are is not known before."""
    console = out.console(stderr=True)
    if is_silent or not console.is_terminal:
        yield lambda count: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(text), BarColumn(), TextColumn("{task.completed}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("steps", total=None)
        yield lambda count: bar.advance(task, count)
