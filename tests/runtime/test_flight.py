"""What becomes of publishes in flight, without a database: results gather at a finalizer that nobody runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Defer, Delivery, DispatcherSettings, Message, Retryable, Route
from fencepost.core.lease import TrustWindow
from fencepost.core.outcome import DONE, Action, Dead, Release, Reschedule
from fencepost.core.states import Event, Outcome
from fencepost.runtime.breakers import Breakers
from fencepost.runtime.counters import Counters
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.flight import Flight
from fencepost.runtime.held import Held, Holding, Stage
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.results import MessageResults
from fencepost.runtime.routes import Router
from fencepost.runtime.shutdown import Stop
from fencepost.store.catalog import Catalog
from tests.runtime import holdings
from tests.runtime.box import Stubborn, until

SHORT = timedelta(milliseconds=50)
SOON = 10.0
"""Seconds in which whatever is to happen has happened, also on a slow machine."""


class Field:
    """A flight from which nothing is ever written, and what it published and decided."""

    def __init__(self, publisher: Any, **options: Any) -> None:
        self.settings = DispatcherSettings(owner="w", lease=holdings.LEASE, **options)
        link = Link("postgresql:///nobody_connects", Catalog(), Limits.below(holdings.LEASE), "none", lambda: None)
        self.held: Held[Holding] = Held()
        self.counters = Counters()
        self.finalizer = Finalizer(link, self.held, MessageResults(Catalog(), self.counters, lambda _: None))
        breakers = Breakers(
            link,
            Catalog(),
            self.settings,
            is_destination=lambda _: False,
            on_open=lambda _: None,
            on_close=lambda: None,
        )
        self.stop = Stop()
        self.flight = Flight(
            self.settings,
            Router([Route("*", publisher)]),
            self.held,
            self.finalizer,
            self.counters,
            self.stop,
            breakers,
            lambda: None,
            lambda _: None,
        )

    def holding(self, row_id: int, key: str | None = None) -> Holding:
        made = holdings.holding(row_id, key=key, sent_at=time.monotonic(), settings=self.settings)
        self.held.add([made])
        return made

    async def land(self, *started: Holding) -> None:
        self.flight.start(started)
        async with asyncio.timeout(SOON):
            await self.flight.landed()

    @property
    def decided(self) -> dict[int, Action]:
        return {each.id: action for each, action in self.finalizer._waiting}


class Published:
    """Takes note of each message, and does what the test says."""

    def __init__(self, does: Callable[[Message], Awaitable[None]]) -> None:
        self._does = does
        self.ids: list[int] = []

    async def publish(self, message: Message, delivery: Delivery) -> None:
        self.ids.append(message.id)
        await self._does(message)


async def hang(message: Message) -> None:
    await asyncio.Event().wait()


async def test_behind_a_failure_of_its_key_nothing_is_published_and_all_is_given_back() -> None:
    async def fail_second(message: Message) -> None:
        if message.id == 2:
            raise Retryable("not now")

    publisher = Published(fail_second)
    field = Field(publisher)
    await field.land(*(field.holding(n, "k") for n in (1, 2, 3, 4)))
    assert publisher.ids == [1, 2]
    assert field.decided[1] is DONE
    assert isinstance(field.decided[2], Reschedule)
    assert [field.decided[n] for n in (3, 4)] == [Release(), Release()]


async def test_behind_a_lost_lease_of_its_key_nothing_is_published() -> None:
    async def lose(message: Message) -> None:
        field.held.lose([first])

    publisher = Published(lose)
    field = Field(publisher)
    first, second = field.holding(1, "k"), field.holding(2, "k")
    await field.land(first, second)
    assert publisher.ids == [1]
    assert field.decided == {1: DONE, 2: Release()}


async def test_what_is_lost_before_its_turn_is_not_published() -> None:
    publisher = Published(hang)
    field = Field(publisher)
    told, over = field.holding(1), field.holding(2)
    field.held.lose([told])
    over.window = TrustWindow(time.monotonic() - 61, 60.0)  # nobody has said so yet
    await field.land(told, over)
    assert publisher.ids == []
    assert field.decided == {1: Release(), 2: Release()}


async def test_a_time_out_cancels_the_publish_and_is_a_failure_of_its_own() -> None:
    cancelled: list[int] = []

    async def note(message: Message) -> None:
        try:
            await hang(message)
        except asyncio.CancelledError:
            cancelled.append(message.id)
            raise

    field = Field(Published(note), publish_timeout=SHORT)
    await field.land(field.holding(1))
    assert cancelled == [1]
    assert field.counters.timed_out == 1
    action = field.decided[1]
    assert isinstance(action, Reschedule)
    assert (action.event, action.refund_attempt) == (Event.RETRY, False)
    assert "within 0.05 s" in action.error


async def test_what_is_cut_off_in_flight_may_have_arrived_and_what_waits_has_not() -> None:
    async def swallow(message: Message) -> None:
        await stubborn.wait()

    stubborn = Stubborn()
    publisher = Published(swallow)
    field = Field(publisher)
    field.flight.start([field.holding(1, "k"), field.holding(2, "k")])
    with stubborn:
        await until(lambda: publisher.ids)
        await field.flight.cut_off(patience=0.0)
    action = field.decided[1]
    assert isinstance(action, Reschedule)
    assert (action.event, action.refund_attempt) == (Event.CANCELLED, False)
    assert field.decided[2] == Release()
    await until(lambda: not field.flight._tasks)
    assert publisher.ids == [1]


async def test_what_is_to_go_alone_waits_until_everything_else_has_landed() -> None:
    async def wait(message: Message) -> None:
        if message.id == 1:
            await gate.wait()

    gate = asyncio.Event()
    publisher = Published(wait)
    field = Field(publisher)
    field.flight.start([field.holding(1)])
    await until(lambda: publisher.ids)
    # The result of the first cannot be written here: it is waited for no longer than a publish may take.
    alone = asyncio.create_task(field.flight.start_alone(replaced(field.holding(2), SHORT)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert publisher.ids == [1]
    gate.set()
    async with asyncio.timeout(SOON):
        await alone
    assert publisher.ids == [1, 2]


def replaced(holding: Holding, publish_timeout: timedelta) -> Holding:
    holding.terms = replace(holding.terms, publish_timeout=publish_timeout.total_seconds())
    return holding


async def test_a_message_grows_older_while_it_is_held() -> None:
    async def defer(message: Message) -> None:
        raise Defer(timedelta(seconds=1), "too early")

    field = Field(Published(defer), max_age=timedelta(minutes=10))
    young, old = field.holding(1), field.holding(2)
    old.claimed_at -= 11 * 60
    await field.land(young, old)
    assert isinstance(field.decided[1], Reschedule)
    action = field.decided[2]
    assert isinstance(action, Dead)
    assert action.outcome is Outcome.EXPIRED


async def test_in_a_batch_what_failed_behind_a_failure_of_its_key_is_given_back() -> None:
    class Batches:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Any:
            return [Retryable("not now") if message.id < 4 else None for message in messages]

    field = Field(Batches())
    await field.land(field.holding(1, "k"), field.holding(2, "k"), field.holding(3), field.holding(4))
    assert isinstance(field.decided[1], Reschedule)
    assert field.decided[2] == Release()
    assert isinstance(field.decided[3], Reschedule)  # of no key
    assert field.decided[4] is DONE
    assert not field.held.in_stage(Stage.PUBLISHING)


async def test_in_a_batch_what_is_lost_or_may_be_is_not_published() -> None:
    handed_over: list[int] = []

    class Batches:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Any:
            handed_over.extend(message.id for message in messages)
            return [None] * len(messages)

    field = Field(Batches())
    told, over, fine = (field.holding(n) for n in (1, 2, 3))
    field.held.lose([told])
    over.window = TrustWindow(time.monotonic() - 61, 60.0)  # nobody has said so yet
    await field.land(told, over, fine)
    assert handed_over == [3]
    assert field.decided == {1: Release(), 2: Release(), 3: DONE}


@pytest.mark.parametrize("in_batches", [False, True])
async def test_what_has_not_begun_at_a_stop_goes_back_once(in_batches: bool) -> None:
    class Batches:
        async def publish_batch(self, messages: Sequence[Message], deliveries: Sequence[Delivery]) -> Any:
            raise AssertionError("it was stopped before")

    field = Field(Batches() if in_batches else Published(hang))
    field.flight.start([field.holding(n, "k") for n in (1, 2)])  # its task has not had a step yet
    field.stop.ask()
    field.flight.release_unstarted()
    await until(lambda: not field.flight._tasks, "its task had its step")
    assert [(each.id, action) for each, action in field.finalizer._waiting] == [(1, Release()), (2, Release())]
