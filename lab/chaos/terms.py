"""What a run goes by: the times of leases, and what every process of it is told."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

SLOW = float(os.environ.get("CHAOS_SLOW") or 1)
"""For a machine that has more to do: everything takes as many times as long."""

MESSAGES = os.environ.get("CHAOS_MESSAGES") or "mixed"
"""The one event type that producers make, such as ``slow``; or ``mixed``, which is mostly plain."""

LEASE = 2.0 * SLOW
PUBLISH_TIMEOUT = 1.0 * SLOW
BROKER_TIMEOUT = 0.8 * SLOW
"""Of the publisher itself, below that of the dispatcher."""
POLL = 0.1 * SLOW
GRACE = 1.5 * SLOW
MAX_ATTEMPTS = 5
BACKOFF_BASE, BACKOFF_CAP = 0.02, 0.3
BREAKER_CAP = 0.5
JOB_LEASE = 1.0 * SLOW
RETENTION = 3.0 * SLOW
"""Of done messages: short, so that also a short run purges some that others still ask for."""
PURGE_LIMIT = 50

QUEUES = ("default", "mail")
CONSUMER = "billing"
STREAM, SUBJECTS = "LAB", "lab.>"
ROOT = Path(__file__).parents[2]

CALM = "calm"
"""A file in the run's folder: while it is there, nothing misbehaves by itself."""


def block(seconds_long: float) -> None:
    """Keep this thread for so long; not by `time.sleep`, which libfaketime breaks (it refuses some instants)."""
    threading.Event().wait(seconds_long)


def seconds(value: float) -> timedelta:
    """Return a length of time."""
    return timedelta(seconds=value)


@dataclass(frozen=True)
class Told:
    """What a process of the run is told, by its environment.

    Args:
        folder: of the history.
        process: its name in the history, which no other process has.
        owner: the name of its place, which its successors have as well.
        seed: of its own chance.
        store: the database, through its proxy.
        broker: NATS, through its proxy.
        batches: publish whole batches.
    """

    folder: Path
    process: str
    owner: str
    seed: str
    store: str
    broker: str
    batches: bool = False
    extra: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the variables."""
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
        return {
            **os.environ,
            "PYTHONPATH": path,
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_PROCESS": self.process,
            "CHAOS_OWNER": self.owner,
            "CHAOS_SEED": self.seed,
            "CHAOS_BROKER": self.broker,
            "CHAOS_BATCHES": "1" if self.batches else "",
            "FENCEPOST_STORE": self.store,
            **self.extra,
        }

    @classmethod
    def from_environment(cls) -> Told:
        """Read them, in the process itself."""
        told = os.environ
        return cls(
            folder=Path(told["CHAOS_FOLDER"]),
            process=told["CHAOS_PROCESS"],
            owner=told["CHAOS_OWNER"],
            seed=told["CHAOS_SEED"],
            store=told["FENCEPOST_STORE"],
            broker=told["CHAOS_BROKER"],
            batches=bool(told["CHAOS_BATCHES"]),
        )

    @property
    def is_calm(self) -> bool:
        """Whether nothing shall misbehave by itself any more."""
        return (self.folder / CALM).exists()
