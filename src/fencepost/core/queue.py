"""What all workers of a queue agree on; it stands in the database, so that a change reaches every one of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """One queue's own settings; None where each worker's setting holds.

    Args:
        queue: its name.
        paused: nothing of it is claimed, by anybody.
        weight: its share of a worker that is busy, 1 to 1,000, against the other queues' weights.
        concurrency: publishes of it in flight at once in each worker, 1 to 10,000.
        lease, publish_timeout, max_attempts, backoff_base, backoff_cap: as in `DispatcherSettings`.
        sequenced: the messages of each ordering key are numbered without a gap as they are enqueued.
    """

    queue: str
    paused: bool = False
    weight: int = 1
    concurrency: int | None = None
    lease: timedelta | None = None
    publish_timeout: timedelta | None = None
    max_attempts: int | None = None
    backoff_base: timedelta | None = None
    backoff_cap: timedelta | None = None
    sequenced: bool = False
