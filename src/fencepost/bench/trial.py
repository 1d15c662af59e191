"""One drain of a freshly filled table, by one process or several, measured from outside."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

from fencepost.bench import contender, tables
from fencepost.bench.contender import BATCH, Assignment, Drained
from fencepost.bench.tables import Load, Meter
from fencepost.bench.tally import Tally
from fencepost.errors import FencepostError

BARE_MODULE, SHIPPED_MODULE = "fencepost.bench.bare", "fencepost.bench.shipped"


@dataclass(frozen=True, slots=True)
class Run:
    """One drain, measured."""

    contender: str
    messages: int
    seconds: float
    cpu_seconds: float
    wal_bytes: int
    statements: int
    updates: int
    hot_updates: int
    dead_tuples: int

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    def per_message(self, figure: str) -> float:
        """Return one of the counts, divided by the messages."""
        return float(getattr(self, figure)) / self.messages


@dataclass(frozen=True, slots=True)
class Trial:
    """What is drained by whom.

    Args:
        name: what the figures are shown under.
        module: the contender's.
        kind, batch, settings: see `Assignment`.
        workers: how many processes start at once.
        keys: over how many ordering keys the messages are spread.
        payload_bytes: of each message.
        destination: its URL, where the contender publishes to one.
    """

    name: str
    module: str = SHIPPED_MODULE
    kind: str = ""
    batch: int = BATCH
    workers: int = 1
    keys: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    payload_bytes: int = tables.PAYLOAD_BYTES
    destination: str = field(default="", repr=False)


def measured(url: str, trial: Trial, messages: int) -> Run:
    """Fill the table, have it drained, and return what that took.

    Raises:
        FencepostError: a contender failed, or they did not drain everything.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        tables.empty(connection)
        tables.add(connection, Load(messages, trial.keys, payload_bytes=trial.payload_bytes))
        connection.execute("ANALYZE outbox")
        meter = Meter(connection)
        drained = drain(url, trial, messages)
        counted = meter.read()
    done = sum(each.messages for each in drained)
    if done != messages:
        raise FencepostError(f"{trial.name} finalized {done} of {messages} messages")
    return Run(
        trial.name,
        messages,
        max(each.seconds for each in drained),
        sum(each.cpu_seconds for each in drained),
        counted.wal_bytes,
        counted.statements,
        counted.updates,
        counted.hot_updates,
        counted.dead_tuples,
    )


def drain(url: str, trial: Trial, messages: int) -> Sequence[Drained]:
    """Have what is there drained, by all workers at once."""
    assignment = Assignment(url, messages, trial.batch, trial.kind, trial.settings, destination=trial.destination)
    if trial.workers == 1:
        return [contender.run(trial.module, assignment)]
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as directory:
        path = Path(directory) / "tally"
        Tally.create(path)
        workers = [replace(assignment, tally=str(path), slot=slot) for slot in range(trial.workers)]
        return contender.run_together(trial.module, workers)
