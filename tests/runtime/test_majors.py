"""The dispatcher's own SQL on every major version that is supported."""

from __future__ import annotations

from datetime import timedelta

import psycopg

from fencepost import Delivery, Message, Outbox, Retryable
from tests.runtime.box import Box, running, until


async def test_deliver_retry_and_reap_on_each_major_version(database: str) -> None:
    async def publish(message: Message, delivery: Delivery) -> None:
        if message.event_type == "flaky" and delivery.attempt < 3:
            raise Retryable("not yet")

    with psycopg.connect(database) as conn:
        Outbox().migrate(conn)
    with Box(database) as box:
        (manual_id,) = box.enqueue(1, recovery="manual")
        box.outbox.claim(box.conn, "gone", lease=timedelta(milliseconds=1))
        (flaky_id,) = box.enqueue(1, event_type="flaky")
        box.enqueue(200)
        async with running(box.dispatcher(publish)) as task:
            await until(lambda: box.statuses() == {"done": 201, "dead": 1})
            assert not task.done()
        assert box.row(manual_id)["outcome"] == "unknown_outcome"
        assert box.row(flaky_id)["attempts"] == 3
