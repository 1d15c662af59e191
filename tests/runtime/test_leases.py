"""Leases while publishes run: heartbeats, losses, take-overs, and what a process never does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Delivery, DispatcherSettings, Message
from fencepost.errors import ConfigError
from fencepost.runtime.flight import STOOD_STILL
from fencepost.runtime.held import OVERDUE_SECONDS
from tests.runtime.box import Box, locked, running, until


async def quiet(message: Message, delivery: Delivery) -> None:
    pass


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"publish_timeout": 60, "lease": 60}, "publish_timeout"),
        ({"publish_timeout": 90, "lease": 60}, "publish_timeout"),
        ({"heartbeat": 21, "lease": 60}, "heartbeat"),
        ({"heartbeat": 0}, "heartbeat"),
        ({"lease": 0}, "lease"),
        ({"grace": -1}, "grace"),
        ({"backoff_base": 301}, "backoff_base"),
        ({"poll_interval": 0}, "poll_interval"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, int], setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        DispatcherSettings(**{key: timedelta(seconds=value) for key, value in options.items()})  # type: ignore[arg-type]  # all durations


@pytest.mark.parametrize(
    "options",
    [{"batch": 0}, {"concurrency": 0}, {"max_attempts": 0}, {"owner": ""}, {"queues": []}, {"on_unexpected": "x"}],
    ids=str,
)
def test_numbers_and_names_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        DispatcherSettings(**options)


async def test_four_workers_deliver_a_hundred_messages_once_each(box: Box) -> None:
    box.enqueue(100)
    seen: Counter[int] = Counter()

    async def publish(message: Message, delivery: Delivery) -> None:
        seen[message.id] += 1
        await asyncio.sleep(0)

    workers = [box.dispatcher(publish, owner=f"w{n}", batch=7, concurrency=7) for n in range(4)]
    async with running(workers[0]), running(workers[1]), running(workers[2]), running(workers[3]):
        await until(lambda: box.statuses() == {"done": 100})
    assert len(seen) == 100
    assert set(seen.values()) == {1}
    assert sum(worker.counters.lost_leases for worker in workers) == 0


def test_the_broken_dispatcher_publishes_twice(box: Box) -> None:
    """SELECT … FOR UPDATE SKIP LOCKED, commit, publish: the row lock ends at the commit."""
    box.enqueue(1)
    published: list[int] = []
    both_selected = threading.Barrier(2)

    def broken_worker() -> None:
        with psycopg.connect(box.url) as conn:
            for _ in range(50):
                found = conn.execute(
                    "SELECT id FROM outbox WHERE status = 'pending' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
                ).fetchone()
                conn.commit()
                if found:
                    break
            assert found
            both_selected.wait(10)  # both hold the row, since neither commit kept it from the other
            published.append(found[0])
            conn.execute("UPDATE outbox SET status = 'done', done_at = now(), outcome = 'delivered'")

    threads = [threading.Thread(target=broken_worker) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(published) == 2


async def test_only_what_can_start_is_claimed(box: Box) -> None:
    box.enqueue(20)
    gate = asyncio.Event()
    most = 0

    async def publish(message: Message, delivery: Delivery) -> None:
        await gate.wait()

    async with running(box.dispatcher(publish, concurrency=3, batch=100, publish_timeout=timedelta(seconds=1.9))):
        await until(lambda: box.statuses().get("processing") == 3)
        for _ in range(20):
            most = max(most, box.statuses().get("processing", 0))
            await asyncio.sleep(0)
        gate.set()
        await until(lambda: box.statuses() == {"done": 20})
    assert most == 3


async def test_nothing_is_open_in_the_database_during_a_publish(box: Box) -> None:
    row_ids = box.enqueue(5)
    seen: list[tuple[Any, ...]] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        with psycopg.connect(box.url) as conn:
            conn.execute("SELECT 1 FROM outbox WHERE id = %s FOR UPDATE NOWAIT", [message.id])
            conn.rollback()
            open_transactions = conn.execute(
                "SELECT application_name, state, query FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name LIKE 'fencepost%' AND xact_start IS NOT NULL AND state LIKE 'idle%'"
            ).fetchall()
            seen.extend(open_transactions)

    async with box.dispatcher(publish, concurrency=1, notify=False) as dispatcher:
        for _ in row_ids:
            await dispatcher.dispatch_once()
    assert box.statuses() == {"done": 5}
    assert seen == []


async def test_a_lost_lease_is_told_to_the_running_publish_and_its_result_is_refused(box: Box) -> None:
    (row_id,) = box.enqueue()
    told = asyncio.Event()

    async def publish(message: Message, delivery: Delivery) -> None:
        if delivery.attempt > 1:
            return
        await delivery.lost
        told.set()

    dispatcher = box.dispatcher(publish, publish_timeout=timedelta(seconds=1.9), lease=timedelta(seconds=2))
    async with dispatcher:
        first = asyncio.create_task(dispatcher.dispatch_once())
        await until(lambda: box.row(row_id)["status"] == "processing")
        box.expire(row_id)
        (stolen,) = box.outbox.claim(box.conn, "thief", lease=timedelta(seconds=60))
        assert (stolen.token, stolen.attempt) == (2, 2)
        before = box.row(row_id)
        await first
        assert told.is_set()
        assert box.row(row_id) == before  # xmin and every column
        assert dispatcher.counters.lost_leases == 1
        assert dispatcher.counters.delivered_but_lost == 1
    assert box.outbox.mark_done(box.conn, stolen) == []


async def test_the_last_attempt_reaped_while_its_publish_runs_is_dead_and_says_so(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    (row_id,) = box.enqueue()
    gate = asyncio.Event()

    async def publish(message: Message, delivery: Delivery) -> None:
        await gate.wait()

    dispatcher = box.dispatcher(publish, max_attempts=1, publish_timeout=timedelta(seconds=1.9))
    async with dispatcher:
        first = asyncio.create_task(dispatcher.dispatch_once())
        await until(lambda: box.row(row_id)["status"] == "processing")
        box.expire(row_id)
        assert box.outbox.reap(box.conn, max_attempts=1) == 1
        gate.set()
        await first
    row = box.row(row_id)
    assert (row["status"], row["outcome"], row["attempts"]) == ("dead", "crashed", 1)
    assert "may have been delivered all the same" in row["last_error"]
    assert dispatcher.counters.delivered_but_lost == 1
    assert "stand as dead though delivered" in caplog.text


async def test_a_lease_that_ended_but_was_not_taken_is_still_good_for_a_finalize(box: Box) -> None:
    (row_id,) = box.enqueue()

    async def publish(message: Message, delivery: Delivery) -> None:
        box.expire(message.id)

    async with box.dispatcher(publish) as dispatcher:
        # No reaper of this dispatcher may come first: attempts are left, so it would leave the row alone.
        await dispatcher.dispatch_once()
    assert box.row(row_id)["status"] == "done"


async def test_leases_live_on_while_their_results_cannot_be_written(box: Box) -> None:
    """A row lock held by somebody else keeps a whole finalize waiting, for three leases."""
    row_ids = box.enqueue(10)
    gate = asyncio.Event()

    async def publish(message: Message, delivery: Delivery) -> None:
        await gate.wait()

    lease = timedelta(seconds=1)
    dispatcher = box.dispatcher(publish, lease=lease, publish_timeout=timedelta(seconds=0.9), notify=False)
    async with dispatcher:
        handled = asyncio.create_task(dispatcher.dispatch_once())
        await until(lambda: box.statuses() == {"processing": 10})
        with locked(box, row_ids[0]):
            gate.set()
            first_end = box.row(row_ids[5])["lease_until"]
            await until(lambda: box.row(row_ids[5])["lease_until"] > first_end + 3 * lease)
        await handled
    assert box.statuses() == {"done": 10}
    assert {box.row(each)["attempts"] for each in row_ids} == {1}
    assert dispatcher.counters.lost_leases == 0


async def test_a_blocked_event_loop_is_said_and_its_leases_stay_honest(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    blocked_id, neighbour_id = box.enqueue(2)
    leases: list[Any] = []

    def watch() -> None:
        # On another thread, as the loop is blocked: the lease moves on all the same.
        with Box(box.url) as other:
            first = other.row(neighbour_id)["lease_until"]
            deadline = time.monotonic() + 1.6
            while time.monotonic() < deadline and len(leases) < 1:
                now = other.row(neighbour_id)["lease_until"]
                if now and first and now > first:
                    leases.append(now)

    async def publish(message: Message, delivery: Delivery) -> None:
        if message.id == blocked_id:
            watcher = threading.Thread(target=watch)
            watcher.start()
            watcher.join()  # blocks the event loop for up to 1.6 s

    async with box.dispatcher(publish, lease=timedelta(seconds=2), publish_timeout=timedelta(seconds=1.8)) as d:
        await d.dispatch_once()
    assert leases, "no heartbeat came through while the event loop was blocked"
    assert box.row(neighbour_id)["attempts"] == 1


async def test_a_loop_blocked_for_long_is_logged_and_counted(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    box.enqueue(1)

    async def publish(message: Message, delivery: Delivery) -> None:
        time.sleep(1.6)  # noqa: ASYNC251 - the very fault under test

    async with box.dispatcher(publish, publish_timeout=timedelta(seconds=1.9)) as dispatcher:
        await dispatcher.dispatch_once()
        assert dispatcher.counters.stalls == 1
    assert "the event loop has been blocked" in caplog.text


async def test_what_was_answered_while_the_loop_stood_still_is_delivered(box: Box) -> None:
    answered, blocking = box.enqueue(2)
    loop = asyncio.get_running_loop()
    started = asyncio.Event()
    answer = loop.create_future()
    timeout = 0.4

    async def publish(message: Message, delivery: Delivery) -> None:
        if message.id == answered:
            started.set()
            await answer
        else:
            await started.wait()
            time.sleep(timeout + OVERDUE_SECONDS + 0.3)  # noqa: ASYNC251 - on purpose
            loop.call_soon(answer.set_result, None)  # as what a socket has by then is heard of

    dispatcher = box.dispatcher(publish, publish_timeout=timedelta(seconds=timeout), lease=timedelta(seconds=30))
    async with running(dispatcher):
        await until(lambda: box.row(answered)["status"] == "done")
    assert box.row(answered)["attempts"] == 1
    assert box.row(blocking)["status"] == "done"
    assert dispatcher.counters.timed_out == 0


async def test_time_outs_come_in_a_loop_that_is_always_late(box: Box) -> None:
    box.enqueue()

    async def publish(message: Message, delivery: Delivery) -> None:
        await asyncio.Event().wait()

    async def keep_late() -> None:
        while True:
            time.sleep(2 * STOOD_STILL)  # noqa: ASYNC251 - on purpose
            await asyncio.sleep(0)

    dispatcher = box.dispatcher(publish, publish_timeout=timedelta(seconds=0.4), lease=timedelta(seconds=30))
    async with running(dispatcher):
        late = asyncio.create_task(keep_late())
        await until(lambda: dispatcher.counters.timed_out == 1)
        late.cancel()


async def test_two_workers_of_one_name_do_not_mistake_each_other(box: Box) -> None:
    (row_id,) = box.enqueue()
    gate = asyncio.Event()

    async def publish(message: Message, delivery: Delivery) -> None:
        await gate.wait()

    async with box.dispatcher(publish, owner="same", publish_timeout=timedelta(seconds=1.9)) as one:
        first = asyncio.create_task(one.dispatch_once())
        await until(lambda: box.row(row_id)["status"] == "processing")
        box.expire(row_id)
        async with box.dispatcher(quiet, owner="same") as two:
            assert await two.dispatch_once() == 1
        before = box.row(row_id)
        assert (before["status"], before["attempts"], before["lease_version"]) == ("done", 2, 2)
        gate.set()
        await first
        assert one.counters.lost_leases == 1
    assert box.row(row_id) == before


async def test_a_message_with_the_id_of_a_lost_one_is_not_closed_by_the_lost_ones_result(box: Box) -> None:
    """A failover loses a message in mid-publish: the next one has its id, and its claim the same token."""
    (row_id,) = box.enqueue()
    gates = [asyncio.Event(), asyncio.Event()]
    published: list[Message] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        published.append(message)
        await gates[len(published) - 1].wait()

    dispatcher = box.dispatcher(publish, publish_timeout=timedelta(seconds=50), lease=timedelta(seconds=60))
    async with running(dispatcher):
        await until(lambda: len(published) == 1)
        box.conn.execute("DELETE FROM outbox")
        box.conn.execute("SELECT setval(pg_get_serial_sequence('outbox', 'id'), %s, false)", [row_id])
        assert box.enqueue() == [row_id]
        await until(lambda: len(published) == 2)
        before = box.row(row_id)
        gates[0].set()
        await until(lambda: dispatcher.counters.delivered_but_lost == 1)
        assert box.row(row_id) == before
        assert (before["status"], before["lease_version"]) == ("processing", 1)
        gates[1].set()
        await until(lambda: box.row(row_id)["status"] == "done")
    assert published[0].message_id != published[1].message_id
    assert dispatcher.counters.delivered == 1


async def test_an_answer_that_came_too_late_is_given_back_with_its_attempt(box: Box) -> None:
    """Every claim takes 0.5 s here, half of a lease whose publish may need 0.9 s."""
    (row_id,) = box.enqueue()
    box.conn.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.status = 'processing' THEN PERFORM pg_sleep(0.2); END IF; RETURN NEW; END $$"
    )
    box.conn.execute("CREATE TRIGGER slow BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION slow()")
    options = {"lease": timedelta(seconds=1), "publish_timeout": timedelta(seconds=0.9), "notify": False}
    async with box.dispatcher(quiet, **options) as dispatcher:
        await dispatcher.dispatch_once()
        assert dispatcher.counters.late_claims == 1
        assert dispatcher.counters.delivered == 0
    row = box.row(row_id)
    assert (row["status"], row["attempts"]) == ("pending", 0)


async def test_a_lowered_limit_buries_what_is_over_it_and_delivers_the_rest(box: Box) -> None:
    (over_id,) = box.enqueue()
    box.conn.execute("UPDATE outbox SET attempts = 7")
    box.enqueue(100)
    async with running(box.dispatcher(quiet, max_attempts=5)):
        await until(lambda: box.statuses() == {"done": 100, "dead": 1})
    row = box.row(over_id)
    assert (row["outcome"], row["attempts"]) == ("exhausted", 7)


async def test_queues_are_served_in_turns_and_unnamed_ones_are_left_alone(box: Box) -> None:
    box.enqueue(50, queue="big")
    small = box.enqueue(2, queue="small")
    other = box.enqueue(1, queue="other")
    order: list[str] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        order.append(message.queue)

    async with running(box.dispatcher(publish, queues=["big", "small"], batch=5, concurrency=5)):
        await until(lambda: all(box.row(each)["status"] == "done" for each in small))
        await until(lambda: box.statuses().get("done") == 52)
    assert box.row(other[0])["status"] == "pending"
    assert order.index("small") < 15


async def test_a_database_with_odd_defaults_changes_nothing(box: Box) -> None:
    name = box.conn.info.dbname
    for setting in (
        "default_transaction_isolation TO 'serializable'",
        "TimeZone TO 'Pacific/Kiritimati'",
        "DateStyle TO 'German'",
        "IntervalStyle TO 'sql_standard'",
        "bytea_output TO 'escape'",
    ):
        box.conn.execute(f'ALTER DATABASE "{name}" SET {setting}')
    box.enqueue(30)
    seen: list[Message] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        seen.append(message)

    one, two = box.dispatcher(publish, batch=5, concurrency=5), box.dispatcher(publish, batch=5, concurrency=5)
    async with running(one), running(two):
        await until(lambda: box.statuses() == {"done": 30})
    assert len(seen) == 30
    now = box.conn.execute("SELECT now()").fetchone()
    assert now is not None
    assert abs((now[0] - seen[0].created_at).total_seconds()) < 60


async def test_a_crash_suspect_is_published_once_every_result_before_it_is_written(box: Box) -> None:
    # Else a message that kills its process would use up the attempts of one that was delivered just before.
    first, second = box.enqueue(2)
    box.conn.execute(
        "UPDATE outbox SET status = 'processing', attempts = 1, lease_version = 1, lease_owner = 'gone', "
        "lease_until = now() - interval '1 minute', reclaim_count = id - %s",
        [first],
    )
    lock = contextlib.ExitStack()
    seen: dict[int, str] = {}

    async def publish(message: Message) -> None:
        seen[message.id] = box.row(first)["status"]
        if message.id == first:
            lock.enter_context(locked(box, first))  # its result has to wait
            asyncio.get_running_loop().call_later(0.5, lock.close)

    async with running(box.dispatcher(publish)):
        await until(lambda: box.statuses() == {"done": 2}, "both done")
    assert seen == {first: "processing", second: "done"}
