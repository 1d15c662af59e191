"""``purge``: delete done messages past their retention."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Output
from fencepost.cli.settings.durations import parse_duration
from fencepost.config import Settings
from fencepost.core.error_text import describe
from fencepost.core.operation import Operation, Rows, Statement, run
from fencepost.drivers import driver_for
from fencepost.store import ledger, upkeep
from fencepost.store.catalog import Catalog

if TYPE_CHECKING:
    import psycopg

_TRIES = 12
"""Failures in a row after which it gives up: a step of 1,000 has then become one of 1, and that fails as well."""


def _duration(_context: click.Context, _parameter: click.Parameter, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@takes_settings(*STORE, "ledger_retention")
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    callback=_duration,
    help="Time since they were done, such as 7d.",
)
@click.option(
    "--step", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Messages per transaction."
)
@json_option
def purge(invocation: Invocation, settings: Settings, older_than: timedelta, step: int, as_json: bool) -> int:
    """Delete done messages past a given age.

    Works in small steps beside full traffic, one purge at a time: a second one waits for its turns. Done means
    delivered, or skipped by an operator.

    Dead messages stay: only an operator's decision (`fencepost dead`) ends them.

    Attempts in the ledger that began longer ago than its own retention go as well.
    """
    catalog, out = outbox_of(settings).catalog, invocation.out
    messages = _Walk(functools.partial(upkeep.purge, catalog, older_than=older_than), catalog, step, out)
    walks = [messages]
    if (kept := settings.dispatcher.ledger_retention) is not None:
        walks.append(_Walk(functools.partial(ledger.purge, catalog, older_than=kept), catalog, step, out))
    with invocation.connected(settings, "purge") as connection, _progress(out, as_json) as advance:
        for walk in walks:
            for deleted in walk.steps(connection):
                advance(deleted)
    attempts = sum(walk.deleted for walk in walks[1:])
    if as_json:
        out.json({"deleted": messages.deleted, "attempts": attempts})
    else:
        ledgered = f", and {attempts} of the ledger's attempts" if attempts else ""
        out.line(f"deleted {messages.deleted} done {'message' if messages.deleted == 1 else 'messages'}{ledgered}")
    return exits.OK


@dataclass(slots=True)
class _Walk:
    """One purge from the oldest row on, which goes on whatever stands in its way for a while."""

    purge: Callable[..., Operation[upkeep.Purged]]
    catalog: Catalog
    limit: int
    out: Output
    deleted: int = 0
    _after: int | None = 0
    _has_told: bool = False
    _failures: int = 0

    def steps(self, connection: psycopg.Connection[Any]) -> Iterator[int]:
        """Delete step by step, each in its transaction; yield how many each deleted."""
        execute = driver_for(connection).execute
        while self._after is not None:
            try:
                purged = self._step(execute)
                connection.commit()
            except Exception as error:  # noqa: BLE001 - raised again unless a smaller step may help
                self._make_smaller(error)
                connection.rollback()
                continue
            self._failures = 0
            self._after = purged.after
            self.deleted += purged.deleted
            yield purged.deleted
            if purged.gave_way:
                time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 - jitter, not a secret

    def _step(self, execute: Callable[[Statement], Rows]) -> upkeep.Purged:
        assert self._after is not None  # noqa: S101 - for the type checker
        purged = run(self.purge(limit=self.limit, after=self._after), execute)
        if purged.gave_way and not self._has_told:
            self._tell(run(upkeep.purge_holder(self.catalog), execute))
        return purged

    def _tell(self, holder: upkeep.Holder | None) -> None:
        if holder is not None:  # else it was between two of its steps
            self._has_told = True
            self.out.note(
                f"another purge is at work (server process {holder.pid}, {holder.application or 'unnamed'}, "
                f"in a transaction for {holder.seconds} s): waiting for its turns to end"
            )

    def _make_smaller(self, error: Exception) -> None:
        """Halve the step where it took too long for the database's limits; give up where that does not help."""
        # Here and not above: without libpq psycopg cannot be imported, and `--help` has to work.
        from fencepost.drivers.faults import Fault, fault_of

        self._failures += 1
        if fault_of(error) is not Fault.TRANSIENT or self._failures > _TRIES:
            raise error
        self.limit = max(1, self.limit // 2)
        self.out.note(f"{describe(error)}: going on in steps of {self.limit}")


@contextmanager
def _progress(out: Output, as_json: bool) -> Iterator[Callable[[int], None]]:
    """Yield what counts on: a bar on a terminal, nothing elsewhere. How many there are is not known before."""
    console = out.console(stderr=True)
    if as_json or not console.is_terminal:
        yield lambda count: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("deleting done messages"),
        BarColumn(),
        TextColumn("{task.completed}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("purge", total=None)
        yield lambda count: progress.advance(task, count)
