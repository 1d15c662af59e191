"""The dispatcher's own clean-up: small steps with long pauses, one dispatcher at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from fencepost import DispatcherSettings, Outbox
from fencepost.runtime import retention
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.retention import Walk, purge_forever
from tests.runtime.box import Box, until

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
