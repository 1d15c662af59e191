"""A destination that is down: no dead messages, few probes, and everything goes on by itself, over all workers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Delivery, Dispatcher, Message, Outbox, Permanent, Retryable, Route
from fencepost.core.queue import OpenBreaker
from tests.runtime.box import QUICK, Box, running, until

FAST = {"breaker_cap": timedelta(milliseconds=20), "max_attempts": 3}
DOWN = Retryable("connection refused", unavailable=True)


class Destination:
    """Up or down; it remembers what it took, and when it was asked while it was down."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.taken: list[Message] = []
        self.refused: list[int] = []
        self.refused_at: list[float] = []
        """The instants themselves: whoever looks at what was refused may come late."""

    async def publish(self, message: Message, delivery: Delivery) -> None:
        if self.error is not None:
            self.refused.append(message.id)
            self.refused_at.append(time.monotonic())
            raise self.error
        self.taken.append(message)


def dispatcher(box: Box, destination: Any, **options: Any) -> Dispatcher:
    return Dispatcher(box.url, destinations={"hook": destination}, **(QUICK | FAST | options))


def breaker(box: Box) -> OpenBreaker | None:
    return next((each.breaker for each in box.outbox.queues(box.conn) if each.queue == "hook"), None)


def attempts(box: Box) -> Counter[int]:
    return Counter(dict(box.conn.execute("SELECT attempts, count(*) FROM outbox GROUP BY attempts").fetchall()))


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("many", [1, 60])
async def test_an_outage_of_many_times_the_attempts_leaves_no_dead_message(
    box: Box, many: int, key: str | None
) -> None:
    """With one attempt more than the limit each, everything would be dead a hundred times over."""
    hook = Destination(DOWN)
    box.enqueue(many, queue="hook", ordering_key=key)
    async with running(dispatcher(box, hook, max_attempts=7)) as _:
        await until(lambda: (found := breaker(box)) is not None and found.trips > 40)
        assert box.statuses().get("dead", 0) == 0
        hook.error = None
        await until(lambda: box.statuses() == {"done": many})
    assert breaker(box) is None
    ids = [message.id for message in hook.taken]
    assert ids == sorted(ids) if key else len(ids) == many
    assert max(attempts(box)) <= 7


async def test_while_it_is_open_only_probes_get_through_whatever_the_number_of_workers(box: Box) -> None:
    hook = Destination(DOWN)
    box.enqueue(100, queue="hook")
    slow = {"breaker_cap": timedelta(seconds=1)}
    async with running(dispatcher(box, hook, **slow)), running(dispatcher(box, hook, owner="w2", **slow)):
        await until(lambda: breaker(box) is not None)
        await until(lambda: box.statuses() == {"pending": 100})
        before = len(hook.refused)
        await until(lambda: len(hook.refused) >= before + 5)
    # One a second, and not one of each worker, once the pauses have grown to their cap.
    third, _, fifth = hook.refused_at[before + 2 : before + 5]
    assert fifth - third > 1.5
    assert max(attempts(box)) <= 2  # one before it opened, and one of a probe under way


async def test_the_only_message_survives_an_outage_with_fewer_attempts_than_failures_open_a_breaker(
    box: Box,
) -> None:
    hook = Destination(DOWN)
    box.enqueue(1, queue="hook")
    async with running(dispatcher(box, hook, max_attempts=3, breaker_failures=5)):
        await until(lambda: len(hook.refused) > 10)
        assert box.statuses().get("dead", 0) == 0
        hook.error = None
        await until(lambda: box.statuses() == {"done": 1})


async def test_the_only_message_of_many_workers_survives_an_outage(box: Box) -> None:
    """None of them sees five failures of it by itself: they count together."""
    hook = Destination(DOWN)
    box.enqueue(1, queue="hook")
    async with AsyncExitStack() as stack:
        for n in range(8):
            options = {"max_attempts": 12, "owner": f"w{n}", "breaker_cap": timedelta(milliseconds=300)}
            await stack.enter_async_context(running(dispatcher(box, hook, **options)))
        await until(lambda: breaker(box) is not None)
        await until(lambda: len(hook.refused) > 15)
        assert box.statuses().get("dead", 0) == 0
        hook.error = None
        await until(lambda: box.statuses() == {"done": 1})
    assert [each.failures_seen for each in box.outbox.queues(box.conn)] == [0]


async def test_what_fails_while_it_opens_gets_its_attempt_back(box: Box) -> None:
    """A batch was under way when the destination went down: all but the first few failures cost nothing."""
    gate = asyncio.Event()

    async def fails_together(message: Message, delivery: Delivery) -> None:
        await gate.wait()
        raise DOWN

    box.enqueue(50, queue="hook")
    options = {"breaker_cap": timedelta(seconds=20), "breaker_failures": 5, "max_attempts": 12}
    async with running(dispatcher(box, fails_together, **options)):
        await until(lambda: box.statuses() == {"processing": 50})
        gate.set()
        await until(lambda: box.statuses() == {"pending": 50})
    assert attempts(box) == {0: 46, 1: 4}


async def test_one_message_that_always_fails_stops_nobody_and_dies(box: Box) -> None:
    async def publish(message: Message, delivery: Delivery) -> None:
        if message.json()["n"] == 0:
            raise Retryable("500 Internal Server Error")

    box.enqueue(1, queue="hook")
    async with running(dispatcher(box, publish, max_attempts=50, breaker_failures=2)):
        await until(lambda: box.statuses() == {"dead": 1})
    assert breaker(box) is None


async def test_time_outs_of_many_messages_open_it_as_well(box: Box) -> None:
    async def hangs(message: Message, delivery: Delivery) -> None:
        await asyncio.Event().wait()

    box.enqueue(20, queue="hook")
    short = {"publish_timeout": timedelta(milliseconds=100)}
    async with running(dispatcher(box, hangs, **short)):
        await until(lambda: (found := breaker(box)) is not None and found.trips > 5)
        assert "dead" not in box.statuses()


async def test_in_a_shared_queue_a_few_messages_with_trouble_of_their_own_open_nothing(box: Box) -> None:
    async def flaky(message: Message, delivery: Delivery) -> None:
        if delivery.attempt < 3:
            raise Retryable("not yet")

    box.enqueue(15)
    async with running(box.dispatcher(flaky)):
        await until(lambda: box.statuses() == {"done": 15})
    assert box.outbox.queues(box.conn) == []


async def test_in_a_shared_queue_many_messages_that_fail_do(box: Box) -> None:
    hook = Destination(Retryable("500"))
    box.enqueue(40)
    async with running(box.dispatcher(hook, **FAST)):
        await until(lambda: any(each.breaker for each in box.outbox.queues(box.conn)))
        hook.error = None
        await until(lambda: box.statuses() == {"done": 40})


async def test_a_probe_that_is_refused_shows_that_somebody_is_there(box: Box) -> None:
    hook = Destination(DOWN)
    box.enqueue(9, queue="hook")
    async with running(dispatcher(box, hook)):
        await until(lambda: breaker(box) is not None)
        hook.error = Permanent("too large")
        await until(lambda: box.statuses() == {"dead": 9})
    assert breaker(box) is None


async def test_successes_between_failures_keep_it_closed(box: Box) -> None:
    calls = itertools.count()

    async def every_other(message: Message, delivery: Delivery) -> None:
        if next(calls) % 2:
            raise Retryable("busy", unavailable=True)

    box.enqueue(200, queue="hook")
    async with running(dispatcher(box, every_other, concurrency=1, batch=10, max_attempts=50)):
        await until(lambda: box.statuses() == {"done": 200})
    assert box.conn.execute("SELECT breaker_version, breaker_seen FROM outbox_queue").fetchall() == [(0, 0)]


async def test_past_its_budget_an_outage_uses_messages_up(box: Box) -> None:
    hook = Destination(DOWN)
    box.enqueue(3, queue="hook")
    async with running(dispatcher(box, hook, outage_budget=timedelta(0))):
        await until(lambda: box.statuses() == {"dead": 3})


async def test_a_receivers_wish_is_how_long_nobody_asks_again(box: Box) -> None:
    hook = Destination(Retryable("429", delay=timedelta(seconds=60), unavailable=True))
    box.enqueue(9, queue="hook")
    async with running(dispatcher(box, hook, backoff_cap=timedelta(seconds=40))):
        await until(lambda: breaker(box) is not None)
    found = breaker(box)
    assert found is not None
    assert 30 < found.probe_in.total_seconds() <= 40


class Narrow(Destination):
    """It takes a few at once; asked for more, it falls over for as long as they last."""

    def __init__(self, error: BaseException | None = None, width: int = 3) -> None:
        super().__init__(error)
        self.width, self.under_way = width, 0

    async def publish(self, message: Message, delivery: Delivery) -> None:
        self.under_way += 1
        try:
            await asyncio.sleep(0.01)  # work, not a wait for something
            if self.under_way > self.width:
                self.refused.append(message.id)
                raise Retryable("overloaded", unavailable=True)
            await super().publish(message, delivery)
        finally:
            self.under_way -= 1


async def test_a_destination_that_comes_back_is_not_brought_down_by_what_waited(box: Box) -> None:
    hook = Narrow(DOWN)
    box.enqueue(150, queue="hook")
    async with running(dispatcher(box, hook, max_attempts=12)):
        await until(lambda: breaker(box) is not None)
        await until(lambda: box.statuses() == {"pending": 150})
        hook.error = None
        hook.refused.clear()
        await until(lambda: box.statuses() == {"done": 150})
    # Without a slow start, each message but the probes is refused several times over.
    assert len(hook.refused) < 300


async def test_after_an_outage_the_whole_width_is_used_again(box: Box) -> None:
    gate = asyncio.Event()
    gate.set()

    class Held(Narrow):
        async def publish(self, message: Message, delivery: Delivery) -> None:
            await Destination.publish(self, message, delivery)
            self.under_way += 1
            await gate.wait()

    hook = Held(DOWN)
    box.enqueue(40, queue="hook")
    async with running(dispatcher(box, hook, concurrency=20)):
        await until(lambda: breaker(box) is not None)
        hook.error = None
        await until(lambda: box.statuses() == {"done": 40})
        gate.clear()
        hook.under_way = 0
        box.enqueue(60, queue="hook")
        await until(lambda: hook.under_way == 20)
        gate.set()
        await until(lambda: box.statuses() == {"done": 100})


async def test_other_queues_go_on(box: Box) -> None:
    hook, kafka = Destination(DOWN), Destination()
    box.enqueue(50, queue="hook")
    made = Dispatcher(box.url, destinations={"hook": hook, "kafka": kafka}, **(QUICK | FAST))
    async with running(made):
        await until(lambda: breaker(box) is not None)
        box.enqueue(50, queue="kafka")
        await until(lambda: box.statuses() == {"done": 50, "pending": 50})


async def test_a_worker_that_comes_later_keeps_to_it_and_closes_it(box: Box) -> None:
    hook = Destination(DOWN)
    box.enqueue(9, queue="hook")
    async with running(dispatcher(box, hook)):
        await until(lambda: breaker(box) is not None)
    up = Destination()
    async with running(dispatcher(box, up, owner="later")):
        await until(lambda: box.statuses() == {"done": 9})
    assert breaker(box) is None


async def test_a_prober_that_is_gone_is_followed_by_another(box: Box) -> None:
    """Killed between its claim and its result: the right to probe comes back by the clock, and so does the row."""
    hook = Destination()
    box.enqueue(5, queue="hook")
    box.conn.execute(
        "INSERT INTO outbox_queue (queue, breaker_version, breaker_opened_at, breaker_probe_at) "
        "VALUES ('hook', 7, now() - interval '1 minute', now() + interval '1 second')"
    )
    async with running(dispatcher(box, hook)):
        await until(lambda: box.statuses() == {"done": 5})
    assert breaker(box) is None


async def test_dispatch_once_probes_and_writes_what_it_found(box: Box) -> None:
    hook = Destination(DOWN)
    box.enqueue(9, queue="hook")
    async with dispatcher(box, hook) as made:
        await until_async(made, lambda: breaker(box) is not None)
        hook.error = None
        await until_async(made, lambda: box.statuses() == {"done": 9})
    assert breaker(box) is None


async def until_async(made: Dispatcher, condition: Any) -> None:
    while not condition():
        await made.dispatch_once()


@pytest.mark.parametrize("is_routed", [True, False])
async def test_a_probe_that_met_no_destination_closes_nothing(box: Box, is_routed: bool) -> None:
    """Made for a destination that this worker does not know, or for none at all."""
    box.enqueue(1, queue="hook")
    box.conn.execute("UPDATE outbox SET routed = %s", [is_routed])
    box.conn.execute(
        "INSERT INTO outbox_queue (queue, breaker_opened_at, breaker_probe_at) VALUES ('hook', now(), now())"
    )
    made = Dispatcher(box.url, [Route("other", Destination())], **QUICK)
    async with running(made):
        await until(lambda: made.counters.claimed > 0)
        await until(lambda: box.statuses() in ({"pending": 1}, {"dead": 1}))
    found = breaker(box)
    assert found is not None
    assert found.trips == 0


async def test_a_threshold_of_a_queue_and_of_zero(box: Box) -> None:
    hook = Destination(DOWN)
    box.outbox.set_queue(box.conn, "hook", "ann", breaker_failures=0)
    box.enqueue(20, queue="hook")
    async with running(dispatcher(box, hook)):
        await until(lambda: box.statuses() == {"dead": 20})
    assert breaker(box) is None


async def test_single_batches_serve_other_queues_beside_probes_that_are_due(box: Box) -> None:
    """Such as `fencepost dispatch --once` from cron, at whose every start a probe is due."""
    down, kafka = Destination(DOWN), Destination()
    for queue in ("hook", "other"):
        box.conn.execute(
            "INSERT INTO outbox_queue (queue, breaker_opened_at, breaker_probe_at) VALUES (%s, now(), now())",
            [queue],
        )
        box.enqueue(5, queue=queue)
    box.enqueue(9, queue="kafka")
    made = Dispatcher(box.url, destinations={"hook": down, "other": down, "kafka": kafka}, **QUICK)
    assert await made.dispatch_once() == 11
    assert len(kafka.taken) == 9
    assert len(down.refused) == 2


# --- rates -----------------------------------------------------------------------------------------------


async def test_two_workers_together_keep_the_rate_of_a_destination(box: Box) -> None:
    times: list[float] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        times.append(time.monotonic())

    box.outbox.set_queue(box.conn, "hook", "ann", rate=40)
    box.enqueue(120, queue="hook")
    async with running(dispatcher(box, publish)), running(dispatcher(box, publish, owner="w2")):
        await until(lambda: box.statuses() == {"done": 120})
    span = times[-1] - times[0]
    # The bucket holds a second's worth at the start: 80 more at 40 a second.
    assert span >= 1.9
    assert span < 8


async def test_a_rate_of_one_queue_leaves_the_others_alone_and_can_be_lifted(box: Box) -> None:
    hook, kafka = Destination(), Destination()
    box.outbox.set_queue(box.conn, "hook", "ann", rate=0.01)
    box.enqueue(50, queue="hook")
    box.enqueue(200, queue="kafka")
    made = Dispatcher(box.url, destinations={"hook": hook, "kafka": kafka}, **QUICK)
    async with running(made):
        await until(lambda: len(kafka.taken) == 200)
        assert len(hook.taken) <= 1
        box.outbox.set_queue(box.conn, "hook", "ann", rate=None)
        await until(lambda: len(hook.taken) == 50)


async def test_what_a_crash_left_is_found_though_the_rate_is_always_used_up(box: Box) -> None:
    """Normal messages must not take the rate before anybody looks for crash suspects."""
    hook = Destination()
    box.enqueue(3, queue="hook")
    with box.conn.transaction():
        crashed = Outbox().claim(box.conn, "crashed", queues=["hook"])
    for each in crashed:
        box.expire(each.id)
    box.enqueue(1_000, queue="hook")
    box.outbox.set_queue(box.conn, "hook", "ann", rate=20)
    async with running(dispatcher(box, hook)):
        began = time.monotonic()
        await until(lambda: {each.id for each in crashed} <= {message.id for message in hook.taken})
        assert time.monotonic() - began < 5
        assert len(hook.taken) < 200


# --- what is held back costs nothing ----------------------------------------------------------------------


async def looks(made: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count how often a dispatcher looks for work in one second."""
    counted, claim = 0, made._claimer.next

    async def counting() -> Any:
        nonlocal counted
        counted += 1
        return await claim()

    await until(lambda: made._pacing._pause > 0.2, "its pauses have grown")
    monkeypatch.setattr(made._claimer, "next", counting)
    await asyncio.sleep(1.0)
    return counted


WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
SLOW_LOOKS = {"poll_interval": timedelta(milliseconds=100)}
FEW = 40
"""Looks in a second: four times what the poll interval asks for, a quarter of what a loop without pauses does."""


@pytest.mark.parametrize("why", ["delayed", "paused", "of others"])
async def test_an_open_breaker_without_anything_to_probe_is_not_waited_for(
    box: Box, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.conn.execute(
        "INSERT INTO outbox_queue (queue, breaker_opened_at, breaker_probe_at) VALUES ('hook', now(), now())"
    )
    box.enqueue(1, queue="hook", delay=timedelta(hours=1) if why == "delayed" else None)
    if why == "paused":
        box.outbox.pause_queue(box.conn, "hook", "ann")
    queues = ["other"] if why == "of others" else None
    made = dispatcher(box, Destination(DOWN), queues=queues, **SLOW_LOOKS)
    async with running(made):
        assert await looks(made, monkeypatch) < FEW


@pytest.mark.parametrize("is_paused", [True, False])
async def test_a_rate_that_is_used_up_is_not_waited_for_where_nothing_is_due(
    box: Box, is_paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Destination()
    box.outbox.set_queue(box.conn, "hook", "ann", rate=2)
    box.enqueue(20 if is_paused else 3, queue="hook")
    made = dispatcher(box, hook, **SLOW_LOOKS)
    async with running(made):
        await until(lambda: len(hook.taken) == 3)
        if is_paused:
            box.outbox.pause_queue(box.conn, "hook", "ann")
        await asyncio.sleep(1.0)
        assert await looks(made, monkeypatch) < FEW


@pytest.mark.parametrize("is_rated", [True, False])
async def test_an_operators_open_transaction_holds_up_its_own_queue_at_the_most(box: Box, is_rated: bool) -> None:
    """Such a transaction has the row of the queue that a rate and a breaker are written to."""
    hook, kafka = Destination(None if is_rated else DOWN), Destination()
    box.outbox.set_queue(box.conn, "hook", "ann", rate=100 if is_rated else None)
    box.enqueue(50, queue="hook")
    made = Dispatcher(
        box.url,
        destinations={"hook": hook, "kafka": kafka},
        **(QUICK | FAST | {"lease": timedelta(seconds=120), "publish_timeout": timedelta(seconds=1)}),
    )
    with psycopg.connect(box.url) as operator:
        Outbox().set_queue(operator, "hook", "ann", weight=2)
        async with running(made):
            # A rate is passed by where others have the row; a breaker's write waits for it.
            await until(lambda: made._claimer._rated_until or box.conn.execute(WAITS).fetchone() != (0,))
            began = time.monotonic()
            for _ in range(3):
                box.enqueue(1, queue="kafka")
                await asyncio.sleep(0.05)
            await until(lambda: box.statuses().get("done") == 3)
            assert time.monotonic() - began < 4  # a lock is waited for longer than that
            operator.commit()
            hook.error = None
            await until(lambda: box.statuses() == {"done": 53})
