"""How a publish ended, and what that does to the row: the one place where retry, defer and dead are decided."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from fencepost.core.backoff import Backoff
from fencepost.core.states import Event, Outcome, Recovery

# --- what is known of an earlier attempt -----------------------------------------------------------------


class Verdict(StrEnum):
    """What a ``verify`` says about the earlier attempts at a message or job, under ``recovery="verify"``."""

    DONE = "done"
    """One of them arrived: it must not be repeated."""
    NOT_DONE = "not_done"
    """None of them arrived, nor will: it may be repeated."""
    UNKNOWN = "unknown"
    """Nobody can tell: it is left to a person."""


# --- how a publish ended -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination acknowledged this very message."""


@dataclass(frozen=True, slots=True)
class Verified(Delivered):
    """The destination had it from an earlier attempt; nothing was published by this one."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """An earlier attempt may have arrived, and nobody can tell."""

    error: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A retryable failure.

    Args:
        error: why.
        delay: the receiver's own wish (Retry-After).
        unexpected: an unclassified exception.
        unavailable: the destination as a whole takes nothing just now.
        unverified: nothing was published, as nobody could say whether an earlier attempt had arrived.
    """

    error: str
    delay: timedelta | None = None
    unexpected: bool = False
    unavailable: bool = False
    unverified: bool = False


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
class Disabled:
    """The destination says that it will never take anything again: its queue is paused, the message kept."""

    error: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """It is for a destination that only other workers know: given back to them, however old it is."""

    error: str


@dataclass(frozen=True, slots=True)
class Routed:
    """Not published here: it goes to these destinations, each of which gets a message of its own."""

    destinations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Cut off in flight, since the grace time of a shutdown ended: the outcome is unknown."""

    error: str = "cut off in flight: the worker's grace time ended"


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Never started: given back."""


Published = Delivered | Failed | TimedOut | Deferred | Refused | Disabled | Cancelled
Result = Published | Unclear | Foreign | Routed | Unstarted

# --- what it does to the row ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """Finalize as delivered; ``verified``: by an earlier attempt."""

    event: Event = Event.DELIVERED
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Reschedule:
    """Back to pending, due after ``delay``; ``is_unknown``: it may have arrived all the same."""

    event: Event
    delay: timedelta
    error: str
    refund_attempt: bool
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Expand:
    """Replace it by a message for each destination, and close it."""

    destinations: tuple[str, ...]
    event: Event = Event.EXPAND


@dataclass(frozen=True, slots=True)
class Dead:
    """To the dead messages, for a person; ``is_unknown``: it may have arrived all the same."""

    event: Event
    outcome: Outcome
    error: str
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Back to pending as if it had never been claimed."""

    event: Event = Event.RELEASE


Action = Done | Expand | Reschedule | Dead | Release

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
    is_outage: bool = False,
) -> Action:
    """Return what a publish result does to its row.

    Args:
        attempt: the number of this attempt, counted at claim (1 is the first).
        recovery: the message's policy for an unknown outcome.
        age: time since ``created_at``.
        fraction: a uniform draw from [0, 1) for the jitter.
        is_outage: the breaker of its queue is open, so that a retryable failure is not the message's own: its
            attempt is given back, and it cannot use them up. (But for the first one of a message to be verified.)
    """
    match result:
        case Verified():
            return Done(verified=True)
        case Delivered():
            return DONE
        case Unstarted():
            return Release()
        case Refused():
            return _refuse(result)
        case Unclear(error=error):
            return _unknown(error)
        case TimedOut(error=error) | Cancelled(error=error) if recovery is Recovery.MANUAL:
            return _unknown(error)
        case Cancelled(error=error):
            if recovery is Recovery.VERIFY and attempt >= policy.max_attempts:
                return _unknown(error)  # there is no further attempt that could ask
            # Due at once: nothing is known to be wrong with the message or its destination.
            return Reschedule(Event.CANCELLED, timedelta(0), error, refund_attempt=False, is_unknown=True)
        case Deferred(delay=delay, reason=reason):
            return _defer(delay, reason, policy, age)
        case Routed(destinations=destinations):
            return Expand(destinations)
        case Foreign(error=error) | Disabled(error=error):
            # Not a failure of this message: it waits for others, or for a person.
            return Reschedule(Event.DEFER, timedelta(0), error, refund_attempt=True)
        case TimedOut() | Failed():
            if recovery is Recovery.VERIFY and attempt == 1:
                is_outage = (
                    False  # an attempt that may have arrived must be seen by the next one, or it would not ask
                )
            ended = _ended(result, policy, attempt, age, is_outage)
            if ended is None:
                return _retry(result, policy, attempt, fraction, is_outage)
            return _unknown(ended.error) if _is_left_open(result, recovery) else ended


def _unknown(error: str) -> Dead:
    return Dead(Event.UNKNOWN_OUTCOME, Outcome.UNKNOWN_OUTCOME, error, is_unknown=True)


def _is_left_open(failure: Failed | TimedOut, recovery: Recovery) -> bool:
    """Tell whether a message that ends here may have arrived, and was to be verified: that is for a person."""
    if isinstance(failure, Failed):
        return failure.unverified
    return recovery is Recovery.VERIFY


def _is_too_old(policy: RetryPolicy, age: timedelta) -> bool:
    return policy.max_age is not None and age >= policy.max_age


def _defer(delay: timedelta, reason: str, policy: RetryPolicy, age: timedelta) -> Action:
    if _is_too_old(policy, age):
        return Dead(Event.EXPIRE, Outcome.EXPIRED, reason)
    return Reschedule(Event.DEFER, max(delay, timedelta(0)), reason, refund_attempt=True)


def _refuse(refused: Refused) -> Action:
    if refused.unroutable:
        return Dead(Event.UNROUTABLE, Outcome.UNROUTABLE, refused.error)
    return Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, refused.error)


def _ended(
    failure: Failed | TimedOut, policy: RetryPolicy, attempt: int, age: timedelta, is_outage: bool
) -> Dead | None:
    is_unknown = isinstance(failure, TimedOut)
    if attempt >= policy.max_attempts and not is_outage:
        return Dead(Event.EXHAUST, Outcome.EXHAUSTED, failure.error, is_unknown)
    if _is_too_old(policy, age):
        return Dead(Event.EXPIRE, Outcome.EXPIRED, failure.error, is_unknown)
    return None


def _retry(
    failure: Failed | TimedOut, policy: RetryPolicy, attempt: int, fraction: float, is_outage: bool
) -> Reschedule:
    delay = policy.backoff.delay(attempt, fraction)
    if isinstance(failure, Failed) and failure.delay is not None:
        # A receiver may slow us down, never speed us up, and never park a message beyond the cap.
        delay = max(delay, min(failure.delay, policy.backoff.cap))
    event = Event.OUTAGE if is_outage else Event.RETRY
    return Reschedule(event, delay, failure.error, is_outage, isinstance(failure, TimedOut))
