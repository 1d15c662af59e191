"""What several statements know of messages: which are open, which is the head of a key, what a claim returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fencepost.core.operation import Row
from lab.fake_store.rows import OUTBOX, QUEUE, OutboxRow
from lab.fake_store.turn import Params, Turn


def open_rows(turn: Turn, queue: str) -> list[OutboxRow]:
    """Return the rows of a queue that are not done, by id."""
    return [row for row in turn.rows(OUTBOX) if row.is_open and row.queue == queue]


def of_key(rows: Iterable[OutboxRow], key: str) -> list[OutboxRow]:
    """Return those of one ordering key."""
    return [row for row in rows if row.ordering_key == key]


def heads(rows: Iterable[OutboxRow]) -> dict[tuple[str, str], OutboxRow]:
    """Return the first open row of each queue and key, of rows in the order of their ids."""
    found: dict[tuple[str, str], OutboxRow] = {}
    for row in rows:
        if row.is_open and row.ordering_key is not None:
            found.setdefault((row.queue, row.ordering_key), row)
    return found


def by_age(rows: Iterable[OutboxRow]) -> list[OutboxRow]:
    """Sort as the ready index does."""
    return sorted(rows, key=lambda row: (row.available_at, row.id))


def with_ids(turn: Turn, ids: Sequence[int]) -> list[OutboxRow]:
    """Return the rows of these ids that are there, by id."""
    return [row for row_id in sorted(set(ids)) if (row := turn.get(OUTBOX, row_id)) is not None]


def is_paused(turn: Turn, params: Params) -> bool:
    """Tell whether the statement's queue is paused, or its breaker open and this is no probe."""
    queue = turn.get(QUEUE, params["queue"])
    if queue is None:
        return False
    return queue.paused or (queue.breaker_opened_at is not None and not params["is_probe"])


def message_columns(row: OutboxRow) -> Row:
    """Return what every statement sends of a message."""
    return (
        *(row.id, row.message_id, row.queue, row.event_type, row.aggregate_type, row.aggregate_id),
        *(row.ordering_key, row.payload, row.payload_bytes, row.content_type, row.headers),
        *(row.created_at, row.key_sequence),
    )
