"""``purge``: delete done messages past their retention."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.options import STORE, as_duration, json_option, takes_settings
from fencepost.cli.output import Output
from fencepost.cli.steps import Steps, progress
from fencepost.config import Settings
from fencepost.core.operation import Operation, Rows, Statement, run
from fencepost.store import ledger, upkeep
from fencepost.store.catalog import Catalog


@click.command()
@takes_settings(*STORE, "ledger_retention")
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    callback=as_duration,
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
    messages = _Walk(functools.partial(upkeep.purge, catalog, older_than=older_than), catalog, out)
    walks = [messages]
    if (kept := settings.dispatcher.ledger_retention) is not None:
        walks.append(_Walk(functools.partial(ledger.purge, catalog, older_than=kept), catalog, out))
    with (
        invocation.connected(settings, "purge") as connection,
        progress(out, "deleting done messages", is_silent=as_json) as advance,
    ):
        for walk in walks:
            for deleted in walk.steps(Steps(connection, out, step)):
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
    """One purge from the oldest row on."""

    purge: Callable[..., Operation[upkeep.Purged]]
    catalog: Catalog
    out: Output
    deleted: int = 0
    _after: int | None = 0
    _has_told: bool = False

    def steps(self, steps: Steps) -> Iterator[int]:
        """Delete step by step; yield how many each deleted."""
        while self._after is not None:
            purged = steps.make(self._step)
            if purged is None:
                continue
            self._after = purged.after
            self.deleted += purged.deleted
            yield purged.deleted
            if purged.gave_way:
                time.sleep(random.uniform(0.05, 0.3))  # noqa: S311 - jitter, not a secret

    def _step(self, execute: Callable[[Statement], Rows], limit: int) -> upkeep.Purged:
        assert self._after is not None  # noqa: S101 - for the type checker
        purged = run(self.purge(limit=limit, after=self._after), execute)
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
