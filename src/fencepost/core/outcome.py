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
    """Back to pending, due after ``delay``; ``is_unknown``: this attempt may have arrived all the same."""

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
    """To the dead messages, for a person; ``is_unknown``: this attempt may have arrived all the same."""

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
        case Delivered():
            return Done(verified=True) if isinstance(result, Verified) else DONE
        case Unstarted():
            return Release()
        case Refused() | Unclear():
            return _bury(result)
        case Cancelled():
            return _cut_off(result, policy, attempt, recovery)
        case Deferred(delay=delay, reason=reason):
            return _defer(delay, reason, policy, age)
        case Routed(destinations=destinations):
            return Expand(destinations)
        case Foreign(error=error) | Disabled(error=error):
            # Not a failure of this message: it waits for others, or for a person.
            return Reschedule(Event.DEFER, timedelta(0), error, refund_attempt=True)
        case TimedOut() | Failed():  # pragma: no branch - mypy sees that these are all
            if recovery is Recovery.VERIFY and attempt == 1:
                # The next one has to see that there was one that may have arrived, or it would not ask.
                is_outage = False
            ended = _ended(result, policy, attempt, recovery, age, is_outage)
            return ended or _retry(result, policy, attempt, fraction, is_outage)


def _is_too_old(policy: RetryPolicy, age: timedelta) -> bool:
    return policy.max_age is not None and age >= policy.max_age


def _defer(delay: timedelta, reason: str, policy: RetryPolicy, age: timedelta) -> Action:
    if _is_too_old(policy, age):
        return Dead(Event.EXPIRE, Outcome.EXPIRED, reason)
    return Reschedule(Event.DEFER, max(delay, timedelta(0)), reason, refund_attempt=True)


def _bury(result: Refused | Unclear) -> Dead:
    if isinstance(result, Unclear):
        return _unknown(result.error, by_this=False)
    if result.unroutable:
        return Dead(Event.UNROUTABLE, Outcome.UNROUTABLE, result.error)
    return Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, result.error)


def _unknown(error: str, *, by_this: bool = True) -> Dead:
    """End it for a person: this attempt, or an earlier one (``by_this=False``), may have arrived."""
    return Dead(Event.UNKNOWN_OUTCOME, Outcome.UNKNOWN_OUTCOME, error, is_unknown=by_this)


def _cut_off(result: Cancelled, policy: RetryPolicy, attempt: int, recovery: Recovery) -> Action:
    is_last = recovery is Recovery.VERIFY and attempt >= policy.max_attempts  # no further one could ask
    if recovery is Recovery.MANUAL or is_last:
        return _unknown(result.error)
    # Due at once: nothing is known to be wrong with the message or its destination.
    return Reschedule(Event.CANCELLED, timedelta(0), result.error, refund_attempt=False, is_unknown=True)


def _ended(
    failure: Failed | TimedOut,
    policy: RetryPolicy,
    attempt: int,
    recovery: Recovery,
    age: timedelta,
    is_outage: bool,
) -> Dead | None:
    """Return how a message ends with this failure, if it does."""
    is_unknown = isinstance(failure, TimedOut)
    if is_unknown and recovery is Recovery.MANUAL:
        return _unknown(failure.error)
    is_spent = attempt >= policy.max_attempts and not is_outage
    if not is_spent and not _is_too_old(policy, age):
        return None
    if failure.unverified if isinstance(failure, Failed) else recovery is Recovery.VERIFY:
        return _unknown(failure.error, by_this=is_unknown)  # nobody will ask any more
    event, outcome = (Event.EXHAUST, Outcome.EXHAUSTED) if is_spent else (Event.EXPIRE, Outcome.EXPIRED)
    return Dead(event, outcome, failure.error, is_unknown)


def _retry(
    failure: Failed | TimedOut, policy: RetryPolicy, attempt: int, fraction: float, is_outage: bool
) -> Reschedule:
    delay = policy.backoff.delay(attempt, fraction)
    if isinstance(failure, Failed) and failure.delay is not None:
        # A receiver may slow us down, never speed us up, and never park a message beyond the cap.
        delay = max(delay, min(failure.delay, policy.backoff.cap))
    event = Event.OUTAGE if is_outage else Event.RETRY
    return Reschedule(event, delay, failure.error, is_outage, isinstance(failure, TimedOut))
