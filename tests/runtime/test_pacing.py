"""When the claim loop looks again: soon after a notice, rarely in a storm of them, ahead where that is safe."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Message, Outbox, Retryable
from fencepost.runtime.claimer import PATIENCE, RELIST, Batch, Claimer
from fencepost.runtime.held import Stage
from fencepost.runtime.lanes import FAST, LINGER
from fencepost.runtime.pacing import LEAST_PAUSE, Pacing
from fencepost.runtime.wakeup import Wakeup
from tests.runtime.box import Box, running, until
from tests.runtime.journal import Journal

LONG_POLL = timedelta(seconds=5)
"""So long that nothing in these tests may have waited for it."""

LONG: dict[str, Any] = {"lease": timedelta(seconds=30), "publish_timeout": timedelta(seconds=29)}
LISTENING = (
    "SELECT 1 FROM pg_stat_activity WHERE application_name = 'fencepost listen' "
    "AND datname = current_database() AND query LIKE 'LISTEN%'"
)

# --- pauses, without a database --------------------------------------------------------------------------

IDLE, NO_ROOM = Batch(), Batch(no_room=True)


async def spent(work: Awaitable[Any]) -> float:
    started = time.monotonic()
    await work
    return time.monotonic() - started


def wait(pacing: Pacing, batch: Batch = IDLE, *, lingers: bool = False, waits: bool = False) -> Awaitable[None]:
    return pacing.wait(batch, lingers=lingers, waits=waits)


async def test_pauses_grow_up_to_the_poll_interval_and_begin_anew_after_a_find() -> None:
    pacing = Pacing(Wakeup(), 0.08)
    pauses = [await spent(wait(pacing)) for _ in range(7)]
    assert pauses[0] < 0.07
    assert pauses[3] > LEAST_PAUSE
    assert all(pause >= 0.07 for pause in pauses[5:])
    pacing.found()
    assert await spent(wait(pacing)) < 0.07


async def test_a_notice_ends_an_idle_wait_and_a_wait_for_room() -> None:
    for batch in (IDLE, NO_ROOM):
        wakeup = Wakeup()
        pacing = Pacing(wakeup, 60.0)
        pacing._pause = 60.0
        waiting = asyncio.ensure_future(wait(pacing, batch))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        wakeup.notice()
        await asyncio.wait_for(waiting, 5)


async def test_a_notice_that_came_before_the_wait_is_not_lost() -> None:
    wakeup = Wakeup()
    pacing = Pacing(wakeup, 60.0)
    pacing._pause = 60.0
    wakeup.notice()
    assert await spent(wait(pacing)) < 5
    # Whoever has no room, or nothing but queues that are held back, looks again until it is known which queue the
    # notice was about.
    for batch in (NO_ROOM, IDLE):
        wakeup.notice()
        assert await spent(wait(pacing, batch)) < 5
        assert RELIST * 0.9 * 0.9 < await spent(wait(pacing, batch)) < 5


async def test_room_ends_a_wait_for_room_and_lingering_is_short() -> None:
    pacing = Pacing(Wakeup(), 60.0)
    waiting = asyncio.ensure_future(wait(pacing, NO_ROOM))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    pacing.room()
    await asyncio.wait_for(waiting, 5)
    assert await spent(wait(pacing, NO_ROOM, lingers=True)) >= LINGER * 0.9


async def test_results_end_a_wait_for_a_message_that_is_being_published() -> None:
    pacing = Pacing(Wakeup(), 60.0)
    waiting = asyncio.ensure_future(wait(pacing, waits=True))
    await asyncio.sleep(0)
    pacing.written(False)
    await asyncio.wait_for(waiting, 5)
    assert PATIENCE * 0.9 <= await spent(wait(pacing, waits=True)) < 5


async def test_a_promotion_is_something_to_claim() -> None:
    pacing = Pacing(Wakeup(), 60.0)
    pacing._pause = 60.0
    pacing.written(True)
    assert await spent(wait(pacing)) < 5


@pytest.mark.parametrize("batch", [IDLE, NO_ROOM])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_stop_ends_every_wait(batch: Batch, waits: bool) -> None:
    pacing = Pacing(Wakeup(), 60.0)
    pacing._pause = 60.0
    waiting = asyncio.ensure_future(wait(pacing, batch, waits=waits))
    await asyncio.sleep(0)
    pacing.stop()
    await asyncio.wait_for(waiting, 5)


async def test_futile_notices_cost_a_look_in_a_few_milliseconds_at_the_most() -> None:
    wakeup = Wakeup()
    pacing = Pacing(wakeup, 60.0)
    ended, looks = time.monotonic() + 0.3, 0
    while time.monotonic() < ended:
        wakeup.notice()
        await wait(pacing)
        looks += 1
    assert 2 <= looks <= 0.3 / LEAST_PAUSE + 3


# --- through the dispatcher ------------------------------------------------------------------------------


async def done(box: Box, row_id: int) -> float:
    """Wait until a message was delivered; return how many seconds that took."""
    started = time.monotonic()
    await until(lambda: box.row(row_id)["status"] == "done")
    return time.monotonic() - started


async def test_an_idle_dispatcher_publishes_a_new_message_within_milliseconds(box: Box) -> None:
    took: list[float] = []
    seen = asyncio.Event()

    async def publish(message: Message) -> None:
        seen.set()

    async with running(box.dispatcher(publish, poll_interval=LONG_POLL)):
        await until(lambda: box.conn.execute(LISTENING).fetchall())
        for n in range(15):
            await asyncio.sleep(0.03)
            seen.clear()
            started = time.monotonic()
            box.enqueue(1, queue=f"q{n % 3}")
            await asyncio.wait_for(seen.wait(), 4)
            took.append(time.monotonic() - started)
    assert statistics.median(took) < 0.1, took
    assert max(took) < 1, took


async def test_what_came_without_a_notice_soon_after_another_one_is_found_soon(box: Box) -> None:
    """Producers that commit at the same time leave all but one notice out."""
    silent = Outbox(notify=False, allow_autocommit=True)
    async with running(box.dispatcher(Journal(), poll_interval=LONG_POLL)):
        await until(lambda: box.conn.execute(LISTENING).fetchall())
        for pause in (0.0, 0.01, 0.05):
            await done(box, box.enqueue(1)[0])
            await asyncio.sleep(pause)
            assert await done(box, silent.enqueue(box.conn, "silent", None).id) < 1.5


async def test_a_storm_of_notices_for_what_is_not_due_costs_few_claims(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    original = Claimer.next

    async def counted(self: Claimer) -> Batch:
        nonlocal looks
        looks += 1
        return await original(self)

    async with running(box.dispatcher(Journal(), poll_interval=LONG_POLL)):
        await until(lambda: box.conn.execute(LISTENING).fetchall())
        await done(box, box.enqueue(1)[0])
        monkeypatch.setattr(Claimer, "next", counted)
        started = time.monotonic()
        while time.monotonic() < started + 0.5:
            box.outbox.enqueue(box.conn, "later", None, delay=timedelta(hours=1))
            box.conn.execute("SELECT pg_notify(%s, '')", [box.outbox.catalog.names.channel])
            await asyncio.sleep(0)
        elapsed = time.monotonic() - started
        assert 0 < looks <= elapsed / LEAST_PAUSE + 10
        assert await done(box, box.enqueue(1)[0]) < 1


async def test_a_retry_that_is_due_soon_is_not_left_to_the_poll(box: Box) -> None:
    (row_id,) = box.enqueue(1)
    journal = Journal({row_id: [Retryable("1"), Retryable("2"), Retryable("3")]})
    async with running(box.dispatcher(journal, poll_interval=LONG_POLL)):
        assert await done(box, row_id) < 2
    assert len(journal.started) == 4


async def test_the_runs_of_a_hot_key_follow_each_other_without_a_pause(box: Box) -> None:
    ids = box.enqueue(300, ordering_key="k")
    journal = Journal()
    async with running(box.dispatcher(journal, batch=10, concurrency=10, poll_interval=LONG_POLL, notify=False)):
        assert await done(box, ids[-1]) < LONG_POLL.total_seconds()
    assert journal.accepted == ids


async def test_fast_publishes_are_claimed_ahead(box: Box) -> None:
    gate = asyncio.Event()

    async def publish(message: Message) -> None:
        if message.event_type == "wait":
            await gate.wait()

    box.enqueue(60)
    box.enqueue(50, event_type="wait")
    async with running(box.dispatcher(publish, concurrency=10, batch=5, **LONG)):
        # Ten are being published, and two batches of five stand in line.
        ahead = {"done": 60, "processing": 20, "pending": 30}
        await until(lambda: box.statuses() == ahead)
        await asyncio.sleep(0.1)
        assert box.statuses() == ahead
        gate.set()
        await until(lambda: box.statuses() == {"done": 110})


async def test_slow_publishes_are_not_claimed_ahead(box: Box) -> None:
    box.enqueue(40)
    journal = Journal(pause=2 * FAST)
    dispatcher = box.dispatcher(journal, concurrency=5, batch=5, **LONG)
    async with running(dispatcher):
        await until(lambda: journal.started)
        while len(journal.accepted) < 20:
            assert sum(len(dispatcher._held.in_stage(each)) for each in (Stage.WAITING, Stage.PUBLISHING)) <= 5
            await asyncio.sleep(0.005)


async def test_claims_go_on_while_others_are_being_published(box: Box) -> None:
    gate = asyncio.Event()
    started: set[int] = set()

    async def publish(message: Message) -> None:
        started.add(message.id)
        await gate.wait()

    async with running(box.dispatcher(publish, concurrency=30, batch=10, **LONG)):
        for n in range(1, 4):
            box.enqueue(10)
            await until(lambda n=n: len(started) == 10 * n)  # type: ignore[misc]
        gate.set()
        await until(lambda: box.statuses() == {"done": 30})
