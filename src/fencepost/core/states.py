"""The life of an outbox message: its states, the events that move it, and the one table of what is allowed.

The SQL files, the property tests and the diagram in the README are all held to this table. ``BLOCKED`` is a
pending message that is parked behind an earlier open message of its ordering key.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What ``status`` may hold."""

    PENDING = "pending"
    PROCESSING = "processing"
    BLOCKED = "blocked"
    DONE = "done"
    DEAD = "dead"


OPEN_STATES = frozenset({State.PENDING, State.PROCESSING, State.BLOCKED})


class Outcome(StrEnum):
    """What ``outcome`` may hold once a message is closed; it is null while the message is open."""

    DELIVERED = "delivered"
    SKIPPED = "skipped"
    EXPANDED = "expanded"
    """Replaced by a message for each of its destinations."""
    PERMANENT = "permanent"
    EXHAUSTED = "exhausted"
    CRASHED = "crashed"
    EXPIRED = "expired"
    UNROUTABLE = "unroutable"
    UNKNOWN_OUTCOME = "unknown_outcome"


DONE_OUTCOMES = frozenset({Outcome.DELIVERED, Outcome.SKIPPED, Outcome.EXPANDED})
DEAD_OUTCOMES = frozenset(Outcome) - DONE_OUTCOMES


class Recovery(StrEnum):
    """What may happen to a message whose publish may or may not have reached its destination."""

    AUTO = "auto"
    """It is repeated."""
    MANUAL = "manual"
    """It is left to a person."""
    VERIFY = "verify"
    """The receiver is asked before it is repeated."""


class Event(StrEnum):
    """What can happen to a message."""

    CLAIM = "claim"
    CLAIM_OVER_LIMIT = "claim over the limit"
    RECLAIM = "reclaim"
    PARK = "park"
    PROMOTE = "promote"
    REAP_CRASHED = "reap crashed"
    REAP_UNKNOWN = "reap unknown"
    DELIVERED = "delivered"
    EXPAND = "expand"
    RETRY = "retry"
    OUTAGE = "outage"
    EXHAUST = "exhaust"
    DEFER = "defer"
    EXPIRE = "expire"
    PERMANENT_FAILURE = "permanent failure"
    UNROUTABLE = "unroutable"
    UNKNOWN_OUTCOME = "unknown outcome"
    RELEASE = "release"
    CANCELLED = "cancelled in flight"
    OPERATOR_RETRY = "operator retry"
    OPERATOR_SKIP = "operator skip"
    OPERATOR_CANCEL = "operator cancel"
    OPERATOR_FAIL = "operator fail"


class Attempts(StrEnum):
    """What an event does to ``attempts``."""

    KEPT = "kept"
    CHARGED = "+1"
    REFUNDED = "-1, never below 0"
    RESET = "0"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table.

    ``raises_token`` tells a write that takes the row from whoever holds it (claim, reap, operator) from the
    holder's own finalize, which is allowed only where the token still matches (``fenced``).
    """

    to: State
    attempts: Attempts
    fenced: bool = False
    raises_token: bool = False
    outcome: Outcome | None = None


_P, _X, _B = State.PENDING, State.PROCESSING, State.BLOCKED
_D, _DEAD = State.DONE, State.DEAD

TRANSITIONS: dict[tuple[State, Event], Transition] = {
    (_P, Event.CLAIM): Transition(_X, Attempts.CHARGED, raises_token=True),
    (_P, Event.CLAIM_OVER_LIMIT): Transition(_DEAD, Attempts.KEPT, raises_token=True, outcome=Outcome.EXHAUSTED),
    (_P, Event.PARK): Transition(_B, Attempts.KEPT),
    (_B, Event.PROMOTE): Transition(_P, Attempts.KEPT),
    (_B, Event.CLAIM): Transition(_X, Attempts.CHARGED, raises_token=True),
    (_B, Event.CLAIM_OVER_LIMIT): Transition(_DEAD, Attempts.KEPT, raises_token=True, outcome=Outcome.EXHAUSTED),
    (_X, Event.RECLAIM): Transition(_X, Attempts.CHARGED, raises_token=True),
    (_X, Event.REAP_CRASHED): Transition(_DEAD, Attempts.KEPT, raises_token=True, outcome=Outcome.CRASHED),
    (_X, Event.REAP_UNKNOWN): Transition(_DEAD, Attempts.KEPT, raises_token=True, outcome=Outcome.UNKNOWN_OUTCOME),
    (_X, Event.DELIVERED): Transition(_D, Attempts.KEPT, fenced=True, outcome=Outcome.DELIVERED),
    (_X, Event.EXPAND): Transition(_D, Attempts.KEPT, fenced=True, outcome=Outcome.EXPANDED),
    (_X, Event.RETRY): Transition(_P, Attempts.KEPT, fenced=True),
    (_X, Event.OUTAGE): Transition(_P, Attempts.REFUNDED, fenced=True),
    (_X, Event.EXHAUST): Transition(_DEAD, Attempts.KEPT, fenced=True, outcome=Outcome.EXHAUSTED),
    (_X, Event.DEFER): Transition(_P, Attempts.REFUNDED, fenced=True),
    (_X, Event.EXPIRE): Transition(_DEAD, Attempts.KEPT, fenced=True, outcome=Outcome.EXPIRED),
    (_X, Event.PERMANENT_FAILURE): Transition(_DEAD, Attempts.KEPT, fenced=True, outcome=Outcome.PERMANENT),
    (_X, Event.UNROUTABLE): Transition(_DEAD, Attempts.KEPT, fenced=True, outcome=Outcome.UNROUTABLE),
    (_X, Event.UNKNOWN_OUTCOME): Transition(_DEAD, Attempts.KEPT, fenced=True, outcome=Outcome.UNKNOWN_OUTCOME),
    (_X, Event.RELEASE): Transition(_P, Attempts.REFUNDED, fenced=True),
    (_X, Event.CANCELLED): Transition(_P, Attempts.KEPT, fenced=True),
    (_DEAD, Event.OPERATOR_RETRY): Transition(_P, Attempts.RESET, raises_token=True),
    (_DEAD, Event.OPERATOR_SKIP): Transition(_D, Attempts.KEPT, raises_token=True, outcome=Outcome.SKIPPED),
}


def transition(state: State, event: Event) -> Transition:
    """Look up what ``event`` does to a message in ``state``.

    Raises:
        KeyError: the event is not allowed in that state.
    """
    return TRANSITIONS[state, event]


def attempts_after(attempts: int, change: Attempts) -> int:
    """Apply an attempts rule to a count; a refund never goes below 0 (an operator may have reset the row)."""
    match change:
        case Attempts.KEPT:
            return attempts
        case Attempts.CHARGED:
            return attempts + 1
        case Attempts.REFUNDED:
            return max(0, attempts - 1)
        case Attempts.RESET:  # pragma: no branch - mypy sees that these are all
            return 0
