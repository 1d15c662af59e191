"""The drain, seen from inside one process."""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import timedelta

import pytest

from fencepost import Delivery, Message
from tests.runtime.box import Box, Stubborn, running, until


async def hangs(message: Message, delivery: Delivery) -> None:
    await asyncio.Event().wait()


async def test_a_cancelled_run_drains_before_it_passes_the_cancellation_on(box: Box) -> None:
    box.enqueue(5)
    gate = asyncio.Event()
    started: list[int] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        started.append(message.id)
        await gate.wait()

    dispatcher = box.dispatcher(publish, publish_timeout=timedelta(seconds=1.9))
    task = asyncio.create_task(dispatcher.run(handle_signals=False))
    await until(lambda: len(started) == 5)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert box.statuses() == {"done": 5}


async def test_a_second_cancellation_hurries(box: Box) -> None:
    box.enqueue(1)
    started_publish = asyncio.Event()

    async def publish(message: Message, delivery: Delivery) -> None:
        started_publish.set()
        await asyncio.Event().wait()

    dispatcher = box.dispatcher(publish, grace=timedelta(seconds=60), publish_timeout=timedelta(seconds=1.9))
    task = asyncio.create_task(dispatcher.run(handle_signals=False))
    await started_publish.wait()
    started = time.monotonic()
    task.cancel()
    await asyncio.sleep(0.01)  # the first one is being handled
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 1.5
    assert box.statuses() == {"pending": 1}


async def test_the_signal_handlers_of_the_host_program_come_back(box: Box) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    dispatcher = box.dispatcher(hangs)
    async with dispatcher:
        task = asyncio.create_task(dispatcher.run())
        await until(lambda: signal.getsignal(signal.SIGTERM) != before[0])
        signal.raise_signal(signal.SIGTERM)
        assert await task is True
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


async def test_a_swallowed_cancellation_does_not_hold_up_the_exit(box: Box) -> None:
    (row_id,) = box.enqueue(1)
    stubborn, started_publish = Stubborn(), asyncio.Event()

    async def publish(message: Message, delivery: Delivery) -> None:
        started_publish.set()
        await stubborn.wait()

    dispatcher = box.dispatcher(publish, grace=timedelta(0), publish_timeout=timedelta(seconds=1.9))
    async with dispatcher:
        with stubborn:
            task = asyncio.create_task(dispatcher.run(handle_signals=False))
            await started_publish.wait()
            started = time.monotonic()
            dispatcher.stop()
            assert await task is False
            assert time.monotonic() - started < 1.0
            row = box.row(row_id)
            assert (row["status"], row["attempts"]) == ("pending", 1)


async def test_a_suspect_that_waits_for_its_turn_goes_back_with_its_attempt(box: Box) -> None:
    (suspect_id,) = box.enqueue(1)
    box.outbox.claim(box.conn, "dead worker")
    box.expire(suspect_id)
    box.enqueue(1, event_type="long")
    gate = asyncio.Event()

    async def publish(message: Message, delivery: Delivery) -> None:
        if message.event_type == "long":
            await gate.wait()

    dispatcher = box.dispatcher(publish, publish_timeout=timedelta(seconds=1.9))
    dispatcher_started = asyncio.Event()

    async with dispatcher:
        # A normal batch first: the suspect is then claimed, and waits until nothing is in flight.
        dispatcher._claimer._suspects_at = time.monotonic() + 0.2
        task = asyncio.create_task(dispatcher.run(handle_signals=False))
        await until(lambda: box.statuses() == {"processing": 2})
        await until(lambda: box.row(suspect_id)["lease_owner"] == "w1")
        dispatcher.stop()
        dispatcher_started.set()
        await until(lambda: box.row(suspect_id)["status"] == "pending")
        gate.set()
        assert await task is True
    row = box.row(suspect_id)
    assert (row["attempts"], row["reclaim_count"], row["lease_version"]) == (1, 1, 2)


async def test_what_waits_behind_a_publish_of_its_key_goes_back_at_once(box: Box) -> None:
    """It must not be left to its lease, and charged for it, where the process is killed in its grace time."""
    first, second, third = box.enqueue(3, ordering_key="k")
    gate, started = asyncio.Event(), asyncio.Event()

    async def publish(message: Message) -> None:
        started.set()
        await gate.wait()

    async with box.dispatcher(publish, publish_timeout=timedelta(seconds=1.9)) as dispatcher:
        task = asyncio.create_task(dispatcher.run(handle_signals=False))
        await started.wait()
        assert box.statuses() == {"processing": 3}
        dispatcher.stop()
        try:
            await until(lambda: box.statuses() == {"processing": 1, "pending": 2})
            assert box.row(first)["status"] == "processing"
        finally:
            gate.set()
        assert await task is True
    assert box.row(first)["status"] == "done"
    for row in map(box.row, (second, third)):
        assert (row["status"], row["attempts"]) == ("pending", 0)


async def test_a_stopped_dispatcher_can_be_followed_by_another(box: Box) -> None:
    async def publish(message: Message, delivery: Delivery) -> None:
        pass

    for turn in range(1, 4):
        box.enqueue(10)
        async with running(box.dispatcher(publish)):
            await until(lambda expected=10 * turn: box.statuses() == {"done": expected})  # type: ignore[misc]  # bound in this turn


async def test_a_stop_is_heard_while_the_database_cannot_be_reached(box: Box) -> None:
    nowhere = box.dispatcher(hangs)
    nowhere._store = "postgresql://nobody@127.0.0.1:1/nothing"
    task = asyncio.create_task(nowhere.run(handle_signals=False))
    await asyncio.sleep(0.2)  # it tries to connect by now; there is nothing to see of that from outside
    assert not task.done()
    nowhere.stop()
    async with asyncio.timeout(5):
        assert await task is True


async def test_a_second_stop_gives_back_what_a_claim_under_way_takes(box: Box) -> None:
    """Such a claim may be committed already: without its answer its rows would be leased to nobody."""
    box.enqueue(2_000)

    async def publish(message: Message, delivery: Delivery) -> None:
        await asyncio.sleep(0.005)  # work, not a wait for something

    for _ in range(8):
        dispatcher = box.dispatcher(publish, batch=50, concurrency=50, lease=timedelta(seconds=30))
        async with dispatcher:
            task = asyncio.create_task(dispatcher.run(handle_signals=False))
            claimed = dispatcher.counters.claimed
            await until(lambda: dispatcher.counters.claimed > claimed + 50)  # noqa: B023 - awaited here
            dispatcher.stop()
            dispatcher.stop()
            await task
        assert box.statuses().get("processing", 0) == 0
