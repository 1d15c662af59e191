"""Whose turn it is: of messages that a worker may have crashed on, and of all others."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(("attempts", "comes_alone"), [(9, False), (10, True), (11, True)])
async def test_once_a_few_went_well_the_rest_comes_as_a_batch_where_it_has_two_attempts_to_spare(
    box: Box, attempts: int, comes_alone: bool
) -> None:
    *_, other, worn = box.enqueue(6)
    box.conn.execute(
        "UPDATE outbox SET status = 'processing', attempts = CASE id WHEN %s THEN %s ELSE 1 END,"
        " lease_version = 1, lease_owner = 'gone', lease_until = now() - interval '1 minute', reclaim_count = 0",
        [worn, attempts],
    )
    together: list[set[int]] = []

    async def publish(message: Message) -> None:
        together[-1].add(message.id)

    async with box.dispatcher(publish, max_attempts=12, notify=False) as dispatcher:
        while box.statuses() != {"done": 6}:
            together.append(set())
            await dispatcher.dispatch_once()
    batches = [each for each in together if len(each) > 1]
    assert batches == [{other, other - 1} if comes_alone else {other - 1, other, worn}]


async def test_what_crashed_again_and_again_says_nothing_of_those_that_crashed_once(box: Box) -> None:
    often, once = box.enqueue(3), box.enqueue(4)
    box.conn.execute("UPDATE outbox SET reclaim_count = 2, attempts = 2 WHERE id = ANY(%s)", [often])
    together: list[set[int]] = []

    async def publish(message: Message) -> None:
        together[-1].add(message.id)

    async with box.dispatcher(publish, notify=False, queues=["default"]) as dispatcher:
        box.conn.execute("UPDATE outbox SET available_at = now() + interval '1 h' WHERE id = ANY(%s)", [once])
        while box.statuses().get("done") != 3:
            together.append(set())
            await dispatcher.dispatch_once()
        box.conn.execute(
            "UPDATE outbox SET status = 'processing', attempts = 1, lease_version = 1, lease_owner = 'gone',"
            " lease_until = now() - interval '1 minute', available_at = now() WHERE id = ANY(%s)",
            [once],
        )
        while box.statuses() != {"done": 7}:
            together.append(set())
            await dispatcher.dispatch_once()
    assert [len(each) for each in together if each] == [1] * 7
