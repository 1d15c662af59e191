"""The inbox: the same behaviour on every kind of connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from fencepost import (
    Acceptance,
    AsyncInbox,
    AutocommitRefused,
    ConfigError,
    Inbox,
    InvalidMessage,
    MessageConflict,
    Outbox,
    SequenceGap,
    UnsupportedConnection,
)
from tests.client.adapters import Adapter, Producer
from tests.client.conftest import Table

DAY = timedelta(days=1)


class Consumer:
    """An inbox on a connection, behind one async face."""

    def __init__(self, on: Producer, inbox: Inbox | AsyncInbox) -> None:
        self.on = on
        self._inbox = inbox

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        result: Any = getattr(self._inbox, name)(self.on.conn, *args, **options)
        return await result if isinstance(self._inbox, AsyncInbox) else result

    async def accept(self, message_id: Any, **options: Any) -> Acceptance:
        found: Acceptance = await self._call("accept", message_id, **options)
        return found

    async def accept_in_sequence(self, key: str, sequence: int, **options: Any) -> Acceptance:
        found: Acceptance = await self._call("accept_in_sequence", key, sequence, **options)
        return found

    async def has_accepted(self, message_id: UUID | str) -> bool:
        found: bool = await self._call("has_accepted", message_id)
        return found

    async def last_in_sequence(self, key: str) -> int | None:
        found: int | None = await self._call("last_in_sequence", key)
        return found

    async def purge(self, older_than: timedelta, **options: Any) -> int:
        gone: int = await self._call("purge", older_than, **options)
        return gone


def inbox_for(adapter: Adapter, consumer: str = "billing", **options: Any) -> Inbox | AsyncInbox:
    return AsyncInbox(consumer, **options) if adapter.is_async else Inbox(consumer, **options)


@asynccontextmanager
async def consuming(
    adapter: Adapter, table: Table, consumer: str = "billing", **options: Any
) -> AsyncIterator[Consumer]:
    async with adapter.producer(table.url) as producer:
        yield Consumer(producer, inbox_for(adapter, consumer, **options))


def accepted(table: Table) -> list[tuple[str, str]]:
    rows = table.conn.execute("SELECT consumer, message_id FROM outbox_inbox ORDER BY 1, 2").fetchall()
    return [(row["consumer"], row["message_id"]) for row in rows]


def orders(table: Table) -> int:
    return len(table.conn.execute("SELECT FROM orders").fetchall())


async def test_a_message_is_taken_in_once_with_its_effect(adapter: Adapter, table: Table) -> None:
    message_id = uuid4()
    for _ in range(3):
        async with consuming(adapter, table) as consumer:
            if await consumer.accept(message_id, fence=1, body=b"x"):
                await consumer.on.execute("INSERT INTO orders VALUES (1)")
            await consumer.on.commit()
    assert accepted(table) == [("billing", str(message_id))]
    assert orders(table) == 1


async def test_a_rolled_back_effect_leaves_no_trace(adapter: Adapter, table: Table) -> None:
    async with consuming(adapter, table) as consumer:
        assert await consumer.accept("m")
        await consumer.on.execute("INSERT INTO orders VALUES (1)")
        assert await consumer.accept("m") is Acceptance.REPEAT, "it sees its own"
        await consumer.on.rollback()
        assert (accepted(table), orders(table)) == ([], 0)
        assert await consumer.accept("m")
        await consumer.on.commit()
    assert accepted(table) == [("billing", "m")]


async def test_a_rolled_back_savepoint_takes_the_entry_with_it(adapter: Adapter, table: Table) -> None:
    async with consuming(adapter, table) as consumer:
        assert await consumer.accept("kept")
        await consumer.on.execute("SAVEPOINT s")
        assert await consumer.accept("gone")
        await consumer.on.execute("ROLLBACK TO SAVEPOINT s")
        assert await consumer.accept("kept") is Acceptance.REPEAT
        await consumer.on.commit()
    assert accepted(table) == [("billing", "kept")]


async def test_each_consumer_takes_it_in_for_itself(adapter: Adapter, table: Table) -> None:
    for name in ("billing", "Billing", "shipping"):
        async with consuming(adapter, table, name) as consumer:
            assert await consumer.accept("m")
            await consumer.on.commit()
    assert accepted(table) == [("Billing", "m"), ("billing", "m"), ("shipping", "m")]


async def test_ids_are_compared_byte_for_byte(adapter: Adapter, table: Table) -> None:
    ids = ["A", "a", "A ", "\uff21", "é", "e\u0301", "😀", "😁", "'; --", "%s", "x" * 512]
    async with consuming(adapter, table) as consumer:
        assert all([await consumer.accept(each) for each in ids])
        assert not any([await consumer.accept(each) for each in ids])
        await consumer.on.commit()
    assert {found for _, found in accepted(table)} == set(ids)


async def test_a_transaction_sees_what_it_took_in(adapter: Adapter, table: Table) -> None:
    async with consuming(adapter, table) as consumer:
        assert await consumer.accept("m")
        assert await consumer.accept_in_sequence("k", 3, first=3)
        assert await consumer.has_accepted("m")
        assert not await consumer.has_accepted("M")
        assert await consumer.last_in_sequence("k") == 3
        assert await consumer.last_in_sequence("K") is None
        await consumer.on.rollback()
        assert not await consumer.has_accepted("m")
        assert await consumer.last_in_sequence("k") is None
        with pytest.raises(InvalidMessage, match="message_id"):
            await consumer.has_accepted("")
        with pytest.raises(InvalidMessage, match="key"):
            await consumer.last_in_sequence("")


async def test_an_older_token_is_told_apart(adapter: Adapter, table: Table) -> None:
    async with consuming(adapter, table) as consumer:
        assert await consumer.accept("m", fence=5)
        assert await consumer.accept("m", fence=4) is Acceptance.STALE
        assert await consumer.accept("m", fence=6) is Acceptance.REPEAT
        await consumer.on.commit()


async def test_another_body_is_reported_and_the_transaction_goes_on(adapter: Adapter, table: Table) -> None:
    async with consuming(adapter, table) as consumer:
        assert await consumer.accept("m", body=b"one")
        with pytest.raises(MessageConflict, match="'m' with another body"):
            await consumer.accept("m", body=b"two")
        assert await consumer.accept("m", body=b"one") is Acceptance.REPEAT
        await consumer.on.execute("INSERT INTO orders VALUES (1)")
        await consumer.on.commit()
    assert orders(table) == 1


async def test_bad_input_is_refused_and_the_transaction_goes_on(adapter: Adapter, table: Table) -> None:
    async with consuming(adapter, table) as consumer:
        await consumer.on.execute("INSERT INTO orders VALUES (1)")
        for refused in ("", "a\0b", "x" * 513):
            with pytest.raises(InvalidMessage, match="message_id"):
                await consumer.accept(refused)
        with pytest.raises(InvalidMessage, match="fence"):
            await consumer.accept("m", fence=-1)
        with pytest.raises(InvalidMessage, match="key"):
            await consumer.accept_in_sequence("", 1)
        await consumer.on.commit()
    assert (accepted(table), orders(table)) == ([], 1)


async def test_autocommit_is_refused_unless_it_is_wanted(adapter: Adapter, table: Table) -> None:
    name = "AsyncInbox" if adapter.is_async else "Inbox"
    async with adapter.open_autocommit(table.url) as conn:
        refused = Consumer(Producer(conn, Outbox()), inbox_for(adapter))
        with pytest.raises(AutocommitRefused, match=f"taken in apart from its effect.*{name}\\(allow_autocommit"):
            await refused.accept("m")
        with pytest.raises(AutocommitRefused):
            await refused.accept_in_sequence("k", 1)
        wanted = Consumer(Producer(conn, Outbox()), inbox_for(adapter, allow_autocommit=True))
        assert await wanted.accept("m")
        assert await wanted.accept("m") is Acceptance.REPEAT
    assert accepted(table) == [("billing", "m")]


async def test_numbered_messages_keep_a_row_for_each_key(adapter: Adapter, table: Table) -> None:
    async with consuming(adapter, table) as consumer:
        assert [await consumer.accept_in_sequence("k", number) for number in (1, 2, 2, 3)] == [
            Acceptance.ACCEPTED,
            Acceptance.ACCEPTED,
            Acceptance.REPEAT,
            Acceptance.ACCEPTED,
        ]
        assert await consumer.accept_in_sequence("other", 7, first=None)
        with pytest.raises(SequenceGap, match="expected number 4"):
            await consumer.accept_in_sequence("k", 6)
        assert await consumer.accept_in_sequence("k", 6, allow_gap=True)
        assert await consumer.accept_in_sequence("k", 5) is Acceptance.REPEAT
        await consumer.on.commit()
    rows = table.conn.execute("SELECT consumer, key, last_sequence FROM outbox_inbox_key ORDER BY 2").fetchall()
    assert [tuple(row.values()) for row in rows] == [("billing", "k", 6), ("billing", "other", 7)]


async def test_a_message_that_overtakes_the_first_one_of_its_key_does_not_make_it_a_repeat(
    adapter: Adapter, table: Table
) -> None:
    async with consuming(adapter, table) as consumer:
        with pytest.raises(SequenceGap, match="expected number 1 of key 'k' and got 2"):
            await consumer.accept_in_sequence("k", 2)
        assert await consumer.accept_in_sequence("k", 1)
        assert await consumer.accept_in_sequence("k", 2)
        assert await consumer.accept_in_sequence("k", 1) is Acceptance.REPEAT
        assert await consumer.accept_in_sequence("late", 4, first=5) is Acceptance.REPEAT
        assert await consumer.accept_in_sequence("late", 5, first=5)
        assert await consumer.accept_in_sequence("late", 6, first=5)
        with pytest.raises(InvalidMessage, match="first must be a whole number from 1"):
            await consumer.accept_in_sequence("k", 3, first=0)
        await consumer.on.commit()
    rows = table.conn.execute("SELECT key, last_sequence FROM outbox_inbox_key ORDER BY 1").fetchall()
    assert [tuple(row.values()) for row in rows] == [("k", 2), ("late", 6)]


async def test_the_purge_forgets_its_own_old_entries_in_bounded_steps(adapter: Adapter, table: Table) -> None:
    for name in ("billing", "shipping"):
        async with consuming(adapter, table, name) as consumer:
            for number in range(5):
                assert await consumer.accept(f"m{number}")
            await consumer.on.commit()
    table.conn.execute("UPDATE outbox_inbox SET accepted_at = now() - interval '3 days' WHERE message_id <> 'm4'")
    async with consuming(adapter, table, horizon=2 * DAY) as consumer:
        assert [await consumer.purge(2 * DAY, limit=3) for _ in range(3)] == [3, 1, 0]
        assert not await consumer.accept("m4")
        assert await consumer.accept("m0"), "forgotten"
        await consumer.on.commit()
    assert [name for name, _ in accepted(table)] == ["billing"] * 2 + ["shipping"] * 5


async def test_nothing_is_forgotten_that_can_come_again(adapter: Adapter, table: Table) -> None:
    async with consuming(adapter, table, horizon=2 * DAY) as consumer:
        with pytest.raises(ConfigError, match=r"older_than is 1 day.*come again for 2 days.*redelivery_horizon"):
            await consumer.purge(DAY)
        with pytest.raises(ConfigError, match="limit above 0"):
            await consumer.purge(2 * DAY, limit=0)


def test_a_connection_of_no_known_kind_is_named() -> None:
    with pytest.raises(UnsupportedConnection, match=r"builtins\.object"):
        Inbox("billing").accept(object(), "m")
