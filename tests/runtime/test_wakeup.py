"""Notices make it fast; polling makes it certain."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import psycopg
import pytest

from fencepost import Delivery, Message, NewMessage, Outbox
from fencepost.runtime import wakeup
from fencepost.runtime.link import Limits
from fencepost.store import catalog
from tests.runtime.box import PATIENCE, Box, running, until
from tests.runtime.proxy import Proxy

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


CHANNEL = Outbox().catalog.names.channel


@contextlib.contextmanager
def ear(box: Box) -> Iterator[Callable[[], int]]:
    """A listener as a dispatcher has one; yields what counts the notices since it was asked last."""
    with psycopg.connect(box.url, autocommit=True) as listener:
        listener.execute(f'LISTEN "{CHANNEL}"')

        def heard() -> int:
            # Notices arrive in the order of their commits: behind the mark there is nothing older.
            box.conn.execute("SELECT pg_notify(%s, 'mark')", [CHANNEL])
            for count, notice in enumerate(listener.notifies(timeout=PATIENCE)):
                if notice.payload == "mark":
                    return count
            raise AssertionError("the mark never came")

        yield heard


Edit = Callable[[str, str], None]


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Write something else for an expression in every statement."""

    def change(expression: str, other: str) -> None:
        found = catalog._load
        monkeypatch.setattr(catalog, "_load", lambda *given: found(*given).replace(expression, other))

    return change


def test_concurrent_producers_of_one_slot_send_one_notice(box: Box, edit: Edit) -> None:
    edit("pg_catalog.clock_timestamp()", "timestamptz 'epoch'")
    outbox = Outbox()
    with ear(box) as heard, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(psycopg.connect(box.url)) for _ in range(8)]
        for n, connection in enumerate(connections):
            outbox.enqueue(connection, "one", n)
            outbox.enqueue_many(connection, [NewMessage(event_type="many", payload=n)] * 3)
        assert heard() == 0  # nothing is said before it is committed
        for connection in reversed(connections):
            connection.commit()
        assert heard() == 1
        outbox.enqueue(connections[3], "later", None)
        connections[3].commit()
        assert heard() == 1


def test_a_slow_transaction_keeps_nobody_else_quiet_for_long(box: Box) -> None:
    with ear(box) as heard, psycopg.connect(box.url) as slow:
        Outbox().enqueue(slow, "slow", None)
        slow.execute("SELECT pg_sleep(0.26)")  # its slot is over
        box.enqueue()
        assert heard() == 1
        slow.commit()
        assert heard() == 1


def test_a_long_transaction_takes_one_slot_however_many_messages_it_writes(box: Box) -> None:
    """Each lock is a place in a table of the server that others need as well."""
    other = Outbox(table="other")
    with psycopg.connect(box.url) as conn:
        other.migrate(conn)
    with ear(box) as heard, psycopg.connect(box.url) as conn:
        for _ in range(4):
            Outbox().enqueue(conn, "t", None)
            other.enqueue(conn, "t", None)
            conn.execute("SELECT pg_sleep(0.26)")
        held = conn.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchone()
        conn.commit()
        assert held == (2,)  # one for each outbox
        assert heard() == 1


def test_what_a_savepoint_took_back_does_not_count(box: Box) -> None:
    with ear(box) as heard, psycopg.connect(box.url) as conn:
        conn.execute("SELECT 1")  # the transaction is there already: what follows is a savepoint
        with contextlib.suppress(ZeroDivisionError), conn.transaction():
            Outbox().enqueue(conn, "gone", None)
            raise ZeroDivisionError
        Outbox().enqueue(conn, "kept", None)
        conn.commit()
        assert heard() == 1


def test_no_notice_of_what_is_not_due(box: Box) -> None:
    hour = timedelta(hours=1)
    later = [NewMessage(event_type="t", payload=n, delay=hour) for n in range(3)]
    with ear(box) as heard:
        box.enqueue(3, delay=hour)
        box.outbox.enqueue(box.conn, "t", None, delay=hour)
        box.outbox.enqueue(box.conn, "t", None, available_at=datetime(2100, 1, 1, tzinfo=UTC))
        assert heard() == 0
        box.outbox.enqueue_many(box.conn, [*later, NewMessage(event_type="t", payload=None)])
        assert heard() == 1


def test_no_notice_where_it_could_make_a_commit_fail(box: Box, edit: Edit) -> None:
    edit("pg_notification_queue_usage()", "0.5::float8")
    with ear(box) as heard:
        box.outbox.enqueue(box.conn, "one", None)
        box.enqueue(2)
        assert heard() == 0


async def test_a_listener_that_something_on_the_way_forgot_is_replaced(
    box: Box, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half-open: nothing arrives and nothing is closed, as behind a firewall that forgot the connection."""
    monkeypatch.setattr(wakeup, "_ASK_EVERY", 0.1)
    parts = urlsplit(box.url)
    async with Proxy(str(parts.hostname), parts.port or 5432) as proxy:
        listener = wakeup.Wakeup()
        limits = replace(Limits.below(timedelta(seconds=2)), answer=0.3)
        task = asyncio.create_task(listener.listen(proxy.url(box.url), CHANNEL, limits))
        await until(lambda: box.conn.execute(LISTENERS).fetchall())
        await listener.wait(PATIENCE)  # what was missed before it listened
        box.enqueue()
        await heard_within(listener, PATIENCE)
        proxy.silent = True
        box.enqueue()  # this notice is lost
        await until(lambda: caplog.records)
        proxy.silent = False
        await heard_within(listener, PATIENCE)  # it looks again as soon as it listens again
        box.enqueue()
        await heard_within(listener, PATIENCE)
        await listener.close()
        task.cancel()
    assert "no answer from the database within 0.3 s; polling goes on" in caplog.records[0].getMessage()


async def test_notices_that_never_arrive_cost_a_poll(box: Box) -> None:
    """The listening connection is half-open, the others are well."""
    parts = urlsplit(box.url)
    async with Proxy(str(parts.hostname), parts.port or 5432) as proxy:
        dispatcher = box.dispatcher(
            quiet, listen_store=proxy.url(box.url), poll_interval=timedelta(milliseconds=300)
        )
        async with running(dispatcher):
            await until(lambda: box.conn.execute(LISTENERS).fetchall())
            proxy.silent = True
            for _ in range(3):
                (row_id,) = box.enqueue()
                began = time.monotonic()
                await delivered(box, row_id)
                assert time.monotonic() - began < 5
                await asyncio.sleep(0.3)


async def delivered(box: Box, row_id: int) -> None:
    """Wait for one message."""
    await until(lambda: box.row(row_id)["status"] == "done")


async def heard_within(listener: wakeup.Wakeup, seconds: float) -> None:
    """Fail unless something wakes it."""
    began = time.monotonic()
    await listener.wait(seconds)
    assert time.monotonic() - began < seconds
