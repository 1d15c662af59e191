"""The fence of a receiver: the same behaviour on every kind of connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from fencepost import (
    Admission,
    AsyncFence,
    AutocommitRefused,
    ConfigError,
    Fence,
    InvalidMessage,
    StaleToken,
    UnsupportedConnection,
    message_resource,
)
from tests.client.adapters import Adapter, Producer
from tests.client.conftest import Table

DAY = timedelta(days=1)


class Receiver:
    """A fence on a connection, behind one async face."""

    def __init__(self, on: Producer, fence: Fence | AsyncFence) -> None:
        self.on = on
        self._fence = fence

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        result: Any = getattr(self._fence, name)(self.on.conn, *args, **options)
        return await result if isinstance(self._fence, AsyncFence) else result

    async def admit(self, resource: str, token: int) -> Admission:
        found: Admission = await self._call("admit", resource, token)
        return found

    async def require(self, resource: str, token: int) -> None:
        assert await self._call("require", resource, token) is None

    async def purge(self, older_than: timedelta, **options: Any) -> int:
        gone: int = await self._call("purge", older_than, **options)
        return gone


def fence_for(adapter: Adapter, receiver: str = "ledger", **options: Any) -> Fence | AsyncFence:
    return AsyncFence(receiver, **options) if adapter.is_async else Fence(receiver, **options)


@asynccontextmanager
async def receiving(
    adapter: Adapter, table: Table, receiver: str = "ledger", **options: Any
) -> AsyncIterator[Receiver]:
    async with adapter.producer(table.url) as producer:
        yield Receiver(producer, fence_for(adapter, receiver, **options))


def seen(table: Table) -> list[tuple[str, str, int]]:
    rows = table.conn.execute("SELECT receiver, resource, token FROM outbox_fence ORDER BY 1, 2").fetchall()
    return [tuple(row.values()) for row in rows]


def orders(table: Table) -> list[int]:
    return [row["id"] for row in table.conn.execute("SELECT id FROM orders ORDER BY ctid").fetchall()]


async def test_an_older_token_is_refused_and_its_write_is_not_made(adapter: Adapter, table: Table) -> None:
    resource = message_resource(uuid4())
    answers = []
    for token in (1, 1, 3, 2, 3, 1):
        async with receiving(adapter, table) as receiver:
            answer = await receiver.admit(resource, token)
            answers.append((bool(answer), answer.token, answer.newest))
            if answer:
                await receiver.on.execute(f"INSERT INTO orders VALUES ({token})")
            await receiver.on.commit()
    assert answers == [(True, 1, 1), (True, 1, 1), (True, 3, 3), (False, 2, 3), (True, 3, 3), (False, 1, 3)]
    assert orders(table) == [1, 1, 3, 3]
    assert seen(table) == [("ledger", resource, 3)]


async def test_a_refusal_can_be_an_exception_and_leaves_the_transaction_usable(
    adapter: Adapter, table: Table
) -> None:
    async with receiving(adapter, table) as receiver:
        await receiver.require("r", 5)
        with pytest.raises(StaleToken, match="'ledger' has seen token 5 of 'r' and refuses 4") as refused:
            await receiver.require("r", 4)
        await receiver.require("r", 5)
        await receiver.on.execute("INSERT INTO orders VALUES (5)")
        await receiver.on.commit()
    assert (refused.value.token, refused.value.newest) == (4, 5)
    assert (orders(table), seen(table)) == ([5], [("ledger", "r", 5)])


async def test_a_refusal_changes_no_column(adapter: Adapter, table: Table) -> None:
    async with receiving(adapter, table) as receiver:
        await receiver.require("r", 5)
        await receiver.on.commit()
        look = "SELECT xmin::text, admitted_at FROM outbox_fence"
        before = table.conn.execute(look).fetchone()
        assert not await receiver.admit("r", 4)
        await receiver.on.commit()
        assert table.conn.execute(look).fetchone() == before


async def test_a_token_of_a_rolled_back_write_was_never_seen(adapter: Adapter, table: Table) -> None:
    async with receiving(adapter, table) as receiver:
        assert await receiver.admit("r", 1)
        await receiver.on.commit()
        assert await receiver.admit("r", 2)
        await receiver.on.execute("SAVEPOINT s")
        assert await receiver.admit("r", 3)
        await receiver.on.execute("ROLLBACK TO SAVEPOINT s")
        assert not await receiver.admit("r", 1)
        await receiver.on.rollback()
        assert await receiver.admit("r", 1)
        await receiver.on.commit()
    assert seen(table) == [("ledger", "r", 1)]


async def test_receivers_and_resources_know_nothing_of_each_other(adapter: Adapter, table: Table) -> None:
    resources = ["R", "r", "r ", "\uff32", "é", "e\u0301", "😀", "😁", "'; --", "%s", "x" * 2048]
    for name in ("ledger", "Ledger"):
        async with receiving(adapter, table, name) as receiver:
            for number, resource in enumerate(resources):
                assert await receiver.admit(resource, 2**63 - 1 - number)
            await receiver.on.commit()
    expected = [(resource, 2**63 - 1 - number) for number, resource in enumerate(resources)]
    assert set(seen(table)) == {(name, *each) for name in ("ledger", "Ledger") for each in expected}


async def test_autocommit_is_refused_before_anything_is_written(adapter: Adapter, table: Table) -> None:
    async with adapter.open_autocommit(table.url) as conn:
        on = Producer(conn, adapter.outbox())
        with pytest.raises(AutocommitRefused, match=r"newer holder.*Fence\(allow_autocommit=True\)"):
            await Receiver(on, fence_for(adapter)).admit("r", 1)
        assert seen(table) == []
        assert await Receiver(on, fence_for(adapter, allow_autocommit=True)).admit("r", 1)
    assert seen(table) == [("ledger", "r", 1)]


async def test_what_cannot_be_is_refused_and_the_transaction_goes_on(adapter: Adapter, table: Table) -> None:
    async with receiving(adapter, table) as receiver:
        await receiver.on.execute("INSERT INTO orders VALUES (1)")
        for resource, token in (("", 1), ("a\0", 1), ("r", -1), ("r", 2**63)):
            with pytest.raises(InvalidMessage):
                await receiver.admit(resource, token)
        await receiver.on.commit()
    assert (orders(table), seen(table)) == ([1], [])


async def test_the_purge_forgets_its_own_old_resources_in_bounded_steps(adapter: Adapter, table: Table) -> None:
    for name in ("ledger", "stock"):
        async with receiving(adapter, table, name) as receiver:
            for number in range(5):
                assert await receiver.admit(f"r{number}", 7)
            await receiver.on.commit()
    table.conn.execute("UPDATE outbox_fence SET admitted_at = now() - interval '3 days' WHERE resource <> 'r4'")
    async with receiving(adapter, table, horizon=2 * DAY) as receiver:
        assert await receiver.admit("r3", 7), "it is in use, and not old any more"
        assert [await receiver.purge(2 * DAY, limit=2) for _ in range(3)] == [2, 1, 0]
        assert not await receiver.admit("r4", 6)
        assert await receiver.admit("r0", 6), "forgotten"
        await receiver.on.commit()
    assert [name for name, _, _ in seen(table)] == ["ledger"] * 3 + ["stock"] * 5


async def test_nothing_is_forgotten_that_an_old_holder_may_still_come_to(adapter: Adapter, table: Table) -> None:
    async with receiving(adapter, table, horizon=2 * DAY) as receiver:
        with pytest.raises(ConfigError, match=r"older_than is 1 day.*may come for 2 days.*redelivery_horizon"):
            await receiver.purge(DAY)
        with pytest.raises(ConfigError, match="limit above 0"):
            await receiver.purge(2 * DAY, limit=0)


def test_a_connection_of_no_known_kind_is_named() -> None:
    with pytest.raises(UnsupportedConnection, match=r"builtins\.object"):
        Fence("ledger").admit(object(), "r", 1)
