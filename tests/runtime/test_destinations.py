"""Destinations through the shipped dispatcher: each has its own row, order, failures and pause."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import (
    ConfigError,
    Delivery,
    Dispatcher,
    Gone,
    Message,
    Outbox,
    Permanent,
    QueueSettings,
    Retryable,
    Route,
    Routing,
    Rule,
)
from tests.runtime.box import QUICK, Box, running, until
from tests.runtime.journal import Journal


class Taker:
    """A destination that takes everything, or fails as it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.taken: list[Message] = []
        self.starts: Counter[int] = Counter()

    async def publish(self, message: Message, delivery: Delivery) -> None:
        self.starts[message.id] += 1
        if self.error is not None:
            raise self.error
        self.taken.append(message)


def dispatcher(box: Box, to: dict[str, Any], routes: list[Route] | None = None, **options: Any) -> Dispatcher:
    if routes is None:
        routes = [Route("*", to=list(to))]
    return Dispatcher(box.url, routes, destinations=to, **(QUICK | options))


def rows(box: Box) -> list[tuple[Any, ...]]:
    return box.conn.execute("SELECT queue, status, outcome, attempts FROM outbox ORDER BY id").fetchall()


async def test_an_event_goes_to_each_destination_once_and_a_broken_one_repeats_nothing_elsewhere(box: Box) -> None:
    kafka, hook = Taker(), Taker(Retryable("broken"))
    box.enqueue(20)
    async with running(dispatcher(box, {"kafka": kafka, "hook": hook}, max_attempts=3, breaker_failures=0)):
        await until(lambda: box.statuses() == {"done": 40, "dead": 20})
    assert len(kafka.taken) == 20
    assert set(kafka.starts.values()) == {1}
    assert set(hook.starts.values()) == {3}
    assert len({message.message_id for message in kafka.taken}) == 20
    found = Counter((queue, outcome) for queue, _, outcome, _ in rows(box))
    assert found == {("default", "expanded"): 20, ("kafka", "delivered"): 20, ("hook", "exhausted"): 20}


async def test_keys_keep_their_order_in_each_destination(box: Box) -> None:
    kafka, hook = Journal(pause=0.001), Journal(pause=0.002)
    for _ in range(6):
        for key in ("a", "b"):
            box.enqueue(5, ordering_key=key)
        box.enqueue(2)
    async with running(dispatcher(box, {"kafka": kafka, "hook": hook}, batch=7)):
        await until(lambda: box.statuses() == {"done": 3 * 72})
    for each in (kafka, hook):
        for key in ("a", "b"):
            accepted = each.first_acceptances(key)
            assert len(accepted) == 30
            assert accepted == sorted(accepted)
            ids = [message.message_id for message in each.messages if message.ordering_key == key]
            original = box.conn.execute(
                "SELECT message_id FROM outbox WHERE ordering_key = %s AND NOT routed ORDER BY id", [key]
            ).fetchall()
            assert ids == [row_id for (row_id,) in original]
        assert each.most_at_once["a"] == 1


async def test_routes_look_at_queue_and_aggregate_and_may_publish_in_place(box: Box) -> None:
    hook, place = Taker(), Taker()
    routes = [
        Route("*", to="hook", queue="slow.*"),
        Route("*", place, aggregate_type="order"),
        Route("order.*", to=["hook"]),
    ]
    for queue, kind, aggregate in (
        ("slow.mail", "x", None),
        ("default", "order.a", ("order", "1")),
        ("default", "order.b", ("line", "1")),
        ("hook", "anything", None),
        ("default", "nobody", None),
    ):
        box.enqueue(1, kind, queue=queue, aggregate=aggregate)
    async with running(dispatcher(box, {"hook": hook}, routes)):
        await until(lambda: box.statuses() == {"done": 6, "dead": 1})
    assert sorted(message.event_type for message in hook.taken) == ["anything", "order.b", "x"]
    assert [message.event_type for message in place.taken] == ["order.a"]
    dead = box.conn.execute("SELECT outcome, last_error FROM outbox WHERE status = 'dead'").fetchone()
    assert dead == ("unroutable", "no route for event type 'nobody' in queue default")


async def test_a_run_whose_messages_go_different_ways_stays_in_order(box: Box) -> None:
    hook, place = Journal(), Journal()
    routes = [Route("far", to="hook"), Route("near", place)]
    for n in range(12):
        box.enqueue(1, "far" if n % 3 else "near", ordering_key="k")
    async with running(dispatcher(box, {"hook": hook}, routes)):
        await until(lambda: box.statuses() == {"done": 20})
    assert place.accepted == sorted(place.accepted)
    assert hook.accepted == sorted(hook.accepted)
    assert box.conn.execute("SELECT max(attempts) FROM outbox").fetchone() == (1,)


@pytest.mark.parametrize("is_published_in_place", [True, False])
async def test_an_expansion_that_waits_for_a_producer_uses_up_nothing_behind_it(
    box: Box, is_published_in_place: bool
) -> None:
    kafka, hook, place = Taker(), Taker(), Taker()
    near = Route("near", place) if is_published_in_place else Route("near", to="hook")
    made = dispatcher(
        box, {"hook": hook, "kafka": kafka}, [Route("far", to=["hook", "kafka"]), near], max_attempts=2
    )
    with psycopg.connect(box.url) as producer:
        Outbox().enqueue(producer, "e", 1, queue="kafka", ordering_key="k")
        for event_type in ("far", "near", "near"):
            box.enqueue(1, event_type, ordering_key="k")
        async with running(made):
            await until(lambda: made.counters.deferred >= 10)
            assert box.statuses().keys() <= {"pending", "processing", "blocked"}
            producer.commit()
            # The original and copies of the first, the direct one, and the other two in one of two ways.
            await until(lambda: box.statuses() == {"done": 6 if is_published_in_place else 8})
    assert set(place.starts.values()) <= {1}
    assert [message.json()["n"] for message in place.taken] == [0, 0] * is_published_in_place
    assert made.counters.out_of_turn == 0


async def test_what_the_producer_routed_is_not_routed_again(box: Box) -> None:
    kafka, hook = Taker(), Taker()
    box.outbox = Outbox(allow_autocommit=True, routing=Routing([Rule("*", to=["kafka", "hook"])]))
    box.enqueue(10)
    async with running(dispatcher(box, {"kafka": kafka, "hook": hook})):
        await until(lambda: box.statuses() == {"done": 20})
    assert [len(kafka.taken), len(hook.taken)] == [10, 10]


async def test_a_worker_leaves_a_destination_that_it_does_not_know_to_those_who_do(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    old, hook = Taker(), Taker()
    box.outbox = Outbox(allow_autocommit=True, routing=Routing([Rule("*", to=["hook"])]))
    box.enqueue(3)
    # Its max_age is over for all of them: that must not end what is somebody else's.
    strict = {"max_age": timedelta(microseconds=1)}
    async with running(dispatcher(box, {"kafka": old}, [Route("*", to="kafka")], **strict)):
        await until(lambda: "queue hook holds messages of a destination" in caplog.text)
        await until(lambda: box.statuses() == {"pending": 3})
        assert caplog.text.count("holds messages of a destination") == 1
        box.enqueue(2)
        async with running(dispatcher(box, {"hook": hook}, owner="w2")):
            await until(lambda: box.statuses() == {"done": 5})
    assert old.taken == []
    assert {attempts for *_, attempts in rows(box)} == {1}


async def test_a_destination_that_is_gone_is_paused_and_keeps_its_messages(box: Box) -> None:
    hook, kafka = Taker(Gone("the receiver answered 410 Gone")), Taker()
    box.enqueue(30)
    async with running(dispatcher(box, {"hook": hook, "kafka": kafka})):
        await until(lambda: len(kafka.taken) == 30)
        await until(
            lambda: [each.paused for each in box.outbox.queues(box.conn) if each.queue == "hook"] == [True]
        )
        await until(lambda: box.statuses() == {"done": 60, "pending": 30})
        (settings,) = [each for each in box.outbox.queues(box.conn) if each.queue == "hook"]
        assert settings.pause_reason == "the receiver answered 410 Gone"
        assert {attempts for queue, *_, attempts in rows(box) if queue == "hook"} == {0}
        hook.error = None
        box.outbox.resume_queue(box.conn, "hook", "ann")
        await until(lambda: box.statuses() == {"done": 90})
    (after,) = [each for each in box.outbox.queues(box.conn) if each.queue == "hook"]
    assert after.pause_reason is None


async def test_what_was_gone_before_somebody_resumed_the_queue_does_not_pause_it_again(box: Box) -> None:
    answers: dict[int, asyncio.Event] = {}
    is_back = False
    taken: set[int] = set()

    async def hook(message: Message, _: Delivery) -> None:
        if is_back:
            taken.add(message.id)
            return
        await answers.setdefault(message.id, asyncio.Event()).wait()
        raise Gone("410")

    def settings() -> QueueSettings:
        (found,) = box.outbox.queues(box.conn)
        return found

    box.enqueue(2)
    patient: dict[str, Any] = {"lease": timedelta(minutes=2), "publish_timeout": timedelta(minutes=1)}
    async with running(dispatcher(box, {"hook": hook}, **patient)):
        await until(lambda: len(answers) == 2)
        first, second = answers
        answers[first].set()
        await until(lambda: box.outbox.queues(box.conn) and settings().paused)
        is_back = True
        assert box.outbox.resume_queue(box.conn, "hook", "ann")
        await until(lambda: first in taken)
        answers[second].set()
        await until(lambda: box.statuses() == {"done": 4})
    assert taken == {first, second}
    assert (settings().paused, settings().changed_by) == (False, "ann")


async def test_in_a_shared_queue_gone_is_that_messages_end(box: Box) -> None:
    box.enqueue(2, "gone")
    box.enqueue(2, "fine")
    routes = [Route("gone", Taker(Gone("410"))), Route("*", Taker())]
    async with running(dispatcher(box, {}, routes)):
        await until(lambda: box.statuses() == {"done": 2, "dead": 2})
    assert box.outbox.queues(box.conn) == []


async def test_a_batch_publisher_may_be_a_destination(box: Box) -> None:
    taken: list[int] = []

    class Bulk:
        async def publish_batch(self, messages: list[Message], _: object) -> list[Exception | None]:
            taken.append(len(messages))
            return [Permanent("no") if message.json()["n"] == 3 else None for message in messages]

    box.enqueue(50)
    async with running(dispatcher(box, {"bulk": Bulk()})):
        await until(lambda: box.statuses() == {"done": 99, "dead": 1})
    assert max(taken) > 10


async def test_expansions_are_given_back_at_a_stop_like_everything_else(box: Box) -> None:
    box.enqueue(500)
    hook = Taker()
    async with running(dispatcher(box, {"hook": hook}, batch=20, concurrency=5)):
        await until(lambda: len(hook.taken) > 50)
    assert "processing" not in box.statuses()
    originals = box.conn.execute(
        "SELECT count(*) FILTER (WHERE outcome = 'expanded'), count(*) FILTER (WHERE routed) FROM outbox"
    ).fetchone()
    assert originals is not None
    assert originals[0] == originals[1]


@pytest.mark.parametrize(
    ("routes", "to", "says"),
    [
        ([], {}, "routes: at least one is needed"),
        (
            [Route("*", to="nobody")],
            {"hook": print},
            "leads to 'nobody', which is no destination; there are: hook",
        ),
        ([], {"with blank": print}, "may hold only letters"),
        ([], {"hook": "no url"}, "is not a destination URL"),
        ([], {"hook": 7}, "publisher"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    box: Box, routes: list[Route], to: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        dispatcher(box, to, routes)


@pytest.mark.parametrize("arguments", [{}, {"publisher": print, "to": "hook"}])
def test_a_route_leads_to_a_publisher_or_to_destinations(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs either a publisher or the destinations"):
        Route("*", **arguments)


async def test_a_kill_between_claim_and_expansion_costs_nothing_but_time(box: Box) -> None:
    """The worker that held them is gone: others take over, and each destination gets each event once."""
    hook = Taker()
    row_ids = box.enqueue(10)
    box.outbox.claim(box.conn, "dead worker")
    for row_id in row_ids:
        box.expire(row_id)
    async with running(dispatcher(box, {"hook": hook})):
        await until(lambda: box.statuses() == {"done": 20})
    assert len({message.message_id for message in hook.taken}) == len(hook.taken) == 10
