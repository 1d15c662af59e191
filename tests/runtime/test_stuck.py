"""Publishers that get stuck, and dispatchers that are used in odd ways: nothing stays held because of them."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Defer, Delivery, DispatcherSettings, Message, Retryable, UnexpectedFailure
from fencepost.errors import ConfigError, FencepostError
from tests.runtime.box import Box, Stubborn, running, until


async def quiet(message: Message, delivery: Delivery) -> None:
    pass


async def hangs(message: Message, delivery: Delivery) -> None:
    await asyncio.Event().wait()


def test_a_frozen_event_loop_loses_its_leases_and_others_take_over(box: Box) -> None:
    """The blocking message and all its neighbours, though the heartbeat thread of the frozen one is well."""
    box.enqueue(20)
    gate = threading.Event()

    async def freezes(message: Message, delivery: Delivery) -> None:
        gate.wait()  # blocks the event loop, which is the fault under test

    frozen = box.dispatcher(
        freezes, lease=timedelta(seconds=1), publish_timeout=timedelta(seconds=0.5), owner="frozen"
    )

    async def run_frozen() -> None:
        await frozen.run(handle_signals=False)

    async def run_healthy() -> None:
        async with running(box.dispatcher(quiet)):
            await until(lambda: box.statuses() == {"done": 20})

    thread = threading.Thread(target=lambda: asyncio.run(run_frozen()), daemon=True)
    thread.start()
    asyncio.run(until(lambda: box.statuses() == {"processing": 20}))
    asyncio.run(run_healthy())
    assert frozen.counters.stalls == 1
    frozen._stop.asked.set()
    gate.set()
    thread.join(30)
    assert not thread.is_alive()
    assert box.statuses() == {"done": 20}


async def test_a_stubborn_publish_does_not_keep_suspects_and_others_waiting(box: Box) -> None:
    stubborn = Stubborn()

    async def publish(message: Message, delivery: Delivery) -> None:
        if message.event_type == "stubborn":
            await stubborn.wait()

    (stuck,) = box.enqueue(1, event_type="stubborn")
    dispatcher = box.dispatcher(publish, publish_timeout=timedelta(seconds=0.2), max_attempts=1)
    async with running(dispatcher):
        with stubborn:
            await until(lambda: box.row(stuck)["status"] == "processing")
            (suspect,) = box.enqueue(1)
            # Under a name that this dispatcher's limit of one attempt leaves alone until it is a suspect.
            box.conn.execute("UPDATE outbox SET reclaim_count = 1 WHERE id = %s AND status = 'pending'", [suspect])
            more = box.enqueue(20)
            await until(lambda: all(box.row(each)["status"] == "done" for each in [suspect, *more]))
            assert box.row(stuck)["status"] == "dead"


NO_DELAY: Any = 30  # seconds, as a user might think


@pytest.mark.parametrize(
    "error", [lambda: Defer(NO_DELAY), lambda: Retryable("x", delay=NO_DELAY)], ids=["Defer", "Retryable"]
)
async def test_a_delay_that_is_no_timedelta_is_one_failed_attempt(box: Box, error: Any) -> None:
    (row_id,) = box.enqueue()

    async def publish(message: Message, delivery: Delivery) -> None:
        raise error()

    async with box.dispatcher(publish) as dispatcher:
        await dispatcher.dispatch_once()
        assert dispatcher.counters.unexpected == 1
    row = box.row(row_id)
    assert (row["status"], row["attempts"]) == ("pending", 1)


async def test_a_cancelled_dispatch_once_gives_back_what_it_holds(box: Box) -> None:
    box.enqueue(20)
    ended: list[int] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(message.id)

    dispatcher = box.dispatcher(publish, publish_timeout=timedelta(seconds=1.9))
    task = asyncio.create_task(dispatcher.dispatch_once())
    await until(lambda: box.statuses() == {"processing": 20} and len(dispatcher._flight._tasks) == 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert box.statuses() == {"pending": 20}
    assert len(ended) == 20


async def test_hung_threads_are_said_out_loud(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    box.enqueue(2)
    gate = threading.Event()

    def publish(message: Message, delivery: Delivery) -> None:
        gate.wait()

    short = timedelta(milliseconds=100)
    dispatcher = box.dispatcher(publish, publish_timeout=short, concurrency=2, max_attempts=1)
    async with running(dispatcher):
        await until(lambda: box.statuses() == {"dead": 2})
        assert dispatcher.counters.hung_threads == 2
        assert "nothing of it is claimed any more" in caplog.text
        (later,) = box.enqueue(1)
        gate.set()
        await until(lambda: box.row(later)["status"] == "done")


async def test_dispatch_once_in_a_loop_ends_on_an_unexpected_failure(box: Box) -> None:
    box.enqueue(20)

    async def publish(message: Message, delivery: Delivery) -> None:
        raise ZeroDivisionError

    async with box.dispatcher(publish, on_unexpected="stop", concurrency=1) as dispatcher:
        for _ in range(2):
            with pytest.raises(UnexpectedFailure):
                await dispatcher.dispatch_once()
    assert dispatcher.counters.claimed == 1


async def test_overlapping_runs_are_refused(box: Box) -> None:
    dispatcher = box.dispatcher(quiet)
    async with running(dispatcher) as first:
        await until(lambda: dispatcher._is_busy)
        with pytest.raises(FencepostError, match="one run or dispatch_once at a time"):
            await dispatcher.run(handle_signals=False)
        with pytest.raises(FencepostError, match="one run or dispatch_once at a time"):
            await dispatcher.dispatch_once()
        with pytest.raises(FencepostError, match="running already"):
            await dispatcher.__aenter__()
        assert not first.done()


def test_queues_given_as_one_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="queues"):
        DispatcherSettings(queues="default")


async def test_an_answer_too_large_for_its_time_limit_is_asked_for_in_smaller_pieces(box: Box) -> None:
    """Every row of a claim costs 0.1 s here, by a trigger; the claim may take 0.66 s."""
    box.enqueue(30)
    box.conn.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.status = 'processing' THEN PERFORM pg_sleep(0.1); END IF; RETURN NEW; END $$"
    )
    box.conn.execute("CREATE TRIGGER slow BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION slow()")
    async with running(box.dispatcher(quiet, publish_timeout=timedelta(seconds=0.5), notify=False)):
        await until(lambda: box.statuses() == {"done": 30})


async def test_results_survive_a_privilege_that_is_gone_for_a_while(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"app_{box.conn.info.dbname}"
    box.conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret' IN ROLE pg_read_all_data, pg_write_all_data")
    seen: list[int] = []
    gate = asyncio.Event()

    async def publish(message: Message, delivery: Delivery) -> None:
        seen.append(message.id)
        await gate.wait()

    row_ids = box.enqueue(10)
    dispatcher = box.dispatcher(publish, lease=timedelta(seconds=20), publish_timeout=timedelta(seconds=15))
    dispatcher._store = psycopg.conninfo.make_conninfo(box.url, user=role, password="secret")  # noqa: S106
    async with running(dispatcher):
        await until(lambda: len(seen) == 10)
        box.conn.execute(f"REVOKE pg_write_all_data FROM {role}")
        gate.set()
        # The writes are refused meanwhile, over and over.
        await until(lambda: sum("permission denied" in str(record.getMessage()) for record in caplog.records) >= 3)
        assert box.statuses() == {"processing": 10}
        box.conn.execute(f"GRANT pg_write_all_data TO {role}")
        await until(lambda: box.statuses() == {"done": 10})
    assert sorted(seen) == sorted(row_ids)
    box.conn.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("kind", ["blocking", "stubborn", "raising"])
async def test_a_close_that_does_not_end_holds_nobody_up(
    box: Box, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()

    class Publisher:
        async def publish(self, message: Message, delivery: Delivery) -> None:
            pass

    class Blocking(Publisher):
        def close(self) -> None:
            gate.wait()

    class Stubborn(Publisher):
        async def close(self) -> None:
            while not gate.is_set():
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    continue

    class Raising(Publisher):
        async def close(self) -> None:
            raise ZeroDivisionError

    publisher = {"blocking": Blocking, "stubborn": Stubborn, "raising": Raising}[kind]()
    started = time.monotonic()
    try:
        async with box.dispatcher(publisher, grace=timedelta(seconds=0.3)) as dispatcher:
            await dispatcher.dispatch_once()
    finally:
        ended = time.monotonic()
        gate.set()  # else a loop that ends waits for it for ever
    assert ended - started < 5
    assert "close" in caplog.text


async def test_a_storm_of_notices_costs_a_bounded_number_of_claims(box: Box) -> None:
    async with running(box.dispatcher(quiet, poll_interval=timedelta(minutes=1))) as _:
        channel = box.outbox.catalog.names.channel
        before = _transactions(box)
        started = time.monotonic()
        for _ in range(500):
            box.conn.execute("SELECT pg_notify(%s, '')", [channel])
        elapsed = time.monotonic() - started
        spent = _transactions(box) - before - 500
    # One look in 5 ms at the most, of a few transactions each.
    assert spent < 4 * elapsed / 0.005 + 100


def _transactions(box: Box) -> int:
    row = box.conn.execute(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_message_known_to_be_lost_is_not_published(box: Box) -> None:
    """Such as a suspect whose lease ended while it waited for its turn."""
    (row_id,) = box.enqueue()
    published: list[int] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        published.append(message.id)

    async with box.dispatcher(publish, notify=False) as dispatcher:
        batch = await dispatcher._claim(dispatcher._claimer.next)
        box.expire(row_id)
        (stolen,) = box.outbox.claim(box.conn, "thief")
        batch.holdings[0].lost.set()
        await dispatcher._start(batch)
        await dispatcher._flight.landed()
        await dispatcher._finalizer.drained()
        assert dispatcher.counters.lost_leases == 1
    assert published == []
    assert box.outbox.mark_done(box.conn, stolen) == []


@pytest.mark.parametrize(
    "which", ["OLD.reclaim_count = 0 AND OLD.status = 'pending'", "OLD.status = 'processing'"]
)
async def test_a_queue_whose_claims_fail_does_not_keep_the_others_waiting(box: Box, which: str) -> None:
    """Somebody's trigger refuses every claim of one queue: of its new messages, or of its crash suspects."""
    (bad_id,) = box.enqueue(1, queue="aaa")
    if "processing" in which:
        box.outbox.claim(box.conn, "gone")
        box.expire(bad_id)
    box.conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF NEW.queue = 'aaa' AND NEW.status = 'processing' AND {which} THEN RAISE EXCEPTION 'no'; END IF; "
        "RETURN NEW; END $$"
    )
    box.conn.execute("CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()")
    good = box.enqueue(20)
    async with running(box.dispatcher(quiet)):
        await until(lambda: all(box.row(each)["status"] == "done" for each in good))
    assert box.row(bad_id)["status"] != "done"


async def test_a_heartbeat_that_is_stopped_at_once_leaves_no_thread(box: Box) -> None:
    for _ in range(5):
        async with box.dispatcher(quiet, notify=False):
            pass
    await until(lambda: not [each for each in threading.enumerate() if each.name == "fencepost heartbeat"])
