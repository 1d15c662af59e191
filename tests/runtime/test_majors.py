"""The dispatcher's own SQL on every major version that is supported."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import psycopg

from fencepost import Delivery, Message, Outbox, Retryable, Route
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


async def test_keys_queues_and_batches_on_each_major_version(database: str) -> None:
    numbers: list[int | None] = []

    class Publisher:
        async def publish_batch(
            self, messages: Sequence[Message], deliveries: Sequence[Delivery]
        ) -> list[Exception | None]:
            if any(
                delivery.attempt == 1 and message.event_type == "flaky"
                for message, delivery in zip(messages, deliveries, strict=True)
            ):
                raise Retryable("not yet")
            numbers.extend(message.key_sequence for message in messages if message.queue == "counted")
            return [None] * len(messages)

    with psycopg.connect(database) as conn:
        Outbox().migrate(conn)
    with Box(database) as box:
        box.outbox.set_queue(box.conn, "counted", "ann", sequenced=True, weight=3, concurrency=5)
        (dead_id,) = box.enqueue(1, event_type="nobody", ordering_key="dead")
        box.enqueue(30, event_type="e", ordering_key="dead")
        box.enqueue(1, event_type="flaky", queue="counted", ordering_key="k")
        box.enqueue(40, event_type="e", queue="counted", ordering_key="k")
        publisher = Publisher()
        async with running(box.dispatcher([Route("e", publisher), Route("flaky", publisher)], batch=10)):
            await until(lambda: box.statuses() == {"done": 41, "dead": 1, "blocked": 30})
            with box.conn.transaction():
                box.outbox.skip_dead(box.conn, [dead_id], "ann")
            await until(lambda: box.statuses() == {"done": 72})
        assert numbers == list(range(1, 42))
