"""What the model takes from the table of transitions: names of states and events, and what each event may do."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fencepost.core.states import TRANSITIONS, Attempts, Event, State, Transition

MODELLED = (
    Event.CLAIM,
    Event.CLAIM_OVER_LIMIT,
    Event.RECLAIM,
    Event.PARK,
    Event.PROMOTE,
    Event.REAP_CRASHED,
    Event.REAP_UNKNOWN,
    Event.DELIVERED,
    Event.RETRY,
    Event.DEFER,
    Event.RELEASE,
    Event.PERMANENT_FAILURE,
    Event.UNKNOWN_OUTCOME,
    Event.OPERATOR_RETRY,
    Event.OPERATOR_SKIP,
)
"""What happens to rows of the model, under these names."""

STANDS_FOR = {
    Event.CANCELLED: Event.RETRY,
    Event.OUTAGE: Event.DEFER,
    Event.EXPAND: Event.DELIVERED,
    Event.EXHAUST: Event.PERMANENT_FAILURE,
    Event.EXPIRE: Event.PERMANENT_FAILURE,
    Event.UNROUTABLE: Event.PERMANENT_FAILURE,
}
"""Events that do to a row just what another one does, but for the name of the outcome: that one is modelled."""

OUT_OF_SCOPE = {
    Event.OPERATOR_CANCEL: "jobs have it, messages do not",
    Event.OPERATOR_FAIL: "jobs have it, messages do not",
}
"""Events that the model leaves out, and why."""

ABSENT = "absent"
"""Not a status: the row is not committed yet."""


def name_of(event: Event) -> str:
    """Return what the model calls an event."""
    return str(event).replace(" ", "_")


STATES = (*map(str, State), ABSENT)
EVENTS = tuple(map(name_of, MODELLED))


def effect(transition: Transition) -> tuple[State, Attempts, bool, bool]:
    """Return what an event does to a row, without the name of the outcome."""
    return transition.to, transition.attempts, transition.fenced, transition.raises_token


def promela() -> str:
    """Write the names, and ``ALLOWED(before, event, after, attempts, attempts after, token is raised)``."""
    rules = [
        f"(b == {state} && e == {name_of(event)} && a == {rule.to} && r == {int(rule.raises_token)}"
        f" && {_ATTEMPTS[rule.attempts]})"
        for (state, event), rule in TRANSITIONS.items()
        if event in MODELLED
    ]
    return "\n".join(
        [
            "/* Written from fencepost.core.states. */",
            _names("state", STATES),
            _names("event", EVENTS),
            "#define ALLOWED(b, e, a, m, n, r) (" + " || \\\n    ".join(rules) + ")",
            "",
        ]
    )


_ATTEMPTS = {
    Attempts.KEPT: "n == m",
    Attempts.CHARGED: "n == m + 1",
    Attempts.REFUNDED: "n == (m > 0 -> m - 1 : 0)",
    Attempts.RESET: "n == 0",
}


def number_of(event: str) -> int:
    """Return the number that spin gives the name: the first one has the highest."""
    return len(EVENTS) - EVENTS.index(event)


def told(line: str) -> str:
    """Replace the numbers of states and events by their names."""
    line = re.sub(r"state (\d+)", lambda found: STATES[-int(found[1])], line)
    return re.sub(r"event (\d+)", lambda found: EVENTS[-int(found[1])].replace("_", " "), line)


def _names(kind: str, names: Iterable[str]) -> str:
    return f"mtype:{kind} = {{ {', '.join(names)} }}"
