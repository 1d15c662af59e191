"""Queues through the shipped dispatcher: their own settings, pauses, shares, and that none delays another."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from fencepost import Delivery, Dispatcher, Message, Permanent, Retryable
from tests.runtime.box import Box, running, until
from tests.runtime.journal import SHORT, Journal

SECOND = timedelta(seconds=1)
LONG_POLL = timedelta(seconds=5)


async def quiet(message: Message, delivery: Delivery) -> None:
    pass


def set_queue(box: Box, queue: str, **changes: Any) -> None:
    box.outbox.set_queue(box.conn, queue, "ann", **changes)


async def settled_anew(dispatcher: Dispatcher, times: int = 1) -> None:
    """Wait until a dispatcher has read the queues' settings again, of which each look for work follows one."""
    for _ in range(times):
        began = time.monotonic()
        await until(lambda began=began: (dispatcher._claimer._settled_at or 0.0) > began)  # type: ignore[misc]


def many(box: Box, queue: str, status: str = "done") -> int:
    found = box.conn.execute(
        "SELECT count(*) FROM outbox WHERE queue = %s AND status = %s", [queue, status]
    ).fetchone()
    assert found is not None
    return int(found[0])


class Gate:
    """Publishes that wait until it is opened; counts those under way by queue."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def publish(self, message: Message) -> None:
        queue = message.queue
        self.under_way[queue] += 1
        self.most[queue] = max(self.most[queue], self.under_way[queue])
        try:
            await self.opened.wait()
        finally:
            self.under_way[queue] -= 1


LONG: dict[str, Any] = {"lease": 30 * SECOND, "publish_timeout": 29 * SECOND}


# --- settings of their own -------------------------------------------------------------------------------


async def test_each_queue_has_its_own_concurrency_and_it_can_be_changed_in_flight(box: Box) -> None:
    set_queue(box, "narrow", concurrency=2)
    box.enqueue(30, queue="narrow")
    box.enqueue(30, queue="wide")
    gate = Gate()
    async with running(box.dispatcher(gate, concurrency=10, **LONG)):
        await until(lambda: gate.under_way == {"narrow": 2, "wide": 10})
        set_queue(box, "narrow", concurrency=5)
        await until(lambda: gate.under_way == {"narrow": 5, "wide": 10})
        set_queue(box, "wide", concurrency=20)
        await until(lambda: gate.under_way == {"narrow": 5, "wide": 20})
        gate.opened.set()
        await until(lambda: box.statuses() == {"done": 60})
    assert gate.most == {"narrow": 5, "wide": 20}


async def test_leases_of_one_second_and_of_a_minute_in_one_worker_are_each_renewed_at_their_own_third(
    box: Box,
) -> None:
    set_queue(box, "short", lease=SECOND, publish_timeout=timedelta(seconds=0.99))
    set_queue(box, "long", lease=60 * SECOND, publish_timeout=50 * SECOND)
    gate = Gate()
    ends: dict[str, set[datetime]] = {"short": set(), "long": set()}

    async def watch(message: Message) -> None:
        if message.queue == "short":
            # Five publishes of 0.6 s, one after another: a beat is due in each.
            await asyncio.sleep(0.6)
        else:
            await gate.publish(message)

    (long_id,) = box.enqueue(1, queue="long")
    short_ids = box.enqueue(5, queue="short", ordering_key="k")
    async with running(box.dispatcher(watch, **LONG)) as _:
        while many(box, "short") < 5:
            for row_id in [*short_ids, long_id]:
                row = box.row(row_id)
                if row["lease_until"] is not None:
                    ends[row["queue"]].add(row["lease_until"])
            await asyncio.sleep(0.01)
        gate.opened.set()
        await until(lambda: box.statuses() == {"done": 6})
    assert len(ends["short"]) > 5
    assert len(ends["long"]) == 1  # 60 s are long: 3 s later no beat was due
    assert {box.row(each)["attempts"] for each in [long_id, *short_ids]} == {1}


async def test_a_lease_changed_while_it_runs_holds_for_the_next_claim(box: Box) -> None:
    gate = Gate()
    dispatcher = box.dispatcher(gate, **LONG)
    async with running(dispatcher):
        (first,) = box.enqueue(1)
        await until(lambda: gate.under_way["default"] == 1)
        set_queue(box, "default", lease=SECOND / 2, publish_timeout=SECOND / 4)
        await settled_anew(dispatcher)
        (second,) = box.enqueue(1)
        await until(lambda: box.row(second)["attempts"] >= 1)
        spans = box.conn.execute(
            "SELECT id, lease_until - clock_timestamp() FROM outbox WHERE status = 'processing' ORDER BY id"
        ).fetchall()
        assert spans[0][1] > 5 * SECOND
        await until(lambda: "within 0.25 s" in (box.row(second)["last_error"] or ""))
        assert box.row(first)["attempts"] == 1
        gate.opened.set()
        await until(lambda: box.statuses() == {"done": 2})


async def test_attempts_and_backoff_of_a_queue_take_effect_without_a_restart(box: Box) -> None:
    async def fails(message: Message) -> None:
        raise Retryable("no")

    dispatcher = box.dispatcher(fails, max_attempts=50)
    async with running(dispatcher):
        await until(lambda: dispatcher._claimer._settled_at is not None)
        set_queue(box, "few", max_attempts=2)
        set_queue(box, "slow", backoff_base=3600 * SECOND, backoff_cap=7200 * SECOND)
        await settled_anew(dispatcher)
        few, slow = box.enqueue(3, queue="few"), box.enqueue(3, queue="slow")
        await until(lambda: many(box, "few", "dead") == 3)
        assert {(box.row(each)["outcome"], box.row(each)["attempts"]) for each in few} == {("exhausted", 2)}
        await until(lambda: {box.row(each)["attempts"] for each in slow} == {1})
        (other,) = box.enqueue(1, queue="other")
        await until(lambda: box.row(other)["status"] == "dead")
        assert box.row(other)["attempts"] == 50
    waits = [box.row(each)["available_at"] - box.row(each)["created_at"] for each in slow]
    assert max(waits) > 60 * SECOND


async def test_the_delivery_tells_the_queue_s_own_limit_of_attempts(box: Box) -> None:
    set_queue(box, "few", max_attempts=3)
    told: dict[str, int] = {}

    async def publish(message: Message, delivery: Delivery) -> None:
        told[message.queue] = delivery.max_attempts

    box.enqueue(1, queue="few")
    box.enqueue(1)
    async with running(box.dispatcher(publish)):
        await until(lambda: box.statuses() == {"done": 2})
    assert told == {"few": 3, "default": 12}


async def test_the_reaper_honours_a_queue_s_limit(box: Box) -> None:
    set_queue(box, "once", max_attempts=1)
    ids = {queue: box.enqueue(1, queue=queue)[0] for queue in ("once", "default")}
    box.outbox.claim(box.conn, "gone", queues=["once"])
    box.outbox.claim(box.conn, "gone", queues=["default"])
    for row_id in ids.values():
        box.expire(row_id)
    async with running(box.dispatcher(quiet)):
        await until(lambda: box.row(ids["default"])["status"] == "done")
        await until(lambda: box.row(ids["once"])["status"] == "dead")
    assert box.row(ids["once"])["outcome"] == "crashed"


async def test_settings_that_cannot_work_here_are_said_once_and_others_go_on(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    set_queue(box, "odd", lease=SECOND / 2)  # below the worker's publish time-out of a second
    odd = box.enqueue(2, queue="odd")
    dispatcher = box.dispatcher(quiet)
    async with running(dispatcher):
        for _ in range(3):
            good = box.enqueue(3)
            await until(lambda good=good: all(box.row(each)["status"] == "done" for each in good))  # type: ignore[misc]
            await settled_anew(dispatcher)
        assert many(box, "odd", "pending") == 2
        told = [record for record in caplog.records if "queue odd is not served" in record.getMessage()]
        assert len(told) == 1
        set_queue(box, "odd", publish_timeout=SECOND / 4)
        await until(lambda: many(box, "odd") == 2)
    assert [box.row(each)["attempts"] for each in odd] == [1, 1]


# --- pauses ----------------------------------------------------------------------------------------------


async def test_a_pause_gives_back_what_is_in_line_and_lets_what_runs_end(box: Box) -> None:
    set_queue(box, "mail", concurrency=5)
    gate = Gate()

    async def publish(message: Message) -> None:
        if message.event_type == "slow":
            await gate.publish(message)

    box.enqueue(60, queue="mail")  # fast publishes, so that it claims ahead
    ids = box.enqueue(30, event_type="slow", queue="mail")
    dispatcher = box.dispatcher(publish, **LONG)
    async with running(dispatcher):
        await until(lambda: gate.under_way["mail"] == 5 and many(box, "mail", "processing") > 5)
        box.outbox.pause_queue(box.conn, "mail", "ann")
        await until(lambda: many(box, "mail", "processing") == 5)
        assert many(box, "mail", "pending") == 25
        gate.opened.set()
        await until(lambda: many(box, "mail") == 65)
        others = box.enqueue(10)
        await until(lambda: all(box.row(each)["status"] == "done" for each in others))
        await settled_anew(dispatcher, times=2)
        assert many(box, "mail", "pending") == 25
        assert sum(box.row(each)["attempts"] for each in ids) == 5
        box.outbox.resume_queue(box.conn, "mail", "ann")
        await until(lambda: many(box, "mail") == 90)
    assert {box.row(each)["attempts"] for each in ids} == {1}


async def test_a_paused_queue_is_left_alone_with_its_suspects_and_its_keys(box: Box) -> None:
    box.outbox.pause_queue(box.conn, "mail", "ann")
    (suspect,) = box.enqueue(1, queue="mail")
    box.conn.execute("UPDATE outbox SET reclaim_count = 1 WHERE id = %s", [suspect])
    box.enqueue(3, queue="mail", ordering_key="k")
    before = [box.row(each) for each in range(suspect, suspect + 4)]
    dispatcher = box.dispatcher(quiet)
    async with running(dispatcher):
        others = box.enqueue(3)
        await until(lambda: all(box.row(each)["status"] == "done" for each in others))
        await settled_anew(dispatcher, times=2)
        assert [box.row(each) for each in range(suspect, suspect + 4)] == before
        box.outbox.resume_queue(box.conn, "mail", "ann")
        await until(lambda: box.statuses() == {"done": 7})


# --- none delays another ---------------------------------------------------------------------------------


async def test_a_queue_whose_publisher_hangs_delays_no_other_one(box: Box) -> None:
    gate = Gate()

    async def publish(message: Message) -> None:
        if message.queue == "hangs":
            await gate.publish(message)

    box.enqueue(200, queue="hangs")
    async with running(box.dispatcher(publish, concurrency=5, batch=5, poll_interval=LONG_POLL, **LONG)):
        await until(lambda: gate.under_way["hangs"] == 5)
        for n in range(5):
            await asyncio.sleep(0.05)
            started = time.monotonic()
            (row_id,) = box.enqueue(1, queue=f"fine{n}")
            await until(lambda row_id=row_id: box.row(row_id)["status"] == "done")  # type: ignore[misc]
            assert time.monotonic() - started < 1  # not left to the poll
        assert many(box, "hangs") == 0
        gate.opened.set()
        await until(lambda: many(box, "hangs") == 200)


async def test_a_queue_that_is_busy_delays_no_other_one_until_the_next_poll(box: Box) -> None:
    box.enqueue(4_000, queue="busy")
    journal = Journal(pause=0.01)
    async with running(box.dispatcher(journal, concurrency=10, batch=10, poll_interval=LONG_POLL)):
        await until(lambda: len(journal.accepted) > 100)
        for n in range(3):
            started = time.monotonic()
            (row_id,) = box.enqueue(1, queue=f"fine{n}")
            await until(lambda row_id=row_id: row_id in journal.accepted)  # type: ignore[misc]
            assert time.monotonic() - started < 1.5
        assert many(box, "busy") < 4_000


async def test_threads_that_hang_in_one_queue_delay_no_other_one(box: Box) -> None:
    gate = threading.Event()

    def publish(message: Message) -> None:
        if message.queue == "hangs":
            gate.wait()

    hanging = box.enqueue(3, queue="hangs")
    async with running(box.dispatcher(publish, concurrency=3, publish_timeout=SHORT, max_attempts=1)):
        await until(lambda: many(box, "hangs", "dead") == 3)
        box.enqueue(50, queue="fine")
        await until(lambda: many(box, "fine") == 50)
        gate.set()
    assert {box.row(each)["outcome"] for each in hanging} == {"exhausted"}


async def test_dead_and_delayed_messages_of_a_queue_cost_others_nothing(box: Box) -> None:
    dead = box.enqueue(20, queue="dead")
    box.enqueue(20, queue="delayed", delay=3600 * SECOND)
    journal = Journal({each: [Permanent("no")] for each in dead})
    async with running(box.dispatcher(journal)):
        await until(lambda: many(box, "dead", "dead") == 20)
        box.enqueue(20)
        await until(lambda: many(box, "default") == 20)


# --- shares ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weight", "share"), [(1, 0.5), (3, 0.75), (9, 0.9)])
async def test_busy_queues_share_by_weight_and_neither_starves(box: Box, weight: int, share: float) -> None:
    set_queue(box, "heavy", weight=weight)
    for _ in range(2):
        for queue in ("light", "heavy"):
            box.enqueue(1_000, queue=queue)
    served: list[str] = []

    async def publish(message: Message) -> None:
        served.append(message.queue)

    async with running(box.dispatcher(publish, batch=10, concurrency=10)):
        await until(lambda: len(served) >= 800)
    counted = Counter(served[:800])
    assert abs(counted["heavy"] / 800 - share) < 0.08, counted
    # In every stretch, not only in the end. (One has room for several turns of the light queue: where its claim is
    # late on a busy machine, claims of the heavy one on the other connection go on meanwhile.)
    for start in range(0, 800, 400):
        assert Counter(served[start : start + 400]).keys() == {"heavy", "light"}, served


async def test_two_hundred_queues_with_a_message_each_drain(box: Box) -> None:
    for n in range(200):
        box.enqueue(1, queue=f"q{n}")
    journal = Journal()
    started = time.monotonic()
    async with running(box.dispatcher(journal, poll_interval=LONG_POLL)):
        await until(lambda: box.statuses() == {"done": 200})
    assert len(journal.accepted) == 200
    assert time.monotonic() - started < 5


async def test_only_named_queues_are_served_whatever_their_settings(box: Box) -> None:
    set_queue(box, "other", weight=1_000, concurrency=7)
    box.enqueue(5, queue="other")
    box.enqueue(5, queue="mine")
    async with running(box.dispatcher(quiet, queues=["mine", "nosuch"])):
        await until(lambda: many(box, "mine") == 5)
    assert many(box, "other", "pending") == 5


# --- limits of the links ---------------------------------------------------------------------------------


async def test_no_wait_of_a_worker_outlives_the_shortest_lease(box: Box) -> None:
    dispatcher = box.dispatcher(quiet, **LONG)

    def limits() -> set[str]:
        links = (dispatcher._claim_link, dispatcher._finalize_link)
        return {f"{link._limits.statement:.2f}" for link in links}

    async with running(dispatcher):
        box.enqueue(1)
        await until(lambda: box.statuses() == {"done": 1})
        assert limits() == {"10.00"}
        set_queue(box, "short", lease=3 * SECOND, publish_timeout=SECOND)
        await until(lambda: limits() == {"1.00"})
        box.enqueue(1, queue="short")
        box.enqueue(1)
        await until(lambda: box.statuses() == {"done": 3})
        shown = box.conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost %%' "
            "AND datname = current_database()"
        ).fetchone()
        assert shown is not None
        set_queue(box, "short", lease=None, publish_timeout=None)
        await until(lambda: limits() == {"10.00"})
    assert dispatcher.counters.lost_leases == 0
