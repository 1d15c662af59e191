"""Whose turn it is: of messages that a worker may have crashed on, and of all others."""

from __future__ import annotations

from fencepost import Message
from tests.runtime.box import Box


async def test_crash_suspects_and_other_messages_take_turns(box: Box) -> None:
    """Many that kill their process, one after another, must not keep the others waiting."""
    row_ids = box.enqueue(6)
    suspects = row_ids[:3]
    box.conn.execute(
        "UPDATE outbox SET status = 'processing', attempts = 2, lease_version = 2, lease_owner = 'gone', "
        "lease_until = now() - interval '1 minute', reclaim_count = 1 WHERE id = ANY(%s)",
        [suspects],
    )
    published: list[int] = []

    async def publish(message: Message) -> None:
        published.append(message.id)

    async with box.dispatcher(publish, batch=1, concurrency=1, notify=False) as dispatcher:
        for _ in range(4):
            await dispatcher.dispatch_once()
    assert len(published) == 4
    assert len(set(published) & set(suspects)) == 2
