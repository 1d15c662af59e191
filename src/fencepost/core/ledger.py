"""The ledger of attempts: how each one ended, and why there was another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from fencepost.core.outcome import Action, Dead, Done, Expand, Release, Reschedule
from fencepost.core.states import Event


class Kind(StrEnum):
    """What an attempt was made at."""

    MESSAGE = "message"
    JOB = "job"


class AttemptResult(StrEnum):
    """How an attempt ended."""

    DELIVERED = "delivered"
    """The destination acknowledged it."""
    VERIFIED = "verified"
    """The destination had it from an earlier attempt; this one published nothing."""
    EXPANDED = "expanded"
    """Replaced by a message for each of its destinations."""
    COMPLETED = "completed"
    """The handler of the job returned."""
    OUT_OF_TURN = "out_of_turn"
    """Published, and given back, as an earlier message of its key was open again."""
    FAILED = "failed"
    """It did not arrive, as its publisher says; or nothing was published, as a verify failed."""
    REFUSED = "refused"
    """It can never arrive."""
    UNKNOWN = "unknown"
    """No answer in time, or cut off: it may have arrived."""
    UNCLEAR = "unclear"
    """Nobody could tell whether an earlier attempt arrived; this one published nothing."""
    DEFERRED = "deferred"
    """Put off, with nothing published."""
    RELEASED = "released"
    """Given back before it began."""
    LOST = "lost"
    """No end was ever written: its worker crashed, froze or was cut off. It may have arrived."""


class Cause(StrEnum):
    """Why there was another attempt, and with it the cause of a duplicate."""

    LEASE_LOST = "lease_lost"
    """The worker of the earlier one lived, but its lease had ended, and the message was taken over."""
    WORKER_LOST = "worker_lost"
    """The worker of the earlier one crashed, froze or was cut off."""
    NO_ANSWER = "no_answer"
    """The earlier one had no answer in time, or was cut off in flight at the end of a shutdown."""
    OUT_OF_TURN = "out_of_turn"
    """The earlier one was published before an earlier message of its key."""
    OPERATOR_RETRY = "operator_retry"
    """A person put it back, knowing that the outcome of the earlier one was not known, or that it had failed."""
    FAILED = "failed"
    """The earlier one failed. (Where its publisher gave up waiting by itself, it may have arrived even so.)"""
    DEFERRED = "deferred"
    RELEASED = "released"
    BY_HAND = "by_hand"
    """The earlier one stands as the last: somebody has changed the row behind fencepost's back."""


CAUSE_TEXTS: dict[Cause, str] = {
    Cause.LEASE_LOST: "the lease was lost while its worker lived, and somebody else took over",
    Cause.WORKER_LOST: "the worker crashed, froze or was cut off",
    Cause.NO_ANSWER: "no answer came in time, or it was cut off at a shutdown",
    Cause.OUT_OF_TURN: "it was published before an earlier message of its key",
    Cause.OPERATOR_RETRY: "an operator's retry",
    Cause.FAILED: "it failed",
    Cause.DEFERRED: "it was deferred",
    Cause.RELEASED: "it was given back unstarted",
    Cause.BY_HAND: "the row was changed by hand",
}

MAY_HAVE_ARRIVED = frozenset(
    {
        *(AttemptResult.DELIVERED, AttemptResult.COMPLETED, AttemptResult.OUT_OF_TURN),
        *(AttemptResult.UNKNOWN, AttemptResult.LOST),
    }
)


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt to write down; ``token``: of a message its fencing token, of a job its fence, as text."""

    row_id: int
    token: str
    queue: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one, written by whoever made it; ``lease_lost``: the row was no longer its own by then."""

    row_id: int
    token: str
    worker: str
    result: AttemptResult
    error: str | None = None
    lease_lost: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt as it stands in the ledger.

    Args:
        result: None while it is under way.
        ended_at: None while it is under way, and where it is lost.
        cause: why it was made although there was one before; None for the first that was written down.
        is_repeat: whether an earlier one may have arrived, so that this one may be a duplicate.
    """

    kind: Kind
    row_id: int
    token: str
    queue: str
    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    result: AttemptResult | None
    lease_lost: bool
    error: str | None
    cause: Cause | None = None
    is_repeat: bool = False

    @property
    def may_have_arrived(self) -> bool:
        return self.result in MAY_HAVE_ARRIVED


def result_of(action: Action) -> tuple[AttemptResult, str | None]:
    """Return how an attempt ends that ends with this action, and its error."""
    match action:
        case Done(verified=verified):
            return (AttemptResult.VERIFIED if verified else AttemptResult.DELIVERED), None
        case Expand():
            return AttemptResult.EXPANDED, None
        case Release():
            return AttemptResult.RELEASED, None
        case Reschedule(error=error) | Dead(error=error):  # pragma: no branch - mypy sees that these are all
            return _result_of_failure(action), error


_RESULTS = {
    Event.DEFER: AttemptResult.DEFERRED,
    Event.PERMANENT_FAILURE: AttemptResult.REFUSED,
    Event.UNROUTABLE: AttemptResult.REFUSED,
    Event.UNKNOWN_OUTCOME: AttemptResult.UNCLEAR,
}


def _result_of_failure(action: Reschedule | Dead) -> AttemptResult:
    return AttemptResult.UNKNOWN if action.is_unknown else _RESULTS.get(action.event, AttemptResult.FAILED)


def with_causes(attempts: Sequence[Attempt], retries: Iterable[datetime]) -> list[Attempt]:
    """Say of each attempt at one row why it was made.

    Args:
        attempts: in their order.
        retries: when an operator put the row back.
    """
    told = list(retries)
    return [_with_cause(each, attempts[:place], told) for place, each in enumerate(attempts)]


def _with_cause(attempt: Attempt, earlier: Sequence[Attempt], retries: Sequence[datetime]) -> Attempt:
    if not earlier:
        return attempt
    # (One that has no end although another one began: whatever its row says, nobody is at it any more.)
    arrived = [each for each in earlier if each.may_have_arrived or each.result is None]
    failed = [each for each in earlier if each.result is AttemptResult.FAILED]
    # What counts is the last one that may have arrived: one that was given back since explains no duplicate.
    before = (arrived or failed or earlier)[-1]
    by_operator = any(before.started_at <= at <= attempt.started_at for at in retries)
    cause = Cause.OPERATOR_RETRY if by_operator else _cause_after(before)
    return replace(attempt, cause=cause, is_repeat=bool(arrived))


_CAUSES = {
    AttemptResult.LOST: Cause.WORKER_LOST,
    AttemptResult.UNKNOWN: Cause.NO_ANSWER,
    AttemptResult.UNCLEAR: Cause.BY_HAND,
    AttemptResult.OUT_OF_TURN: Cause.OUT_OF_TURN,
    AttemptResult.FAILED: Cause.FAILED,
    AttemptResult.DEFERRED: Cause.DEFERRED,
    AttemptResult.RELEASED: Cause.RELEASED,
}


def _cause_after(before: Attempt) -> Cause:
    if before.lease_lost:
        return Cause.LEASE_LOST
    result = AttemptResult.LOST if before.result is None else before.result
    return _CAUSES.get(result, Cause.BY_HAND)
