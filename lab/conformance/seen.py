"""What is compared: rows and results in one form, whichever store they come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

from fencepost.core.records import Claimed

MINUTE = 60_000_000
"""Microseconds."""


class Seen(NamedTuple):
    """A message as it stands; instants in whole minutes from now."""

    id: int
    queue: str
    key: str | None
    number: int | None
    recovery: str
    status: str
    outcome: str | None
    attempts: int
    token: int
    reclaims: int
    owner: str | None
    due_in: int | None
    """None where it is parked or dead."""
    is_due: bool
    lease_left: int | None
    is_expired: bool
    closed: int | None
    error: str | None
    routed: bool


class Look(NamedTuple):
    """All messages, by id, and their ids in the order in which they are served."""

    rows: tuple[Seen, ...]
    order: tuple[int, ...]


class Rest(NamedTuple):
    """What stands in the other tables."""

    queues: tuple[Any, ...]
    keys: tuple[Any, ...]
    inbox: tuple[Any, ...]
    numbers: tuple[Any, ...]
    fences: tuple[Any, ...]
    audit: tuple[Any, ...]


def minutes(microseconds: int) -> int:
    """Return a span in whole minutes, to the nearest."""
    return round(microseconds / MINUTE)


def plain(result: Any) -> Any:
    """Return what an operation returned, with spans in whole minutes, and without a store's own business."""
    if isinstance(result, Claimed):
        message = result.message
        return (
            *("claimed", result.id, message.message_id_text, message.queue, message.ordering_key, message.payload),
            *(message.key_sequence, result.token, result.attempt, result.max_attempts, str(result.recovery)),
            *(minutes(result.age_microseconds), result.reclaim_count, result.owner, result.routed, result.ledger),
        )
    if isinstance(result, timedelta):
        return minutes(result // timedelta(microseconds=1))
    if isinstance(result, Enum):
        return result.name
    if is_dataclass(result) and not isinstance(result, type):
        names = (each.name for each in fields(result) if each.name != "lowest")
        return {name: plain(getattr(result, name)) for name in names}
    if isinstance(result, dict):
        return {plain(key): plain(value) for key, value in result.items()}
    if isinstance(result, (set, frozenset)):
        return sorted(result)
    if isinstance(result, Iterable) and not isinstance(result, (str, bytes)):
        return [plain(each) for each in result]
    return result
