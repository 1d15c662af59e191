"""C20: behind PgBouncer in transaction mode, with two server connections for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from fencepost import Delivery, Message, Retryable
from fencepost.runtime.link import Limits, connect, is_shared
from tests.runtime.box import Box, running, until
from tests.runtime.pgbouncer import pgbouncer

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
