"""The reaper by itself, over a real connection."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from fencepost import DispatcherSettings
from fencepost.runtime.counters import Counters
from fencepost.runtime.lifecycle import end
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.reaper import reap_forever
from fencepost.store.catalog import Catalog
from tests.runtime.box import QUICK, Box, until


async def test_a_reap_that_fails_for_reasons_of_somebody_elses_is_tried_again(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger that refuses one row keeps that row, and must not end the reaper: others depend on it."""
    (row_id,) = box.enqueue()
    box.outbox.claim(box.conn, "gone", max_attempts=1)
    box.expire(row_id)
    box.conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;"
        "CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    settings, counters = DispatcherSettings(**(QUICK | {"max_attempts": 1})), Counters()
    link = Link(box.url, Catalog(), Limits.below(timedelta(minutes=1)), "upkeep", lambda: None)
    reaper = asyncio.create_task(reap_forever(link, Catalog(), settings, counters))
    try:
        await until(lambda: caplog.text.count("reaping failed") >= 2 or reaper.done())
        assert not reaper.done()
        box.conn.execute("DROP TRIGGER refuse ON outbox")
        await until(lambda: box.statuses() == {"dead": 1})
        await until(lambda: counters.reaped == 1)
    finally:
        await end([reaper])
        await link.close()
