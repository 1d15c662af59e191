"""How a publish ended, and what that does to the row: the one place where retry, defer and dead are decided."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from fencepost.core.backoff import Backoff
from fencepost.core.states import Event, Outcome, Recovery

# --- how a publish ended -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination acknowledged this very message."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A retryable failure. ``delay`` is the receiver's own wish (Retry-After); ``unexpected``: unclassified."""

    error: str
    delay: timedelta | None = None
    unexpected: bool = False


@dataclass(frozen=True, slots=True)
class TimedOut:
    """No answer within the publish time-out: retryable, but the outcome is unknown."""

    error: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """A business precondition is missing."""

    delay: timedelta
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A permanent failure; ``unroutable`` where no route matched."""

    error: str
    unroutable: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Cut off in flight, since the grace time of a shutdown ended: the outcome is unknown."""

    error: str = "cut off in flight: the worker's grace time ended"


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Never started: given back."""


Result = Delivered | Failed | TimedOut | Deferred | Refused | Cancelled | Unstarted

# --- what it does to the row ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """Finalize as delivered."""

    event: Event = Event.DELIVERED


@dataclass(frozen=True, slots=True)
class Reschedule:
    """Back to pending, due after ``delay``."""

    event: Event
    delay: timedelta
    error: str
    refund_attempt: bool


@dataclass(frozen=True, slots=True)
class Dead:
    """To the dead messages, for a person."""

    event: Event
    outcome: Outcome
    error: str


@dataclass(frozen=True, slots=True)
class Release:
    """Back to pending as if it had never been claimed."""

    event: Event = Event.RELEASE


Action = Done | Reschedule | Dead | Release

DONE = Done()
"""The one that nearly every message ends with."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits that turn a failure into a retry or an end.

    Args:
        max_attempts: publish starts before a message is dead (``exhausted``).
        backoff: the jittered delay between attempts.
        max_age: counted from ``created_at``; past it a failed or deferred message is dead (``expired``).
    """

    max_attempts: int = 12
    backoff: Backoff = Backoff()
    max_age: timedelta | None = None


def decide(
    result: Result,
    policy: RetryPolicy,
    *,
    attempt: int,
    recovery: Recovery,
    age: timedelta,
    fraction: float,
) -> Action:
    """Return what a publish result does to its row.

    Args:
        attempt: the number of this attempt, counted at claim (1 is the first).
        recovery: the message's policy for an unknown outcome.
        age: time since ``created_at``.
        fraction: a uniform draw from [0, 1) for the jitter.
    """
    match result:
        case Delivered():
            return DONE
        case Unstarted():
            return Release()
        case Refused(error=error, unroutable=True):
            return Dead(Event.UNROUTABLE, Outcome.UNROUTABLE, error)
        case Refused(error=error):
            return Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, error)
        case TimedOut(error=error) | Cancelled(error=error) if recovery is Recovery.MANUAL:
            return Dead(Event.UNKNOWN_OUTCOME, Outcome.UNKNOWN_OUTCOME, error)
        case Cancelled(error=error):
            # Due at once: nothing is known to be wrong with the message or its destination.
            return Reschedule(Event.CANCELLED, timedelta(0), error, refund_attempt=False)
        case Deferred(delay=delay, reason=reason):
            return _defer(delay, reason, policy, age)
        case TimedOut(error=error):
            return _retry(error, None, policy, attempt, age, fraction)
        case Failed(error=error, delay=wish):
            return _retry(error, wish, policy, attempt, age, fraction)


def _is_too_old(policy: RetryPolicy, age: timedelta) -> bool:
    return policy.max_age is not None and age >= policy.max_age


def _defer(delay: timedelta, reason: str, policy: RetryPolicy, age: timedelta) -> Action:
    if _is_too_old(policy, age):
        return Dead(Event.EXPIRE, Outcome.EXPIRED, reason)
    return Reschedule(Event.DEFER, max(delay, timedelta(0)), reason, refund_attempt=True)


def _retry(
    error: str,
    wish: timedelta | None,
    policy: RetryPolicy,
    attempt: int,
    age: timedelta,
    fraction: float,
) -> Action:
    if attempt >= policy.max_attempts:
        return Dead(Event.EXHAUST, Outcome.EXHAUSTED, error)
    if _is_too_old(policy, age):
        return Dead(Event.EXPIRE, Outcome.EXPIRED, error)
    delay = policy.backoff.delay(attempt, fraction)
    if wish is not None:
        # A receiver may slow us down, never speed us up, and never park a message beyond the cap.
        delay = max(delay, min(wish, policy.backoff.cap))
    return Reschedule(Event.RETRY, delay, error, refund_attempt=False)
