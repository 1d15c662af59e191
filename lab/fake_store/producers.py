"""What producers ask: inserts, and whose dedupe key it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.core.operation import Row
from lab.fake_store.messages import with_ids
from lab.fake_store.rows import OUTBOX, OutboxRow, instant_of, micros
from lab.fake_store.turn import Params, Turn


async def _insert(turn: Turn, given: Mapping[str, Any]) -> OutboxRow | None:
    """Insert a message; return None where its dedupe key is there."""
    row_id = turn.storage.draw(OUTBOX)
    queue, dedupe_key = given["queue"], given["dedupe_key"]

    def is_same(row: OutboxRow) -> bool:
        return bool(row.dedupe_key == dedupe_key and row.queue == queue)

    if dedupe_key is not None and await turn.conflict(OUTBOX, is_same) is not None:
        return None
    given_at = given["available_at"]
    row = OutboxRow(
        id=row_id,
        **{name: given[name] for name in _AS_GIVEN},
        recovery_policy=given["recovery"],
        created_at=turn.now,
        available_at=turn.now + micros(given["delay"]) if given_at is None else instant_of(given_at),
    )
    return turn.put(OUTBOX, row)


_AS_GIVEN = (
    *("message_id", "queue", "event_type", "aggregate_type", "aggregate_id", "ordering_key", "key_sequence"),
    *("payload", "payload_bytes", "content_type", "headers", "dedupe_key", "routed"),
)


async def enqueue(turn: Turn, params: Params) -> list[Row]:
    """Answer ``enqueue``."""
    row = await _insert(turn, params)
    if row is None:
        return []
    if row.available_at <= turn.now:
        turn.notify(params["channel"])
    return [(row.id, None)]


async def enqueue_many(turn: Turn, params: Params) -> list[Row]:
    """Answer ``enqueue_many``."""
    rows: list[Row] = []
    for values in zip(*params.values(), strict=True):
        row = await _insert(turn, dict(zip(params, values, strict=True)))
        if row is not None:
            rows.append((row.id, row.message_id, row.queue, row.available_at <= turn.now))
    return rows


async def enqueue_duplicate(turn: Turn, params: Params) -> list[Row]:
    """Answer ``enqueue_duplicate``."""
    content = (params["event_type"], params["payload"], params["payload_bytes"])
    return [
        (row.id, row.message_id, (row.event_type, row.payload, row.payload_bytes) == content)
        for row in turn.rows(OUTBOX)
        if row.dedupe_key == params["dedupe_key"] and row.queue == params["queue"]
    ]


async def expand(turn: Turn, params: Params) -> list[Row]:
    """Answer ``expand``."""
    originals = {row.id: row for row in with_ids(turn, params["ids"])}
    for row_id, queue, number in zip(params["ids"], params["queues"], params["numbers"], strict=True):
        row = originals[row_id]
        turn.put(
            OUTBOX,
            OutboxRow(
                id=turn.storage.draw(OUTBOX),
                **{name: getattr(row, name) for name in _AS_GIVEN if name not in _OWN},
                queue=queue,
                key_sequence=number,
                dedupe_key=None,
                routed=True,
                recovery_policy=row.recovery_policy,
                created_at=row.created_at,
                available_at=turn.now,
            ),
        )
    return []


_OWN = ("queue", "key_sequence", "dedupe_key", "routed")
"""What a destination's message does not have from its original."""


async def notify(turn: Turn, params: Params) -> list[Row]:
    """Answer ``notify``."""
    turn.notify(params["channel"])
    return [(None,)]
