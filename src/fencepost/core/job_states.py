"""The life of a job, as `fencepost.core.states` tells that of a message: the same events, and the one table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fencepost.core.states import Attempts, Event


class JobState(StrEnum):
    """What ``status`` may hold."""

    QUEUED = "queued"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"


class JobOutcome(StrEnum):
    """What ``outcome`` may hold once a job is finished; it is null while the job is open."""

    COMPLETED = "completed"
    PERMANENT = "permanent"
    EXHAUSTED = "exhausted"
    CRASHED = "crashed"
    EXPIRED = "expired"
    UNKNOWN_OUTCOME = "unknown_outcome"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """By an operator's hand."""


FAILED_OUTCOMES = frozenset(JobOutcome) - {JobOutcome.COMPLETED}


@dataclass(frozen=True, slots=True)
class JobTransition:
    """One row of the table; see `fencepost.core.states.Transition`."""

    to: JobState
    attempts: Attempts
    fenced: bool = False
    raises_token: bool = False
    outcome: JobOutcome | None = None


_Q, _X, _D, _F = JobState.QUEUED, JobState.PROCESSING, JobState.DONE, JobState.FAILED


def _to(state: JobState, attempts: Attempts, *, outcome: JobOutcome | None = None) -> JobTransition:
    return JobTransition(state, attempts, raises_token=True, outcome=outcome)


def _by_holder(state: JobState, attempts: Attempts, outcome: JobOutcome | None = None) -> JobTransition:
    return JobTransition(state, attempts, fenced=True, outcome=outcome)


JOB_TRANSITIONS: dict[tuple[JobState, Event], JobTransition] = {
    (_Q, Event.CLAIM): _to(_X, Attempts.CHARGED),
    (_Q, Event.CLAIM_OVER_LIMIT): _to(_F, Attempts.KEPT, outcome=JobOutcome.EXHAUSTED),
    (_X, Event.RECLAIM): _to(_Q, Attempts.KEPT),
    (_X, Event.REAP_CRASHED): _to(_F, Attempts.KEPT, outcome=JobOutcome.CRASHED),
    (_X, Event.REAP_UNKNOWN): _to(_F, Attempts.KEPT, outcome=JobOutcome.UNKNOWN_OUTCOME),
    (_X, Event.DELIVERED): _by_holder(_D, Attempts.KEPT, JobOutcome.COMPLETED),
    (_X, Event.RETRY): _by_holder(_Q, Attempts.KEPT),
    (_X, Event.EXHAUST): _by_holder(_F, Attempts.KEPT, JobOutcome.EXHAUSTED),
    (_X, Event.DEFER): _by_holder(_Q, Attempts.REFUNDED),
    (_X, Event.EXPIRE): _by_holder(_F, Attempts.KEPT, JobOutcome.EXPIRED),
    (_X, Event.PERMANENT_FAILURE): _by_holder(_F, Attempts.KEPT, JobOutcome.PERMANENT),
    (_X, Event.UNKNOWN_OUTCOME): _by_holder(_F, Attempts.KEPT, JobOutcome.UNKNOWN_OUTCOME),
    (_X, Event.RELEASE): _by_holder(_Q, Attempts.REFUNDED),
    # Unlike a message's: a deploy must not use up the attempts of jobs that run longer than its grace time.
    (_X, Event.CANCELLED): _by_holder(_Q, Attempts.REFUNDED),
    (_Q, Event.OPERATOR_CANCEL): _to(_F, Attempts.KEPT, outcome=JobOutcome.CANCELLED),
    (_X, Event.OPERATOR_CANCEL): _to(_F, Attempts.KEPT, outcome=JobOutcome.CANCELLED),
    (_Q, Event.OPERATOR_FAIL): _to(_F, Attempts.KEPT, outcome=JobOutcome.FAILED),
    (_X, Event.OPERATOR_FAIL): _to(_F, Attempts.KEPT, outcome=JobOutcome.FAILED),
    (_F, Event.OPERATOR_RETRY): _to(_Q, Attempts.RESET),
}
"""What may happen to a job, and what it does."""
