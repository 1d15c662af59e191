"""What the fields of lines may hold: rules that meet something else would fail, or judge wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LARGEST = 2**63
"""Numbers from here on are none of a clock, a row or a campaign."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a field must be, and how that is told."""

    told: str
    fits: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _or_null(shape: Shape) -> Shape:
    return Shape(f"{shape.told} or null", lambda value: value is None or shape.fits(value))


def _list_of(shape: Shape) -> Shape:
    return Shape(
        f"a list, each {shape.told}", lambda value: isinstance(value, list) and all(map(shape.fits, value))
    )


def _one_of(*names: str) -> Shape:
    return Shape(f"one of {', '.join(names)}", lambda value: _is_text(value) and value in names)


def _is_row_of_a_sample(value: Any) -> bool:
    return isinstance(value, dict) and {"application", "state", "in_state_for"} <= value.keys()


def _are_lanes(value: Any) -> bool:
    limits = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(each, dict) and all(map(LIMIT.fits, each.values())) for each in limits)


TEXT = Shape("a text", _is_text)
WHOLE = Shape("a whole number", _is_whole)
LIMIT = Shape("a whole number of at least 1", lambda value: _is_whole(value) and value >= 1)
SECONDS = Shape("a number of at least 0", lambda value: _is_number(value) and value >= 0)
SOME_SECONDS = Shape("a number above 0", lambda value: _is_number(value) and value > 0)
ROW = Shape("an object", lambda value: isinstance(value, dict))
ENDS = ("cancelled", "unexpected")

OF_ALL: Mapping[str, Shape] = {
    **dict.fromkeys(("process", "message_id", "job_id", "queue", "payload", "headers", "owner", "of"), TEXT),
    **dict.fromkeys(("consumer", "task", "recovery", "fault", "target", "action", "why"), TEXT),
    **dict.fromkeys(("ordering_key", "lane", "bad"), _or_null(TEXT)),
    **dict.fromkeys(("at", "id", "token", "fence", "attempt", "database", "since", "asked", "pid"), WHOLE),
    **dict.fromkeys(("number", "code"), _or_null(WHOLE)),
    **dict.fromkeys(("seconds", "poll", "grace", "client_timeout", "lease_margin", "tolerance"), SECONDS),
    **dict.fromkeys(("lease", "publish_timeout"), SOME_SECONDS),
    **dict.fromkeys(("max_attempts", "purge_limit"), LIMIT),
    **dict.fromkeys(("message_ids", "job_ids"), _list_of(TEXT)),
    **dict.fromkeys(("before", "after"), _or_null(ROW)),
    "retention": _or_null(SECONDS),
    "lanes": _or_null(Shape("an object of objects of limits", _are_lanes)),
    "queues": _or_null(_list_of(TEXT)),
    "fault_id": Shape("a text or a whole number", lambda value: _is_text(value) or _is_whole(value)),
    "acknowledged": _or_null(Shape("true or false", lambda value: isinstance(value, bool))),
    "open": _list_of(Shape("an object with application, state and in_state_for", _is_row_of_a_sample)),
    "locked": _or_null(_list_of(WHOLE)),
    "operation": _one_of("mark_done", "reschedule", "mark_dead", "release", "heartbeat"),
    "reported": _one_of("lost", "held"),
}
"""By the name of the field, whatever the kind of its line."""

OF_KIND: Mapping[tuple[str, str], Shape] = {
    ("phase", "name"): _one_of("faults_begin", "faults_end", "drained", "end"),
    ("start", "role"): _one_of(
        *("worker", "job_worker", "producer", "receiver", "consumer", "operator", "sampler"),
    ),
    ("start", "owner"): _or_null(TEXT),
    ("fault", "message_id"): _or_null(TEXT),
    ("accepted", "queue"): _or_null(TEXT),
    ("accepted", "headers"): _or_null(TEXT),
    ("inbox", "token"): _or_null(WHOLE),
    ("inbox", "result"): _one_of("accepted", "repeat", "stale", "rolled_back", "unknown"),
    ("publish_end", "result"): _one_of("delivered", "retryable", "defer", "permanent", *ENDS),
    ("job_end", "result"): _one_of("completed", "failed", "deferred", "permanent", *ENDS),
}
"""Where a kind has its own."""


def misfits(kind: str, fields: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the fields of a line; of those that nobody knows, nothing."""
    found = []
    for name, value in fields.items():
        shape = OF_KIND.get((kind, name), OF_ALL.get(name))
        if shape is not None and not shape.fits(value):
            found.append(f"{name} is {_shortened(value)}, not {shape.told}")
    return found


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
