"""What each way a publish can end does to the row, through the shipped dispatcher on a real server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Defer, Delivery, Message, Permanent, Retryable, Route, UnexpectedFailure
from tests.runtime.box import Box, Stubborn, running, until


def raising(error: BaseException) -> Callable[[Message, Delivery], Any]:
    async def publish(message: Message, delivery: Delivery) -> None:
        raise error

    return publish


def raising_in_thread(error: BaseException) -> Callable[[Message, Delivery], Any]:
    def publish(message: Message, delivery: Delivery) -> None:
        raise error

    return publish


async def dispatch(box: Box, publisher: Any, **options: Any) -> int:
    async with box.dispatcher(publisher, **options) as dispatcher:
        return await dispatcher.dispatch_once()


async def test_delivered_is_done_with_the_bytes_that_were_enqueued(box: Box) -> None:
    seen: list[tuple[Message, Delivery]] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        seen.append((message, delivery))

    (row_id,) = box.enqueue(headers={"x": "é"}, aggregate=("order", "1"))
    assert await dispatch(box, publish) == 1
    row = box.row(row_id)
    assert (row["status"], row["outcome"], row["attempts"]) == ("done", "delivered", 1)
    message, delivery = seen[0]
    assert message.payload == b'{"n":0}'
    assert dict(message.headers) == {"x": "é"}
    assert (delivery.attempt, delivery.max_attempts, delivery.token) == (1, 12, 1)
    assert 0 < delivery.remaining() <= 2
    assert not delivery.lost


async def test_three_retryable_failures_at_limit_three_are_pending_pending_dead(box: Box) -> None:
    (row_id,) = box.enqueue()
    states = []
    async with box.dispatcher(raising(Retryable("broker is away")), max_attempts=3) as dispatcher:
        for _ in range(3):
            await until(lambda: _is_due(box, row_id))
            assert await dispatcher.dispatch_once() == 1
            row = box.row(row_id)
            states.append((row["status"], row["attempts"], row["outcome"]))
    assert states == [("pending", 1, None), ("pending", 2, None), ("dead", 3, "exhausted")]
    assert box.row(row_id)["last_error"] == "broker is away"


def _is_due(box: Box, row_id: int) -> bool:
    found = box.conn.execute("SELECT available_at <= clock_timestamp() FROM outbox WHERE id = %s", [row_id])
    row = found.fetchone()
    return bool(row and row[0])


async def test_a_defer_gives_the_attempt_back_and_comes_later(box: Box) -> None:
    (row_id,) = box.enqueue()
    await dispatch(box, raising(Defer(timedelta(hours=1), "the order is not paid yet")))
    row = box.row(row_id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("pending", 0, "the order is not paid yet")
    wait = row["available_at"] - row["created_at"]
    assert timedelta(minutes=59) < wait < timedelta(minutes=61)


async def test_a_defer_past_the_age_limit_is_dead(box: Box) -> None:
    (row_id,) = box.enqueue()
    box.conn.execute("UPDATE outbox SET created_at = now() - interval '2 days'")
    await dispatch(box, raising(Defer(timedelta(hours=1))), max_age=timedelta(days=1))
    assert (box.row(row_id)["status"], box.row(row_id)["outcome"]) == ("dead", "expired")


async def test_a_permanent_failure_is_dead_at_once(box: Box) -> None:
    (row_id,) = box.enqueue()
    await dispatch(box, raising(Permanent("no such customer")))
    row = box.row(row_id)
    assert (row["status"], row["outcome"], row["attempts"]) == ("dead", "permanent", 1)


async def test_a_receiver_may_slow_us_down_but_not_past_the_cap(box: Box) -> None:
    (row_id,) = box.enqueue()
    options = {"backoff_base": timedelta(seconds=1), "backoff_cap": timedelta(seconds=30)}
    await dispatch(box, raising(Retryable("429", delay=timedelta(days=3))), **options)
    row = box.row(row_id)
    assert timedelta(seconds=29) < row["available_at"] - row["created_at"] < timedelta(seconds=35)


async def test_without_a_route_a_message_is_visibly_dead_and_its_neighbours_are_delivered(box: Box) -> None:
    (lost_id,) = box.enqueue(event_type="nobody.listens")
    (good_id,) = box.enqueue(event_type="order.created")

    async def publish(message: Message, delivery: Delivery) -> None:
        pass

    await dispatch(box, [Route("order.*", publish)])
    assert (box.row(lost_id)["status"], box.row(lost_id)["outcome"]) == ("dead", "unroutable")
    assert "nobody.listens" in box.row(lost_id)["last_error"]
    assert box.row(good_id)["status"] == "done"


BASE_EXCEPTIONS = [
    RuntimeError("boom"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    StopIteration(),
    TimeoutError("of the publisher's own"),
]


@pytest.mark.parametrize("error", BASE_EXCEPTIONS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", [raising, raising_in_thread], ids=["async", "thread"])
async def test_anything_a_publisher_raises_is_one_failed_attempt(
    box: Box, error: BaseException, kind: Callable[[BaseException], Any], caplog: pytest.LogCaptureFixture
) -> None:
    (bad_id,) = box.enqueue(event_type="bad")
    (good_id,) = box.enqueue(event_type="good")

    async def fine(message: Message, delivery: Delivery) -> None:
        pass

    async with box.dispatcher([Route("bad", kind(error)), Route("*", fine)]) as dispatcher:
        await dispatcher.dispatch_once()
        assert dispatcher.counters.unexpected == 1
    row = box.row(bad_id)
    assert (row["status"], row["attempts"]) == ("pending", 1)
    assert box.row(good_id)["status"] == "done"
    [logged] = [record for record in caplog.records if record.name == "fencepost.publish"]
    assert logged.levelno == logging.ERROR
    assert logged.exc_info is not None


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("NUL \x00 inside"),
        Retryable("lone \ud800 surrogate"),
        Permanent("x" * 1_000_000),
        Unprintable(),
        Defer(timedelta(0), "\x00"),
        Retryable(),
    ],
    ids=["nul", "surrogate", "1 MB", "unprintable", "defer nul", "empty"],
)
async def test_no_error_text_can_keep_a_failure_from_being_recorded(box: Box, error: Exception) -> None:
    (row_id,) = box.enqueue()
    async with box.dispatcher(raising(error)) as dispatcher:
        await dispatcher.dispatch_once()
        assert dispatcher.counters.finalize_failures == 0
    row = box.row(row_id)
    assert row["status"] in ("pending", "dead")
    assert row["last_error"]
    assert len(row["last_error"]) < 5_000


async def test_on_unexpected_stop_ends_the_run_and_gives_the_rest_back(box: Box) -> None:
    box.enqueue(event_type="bad")
    box.enqueue(20, event_type="good")

    async def publish(message: Message, delivery: Delivery) -> None:
        if message.event_type == "bad":
            raise ZeroDivisionError
        await asyncio.Event().wait()  # a neighbour that would go on for its whole time-out

    dispatcher = box.dispatcher(publish, on_unexpected="stop", concurrency=1, notify=False)
    with pytest.raises(UnexpectedFailure, match="ZeroDivisionError"):
        await dispatcher.run(handle_signals=False)
    assert box.statuses() == {"pending": 21}
    attempts: dict[str, int] = dict(
        box.conn.execute("SELECT event_type, sum(attempts) FROM outbox GROUP BY event_type").fetchall()
    )
    assert attempts == {"bad": 1, "good": 0}


async def hangs(message: Message, delivery: Delivery) -> None:
    await asyncio.Event().wait()


async def test_a_time_out_is_retryable(box: Box) -> None:
    (row_id,) = box.enqueue()
    async with box.dispatcher(hangs, publish_timeout=timedelta(milliseconds=100)) as dispatcher:
        await dispatcher.dispatch_once()
        assert dispatcher.counters.timed_out == 1
    row = box.row(row_id)
    assert (row["status"], row["attempts"]) == ("pending", 1)
    assert "within 0.1 s" in row["last_error"]


async def test_a_time_out_under_manual_recovery_is_left_to_a_person(box: Box) -> None:
    (row_id,) = box.enqueue(recovery="manual")
    await dispatch(box, hangs, publish_timeout=timedelta(milliseconds=100))
    assert (box.row(row_id)["status"], box.row(row_id)["outcome"]) == ("dead", "unknown_outcome")


async def test_a_function_that_hangs_in_its_thread_keeps_its_slot_but_not_its_message(box: Box) -> None:
    (row_id,) = box.enqueue(event_type="hang")
    gate = threading.Event()

    def publish(message: Message, delivery: Delivery) -> None:
        if message.event_type == "hang":
            gate.wait()

    short = timedelta(milliseconds=100)
    dispatcher = box.dispatcher(publish, publish_timeout=short, concurrency=2, max_attempts=1)
    async with running(dispatcher):
        await until(lambda: box.row(row_id)["status"] == "dead")
        more = box.enqueue(10)
        await until(lambda: all(box.row(each)["status"] == "done" for each in more))
        assert dispatcher._flight._slots["default"].threads.abandoned == 1
        gate.set()
        await until(lambda: not any(each.threads.abandoned for each in dispatcher._flight._slots.values()))


async def test_a_publish_that_swallows_its_cancellation_is_given_up_on(box: Box) -> None:
    (row_id,) = box.enqueue(event_type="stubborn")
    stubborn = Stubborn()

    async def publish(message: Message, delivery: Delivery) -> None:
        if message.event_type == "stubborn":
            await stubborn.wait()

    short = timedelta(milliseconds=100)
    dispatcher = box.dispatcher(publish, publish_timeout=short, max_attempts=1, concurrency=2)
    async with running(dispatcher):
        with stubborn:
            await until(lambda: box.row(row_id)["status"] == "dead")
            more = box.enqueue(5)
            await until(lambda: all(box.row(each)["status"] == "done" for each in more))


async def test_a_coroutine_returned_by_a_plain_function_is_awaited(box: Box) -> None:
    (row_id,) = box.enqueue()
    awaited = []

    async def inner() -> None:
        await asyncio.sleep(0)
        awaited.append(True)

    def publish(message: Message) -> Any:
        return inner()

    await dispatch(box, publish)
    assert awaited == [True]
    assert box.row(row_id)["status"] == "done"


async def test_publishers_are_opened_and_closed_once(box: Box) -> None:
    calls: list[str] = []

    class Publisher:
        async def open(self) -> None:
            calls.append("open")

        async def publish(self, message: Message, delivery: Delivery) -> None:
            calls.append("publish")

        def close(self) -> None:
            calls.append("close")

    box.enqueue(2)
    publisher = Publisher()
    await dispatch(box, [Route("test", publisher), Route("*", publisher)])
    assert calls == ["open", "publish", "publish", "close"]
