"""C20: behind PgBouncer in transaction mode, with two server connections for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from fencepost import Delivery, Message, Retryable
from fencepost.runtime.link import Limits, connect, is_shared
from fencepost.runtime.wakeup import Wakeup
from tests.runtime.box import Box, running, until
from tests.runtime.pgbouncer import pgbouncer
from tests.runtime.test_wakeup import CHANNEL, LISTENERS, delivered

LIMITS = Limits.below(timedelta(seconds=2))


async def flaky(message: Message, delivery: Delivery) -> None:
    if message.event_type == "flaky" and delivery.attempt < 3:
        raise Retryable("not yet")


@pytest.fixture(params=["", "ignore_startup_parameters = options"], ids=["refuses options", "drops them"])
def through(box: Box, request: pytest.FixtureRequest) -> Iterator[str]:
    """The box's database through a pooler."""
    with pgbouncer(box.url, request.param) as url:
        yield url


async def test_workers_share_a_pool_of_two_without_leaking_a_setting(box: Box, through: str) -> None:
    connection = await connect(through, "test", LIMITS)
    assert await is_shared(connection)
    await connection.close()
    box.enqueue(300)
    box.enqueue(5, event_type="flaky")
    workers = [box.dispatcher(flaky, batch=20, concurrency=20, owner=f"w{n}") for n in range(2)]
    for worker in workers:
        worker._store = through
    async with running(workers[0]) as one, running(workers[1]) as two:
        await until(lambda: box.statuses() == {"done": 305})
        assert not one.done()
        assert not two.done()
    with psycopg.connect(through, prepare_threshold=None) as other:
        names = ("statement_timeout", "enable_seqscan")
        shown = [other.execute(f"SHOW {name}".encode()).fetchone() for name in names]
        prepared = other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert shown == [("0",), ("on",)]
    assert prepared == (0,)


async def test_listening_through_a_pooler_is_not_tried_and_said_once(
    box: Box, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    wakeup = Wakeup()
    listening = asyncio.create_task(wakeup.listen(through, CHANNEL, LIMITS))
    await until(lambda: caplog.records)
    await asyncio.sleep(0.1)
    assert not listening.done()  # a background task that ends would stop the dispatcher
    (warning,) = [record for record in caplog.records if record.name == "fencepost.wakeup"]
    assert "Set listen_store to an address" in warning.getMessage()
    assert "polling goes on" in warning.getMessage()
    assert box.conn.execute(LISTENERS).fetchall() == []
    await wakeup.close()
    listening.cancel()


async def test_a_dispatcher_behind_a_pooler_hears_notices_at_the_server_itself(box: Box, through: str) -> None:
    slow_poll = timedelta(minutes=10)
    dispatcher = box.dispatcher(flaky, listen_store=box.url, poll_interval=slow_poll)
    dispatcher._store = through
    async with running(dispatcher):
        await until(lambda: box.conn.execute(LISTENERS).fetchall())
        for _ in range(3):
            await asyncio.sleep(0.3)  # it has gone idle: there is nothing to see of that from outside
            (row_id,) = box.enqueue()
            await delivered(box, row_id)


async def test_a_session_of_our_own_is_told_from_a_shared_one(box: Box) -> None:
    connection = await connect(box.url, "test", LIMITS)
    assert not await is_shared(connection)
    await connection.close()


async def test_the_users_own_start_up_options_are_kept(box: Box) -> None:
    separator = "&" if "?" in box.url else "?"
    url = f"{box.url}{separator}options=-c%20geqo%3Doff&application_name=mine"
    connection = await connect(url, "test", LIMITS)
    shown = [
        await (await connection.execute(f"SHOW {name}".encode())).fetchone()
        for name in ("geqo", "application_name")
    ]
    assert shown == [("off",), ("mine",)]
    assert not await is_shared(connection)
    await connection.close()
