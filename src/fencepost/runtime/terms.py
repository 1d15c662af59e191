"""What holds for a queue in this worker: the queue's own settings where it has some, else the worker's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from fencepost.config import DispatcherSettings
from fencepost.core.backoff import Backoff
from fencepost.core.lease import timing_problems
from fencepost.core.outcome import RetryPolicy
from fencepost.core.queue import QueueSettings

USUAL_CONCURRENCY, MOST_CONCURRENCY = 100, 10_000
USUAL_BATCHES = 4
"""In flight at once, or the next batch would begin only after the answers to the one before."""

FEWEST_FAILURES = 2
"""To reach a destination, that are taken for an outage, however few attempts a message has."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings in force for one queue.

    ``problems`` says what cannot work; a queue that has some is not served.
    """

    queue: str
    paused: bool
    weight: int
    concurrency: int
    lease: timedelta
    beat_every: float
    """Seconds between heartbeats."""
    publish_timeout: float
    """Seconds."""
    policy: RetryPolicy
    breaker_failures: int
    breaker_cap: timedelta
    rate: float | None = None
    """Messages a second, over all dispatchers."""
    ledger: bool = False
    """Every attempt is written down, in the transaction of its claim."""
    problems: tuple[str, ...] = ()

    @property
    def outage_after(self) -> int:
        """Failures to reach the destination that open the breaker: before the only message is out of attempts."""
        return min(self.breaker_failures, max(FEWEST_FAILURES, self.policy.max_attempts))


def terms_of(settings: DispatcherSettings, own: QueueSettings, *, takes_batches: bool = False) -> Terms:
    """Put a queue's own settings over the worker's.

    Args:
        settings: the worker's.
        own: the queue's.
        takes_batches: all that is in the queue goes to publishers that take batches.
    """
    lease = own.lease or settings.lease
    publish_timeout = own.publish_timeout or settings.publish_timeout
    base = own.backoff_base or settings.backoff_base
    cap = own.backoff_cap or settings.backoff_cap
    beat_every = lease / 3 if settings.heartbeat is None else min(settings.heartbeat, lease / 3)
    problems = timing_problems(lease=lease, heartbeat=beat_every, publish_timeout=publish_timeout)
    if base > cap:
        problems.append(("backoff_base", f"{base.total_seconds():g} s is above backoff_cap"))
    return Terms(
        queue=own.queue,
        paused=own.paused,
        weight=own.weight,
        concurrency=own.concurrency or settings.concurrency or _usual_concurrency(settings.batch, takes_batches),
        lease=lease,
        beat_every=beat_every.total_seconds(),
        publish_timeout=publish_timeout.total_seconds(),
        policy=RetryPolicy(own.max_attempts or settings.max_attempts, Backoff(base, cap), settings.max_age),
        breaker_failures=(settings.breaker_failures if own.breaker_failures is None else own.breaker_failures),
        breaker_cap=own.breaker_cap or settings.breaker_cap,
        rate=own.rate,
        ledger=own.ledger,
        problems=tuple(f"{setting}: {text}" for setting, text in problems),
    )


def _usual_concurrency(batch: int, takes_batches: bool) -> int:
    whole_batches = USUAL_BATCHES * batch if takes_batches else 0
    return min(max(USUAL_CONCURRENCY, whole_batches), MOST_CONCURRENCY)
