"""Notices make it fast; polling makes it certain."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from fencepost import Delivery, Message, Outbox
from tests.runtime.box import Box, running, until

LISTENERS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost listen' "
    "AND datname = current_database() AND query LIKE 'LISTEN%'"
)


async def quiet(message: Message, delivery: Delivery) -> None:
    pass


async def test_a_notice_wakes_an_idle_dispatcher_long_before_its_poll(box: Box) -> None:
    async with running(box.dispatcher(quiet, poll_interval=timedelta(minutes=10))):
        await until(lambda: box.conn.execute(LISTENERS).fetchall())
        await asyncio.sleep(0.2)  # it has gone idle: there is nothing to see of that from outside
        started = time.monotonic()
        row_id = box.outbox.enqueue(box.conn, "test", None).id
        await until(lambda: box.row(row_id)["status"] == "done")
        assert time.monotonic() - started < 10


async def test_without_notices_the_poll_finds_it(box: Box) -> None:
    silent = Outbox(notify=False, allow_autocommit=True)
    async with running(box.dispatcher(quiet, notify=False, poll_interval=timedelta(milliseconds=200))):
        row_id = silent.enqueue(box.conn, "test", None).id
        await until(lambda: box.row(row_id)["status"] == "done")
    assert box.conn.execute(LISTENERS).fetchall() == []


async def test_a_lost_listener_is_warned_of_once_and_comes_back(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(box.dispatcher(quiet, poll_interval=timedelta(milliseconds=100))):
        await until(lambda: box.conn.execute(LISTENERS).fetchall())
        (old,) = box.conn.execute(LISTENERS).fetchall()
        box.conn.execute("SELECT pg_terminate_backend(%s)", old)
        row_id = box.outbox.enqueue(box.conn, "test", None).id
        await until(lambda: box.row(row_id)["status"] == "done")
        await until(lambda: box.conn.execute(LISTENERS).fetchall() not in ([], [old]))
    warnings = [record for record in caplog.records if record.name == "fencepost.wakeup"]
    assert len(warnings) == 1
    assert "polling goes on" in warnings[0].getMessage()


async def test_a_delayed_message_is_delivered_when_it_is_due_and_not_before(box: Box) -> None:
    (row_id,) = box.enqueue(1, delay=timedelta(seconds=0.5))
    async with running(box.dispatcher(quiet)):
        await until(lambda: box.row(row_id)["status"] == "done")
    row = box.row(row_id)
    assert row["done_at"] >= row["available_at"]
    assert row["done_at"] - row["available_at"] < timedelta(seconds=2)
