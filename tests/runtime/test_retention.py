"""The dispatcher's own clean-up: small steps with long pauses, one dispatcher at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Delivery, DispatcherSettings, Message, Outbox, Retryable
from fencepost.core.operation import run
from fencepost.drivers import driver_for
from fencepost.runtime import retention
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.retention import Walk, purge_forever, tend_partitions
from fencepost.store import partitions
from tests.runtime.box import Box, running, until

DAY = timedelta(days=1)
CATALOG = Outbox().catalog


def history(box: Box, count: int, status: str = "done") -> None:
    """Write messages of eight days ago."""
    closed = {
        "done": "'done', 'delivered', now() - interval '8 days', NULL, now()",
        "dead": "'dead', 'permanent', NULL, now(), timestamptz '9999-12-31 00:00:00+00'",
    }[status]
    box.conn.execute(
        "INSERT INTO outbox (event_type, payload, created_at, attempts, lease_version, status, outcome, done_at,"
        f" dead_at, available_at) SELECT 'old', '{{}}', now() - interval '9 days', 1, 1, {closed}"
        f" FROM generate_series(1, {count})"
    )


@pytest.fixture
async def link(box: Box) -> AsyncIterator[Link]:
    made = Link(box.url, CATALOG, Limits.below(timedelta(seconds=3)), "retention", lambda: None)
    yield made
    await made.close()


async def test_it_deletes_what_is_old_and_done_and_nothing_else(
    box: Box, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "REST_SECONDS", 0.05)
    history(box, 1_000)
    history(box, 300, "dead")
    history(box, 10)
    box.enqueue(5)
    task = asyncio.create_task(purge_forever(link, CATALOG, DispatcherSettings(retention=7 * DAY)))
    await until(lambda: box.statuses() == {"dead": 300, "pending": 5})
    history(box, 3)  # it goes on
    await until(lambda: box.statuses() == {"dead": 300, "pending": 5})
    await link.close()
    task.cancel()


async def test_without_a_retention_nothing_is_ever_deleted(box: Box, link: Link) -> None:
    history(box, 3)
    task = asyncio.create_task(purge_forever(link, CATALOG, DispatcherSettings()))
    await asyncio.sleep(0.05)
    assert not task.done()
    assert link.is_out_of_reach  # it never even connected
    task.cancel()


async def test_its_steps_take_a_tenth_of_the_time_and_none_is_long(box: Box, link: Link) -> None:
    walk = Walk(link, CATALOG, DAY)
    for seconds, full, limit, pause in [
        (0.001, True, 400, 0.05),
        (0.001, True, 800, 0.05),
        (0.001, True, 1_000, 0.05),
        (0.001, False, 1_000, 0.05),
        (0.06, True, 1_000, 0.54),
        (0.5, True, 500, 4.5),
        (30.0, False, 250, 270.0),
    ]:
        walk._go_on(seconds, full=full)
        assert walk.limit == limit
        assert walk.pause == pytest.approx(pause)
    history(box, 500)
    await walk.step()
    assert box.statuses() == {"done": 250}
    assert 0.05 <= walk.pause < retention.REST_SECONDS


async def test_a_step_that_times_out_becomes_a_smaller_one(
    box: Box, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger that takes 20 ms a row, under a statement time-out of a second: steps of 200 cannot work."""
    box.conn.execute(
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.02); RETURN NULL; END $$"
    )
    box.conn.execute("CREATE TRIGGER slow AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION public.slow()")
    history(box, 60)
    walk = Walk(link, CATALOG, DAY)
    limits = []
    while box.statuses():
        await walk.step()
        limits.append(walk.limit)
    assert limits[:3] == [100, 50, 25]
    assert "statement timeout" in caplog.records[0].getMessage()
    assert "smaller steps go on" in caplog.records[0].getMessage()


async def test_it_gives_way_to_another_purge_and_rests(box: Box, link: Link) -> None:
    history(box, 300)
    walk = Walk(link, CATALOG, DAY)
    walk.pause = 0
    with psycopg.connect(box.url) as other:
        assert Outbox().purge(other, DAY, limit=1) == 1
        await walk.step()
        assert walk.pause == retention.REST_SECONDS
    await walk.step()
    assert box.statuses() == {"done": 99}


async def test_partitions_are_made_ahead_and_dropped_when_they_are_over(box: Box, link: Link) -> None:
    with psycopg.connect(box.url) as conn:
        run(partitions.convert(CATALOG, size=1_000), driver_for(conn).execute)
        conn.commit()
        await tend_partitions(link, CATALOG, DAY)
        assert names(conn) == ["outbox_p0", "outbox_p1000", "outbox_p2000"]
        history(box, 1_500)
        await tend_partitions(link, CATALOG, DAY)
        assert names(conn) == ["outbox_p1000", "outbox_p2000", "outbox_p3000"]
        assert box.statuses() == {"done": 501}
        history(box, 500)
        # Somebody is in the way: it gives up at once, and has its turn later.
        conn.execute("SELECT count(*) FROM outbox")
        await asyncio.wait_for(tend_partitions(link, CATALOG, DAY), 10)
        conn.rollback()
        assert names(conn)[0] == "outbox_p1000"
        await tend_partitions(link, CATALOG, DAY)
        assert names(conn) == ["outbox_p2000", "outbox_p3000", "outbox_p4000"]


def names(conn: psycopg.Connection[Any]) -> list[str]:
    found = run(partitions.partitions(CATALOG), driver_for(conn).execute)
    conn.rollback()
    return [each.name for each in found.ranges]


async def test_a_dispatcher_drains_an_outbox_in_partitions(box: Box) -> None:
    with psycopg.connect(box.url) as conn:
        run(partitions.convert(CATALOG, size=1_000), driver_for(conn).execute)
    seen: list[tuple[str | None, int]] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        seen.append((message.ordering_key, message.id))
        if message.id % 100 == 0 and delivery.attempt == 1:
            raise Retryable("once more")

    for n in range(10):
        box.enqueue(150)
        box.enqueue(150, ordering_key=f"key {n % 3}")
    async with running(box.dispatcher(publish, batch=100)):
        await until(lambda: box.statuses() == {"done": 3_000})
    for key in ("key 0", "key 1", "key 2"):
        ids = [row_id for its_key, row_id in seen if its_key == key]
        assert list(dict.fromkeys(ids)) == sorted(set(ids))
    assert box.conn.execute("SELECT count(DISTINCT tableoid) FROM outbox").fetchone() == (4,)
