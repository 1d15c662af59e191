"""How a message is shown: as a row of a list, or in full."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from fencepost.cli.output import Cell
from fencepost.core.records import DeadMessage

HEADERS = ("id", "queue", "event_type", "outcome", "attempts", "dead_at", "last_error")
_LAST_ERROR_SHOWN = 200

MAX_ID = 2**63 - 1
"""What the id column can hold."""


def summary(dead_message: DeadMessage) -> dict[str, Any]:
    """Return what a list tells of a message, in the order of `HEADERS`."""
    message = dead_message.message
    return {
        "id": message.id,
        "queue": message.queue,
        "event_type": message.event_type,
        "outcome": dead_message.outcome,
        "attempts": dead_message.attempts,
        "dead_at": dead_message.dead_at,
        "last_error": dead_message.last_error,
    }


def row(dead_message: DeadMessage, *, ages: bool) -> list[Cell]:
    """Return a row of the list; on a terminal, where room is short, with the time since it died."""
    cells: list[Cell] = list(summary(dead_message).values())
    if ages and dead_message.dead_at is not None:
        cells[HEADERS.index("dead_at")] = datetime.now(UTC) - dead_message.dead_at
    cells[-1] = shortened(dead_message.last_error)
    return cells


def details(dead_message: DeadMessage) -> dict[str, Any]:
    """Return everything there is to tell."""
    message = dead_message.message
    return {
        "id": message.id,
        "message_id": message.message_id,
        "status": dead_message.status,
        "outcome": dead_message.outcome,
        "queue": message.queue,
        "event_type": message.event_type,
        "aggregate_type": message.aggregate_type,
        "aggregate_id": message.aggregate_id,
        "ordering_key": message.ordering_key,
        "attempts": dead_message.attempts,
        "reclaim_count": dead_message.reclaim_count,
        "token": dead_message.token,
        "lease_owner": dead_message.lease_owner,
        "created_at": message.created_at,
        "dead_at": dead_message.dead_at,
        "headers": dict(message.headers),
        "content_type": message.content_type,
        **_payload(message.payload),
        "last_error": dead_message.last_error,
    }


def _payload(payload: bytes) -> dict[str, str]:
    """Return the payload as it is stored: its text, or base64 where it is not text."""
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def text_of(value: Any) -> Any:
    """Return one of the details for people."""
    if isinstance(value, dict):
        return "\n".join(f"{key}: {each}" for key, each in value.items()) or "-"
    return "-" if value is None else value


def shortened(text: str | None) -> str | None:
    """Return the beginning of an error, for a list."""
    if text is None or len(text) <= _LAST_ERROR_SHOWN:
        return text
    return f"{text[:_LAST_ERROR_SHOWN]} …"


def identity_of(text: str, noun: str = "message") -> int | UUID:
    """Return what a message, or something else, is called on the command line: its id, or its message id.

    Raises:
        click.UsageError: it is neither.
    """
    if re.fullmatch("[0-9]{1,19}", text) and 1 <= int(text) <= MAX_ID:
        return int(text)
    try:
        return UUID(text)
    except ValueError:
        raise click.UsageError(
            f"{text!r} is neither a {noun}'s id (a number) nor its {noun} id (a UUID)"
        ) from None
