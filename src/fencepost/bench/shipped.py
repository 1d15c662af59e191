"""The dispatcher as it is shipped, with a publisher that does nothing, or with a real destination.

Run as ``python -m fencepost.bench.shipped``; see `fencepost.bench.contender`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from fencepost.bench.contender import WARM_UP, Assignment, Drained, Start, report
from fencepost.bench.tables import EVENT_TYPE
from fencepost.bench.tally import Tally
from fencepost.core.operation import Rows, Statement
from fencepost.core.records import Message
from fencepost.drivers.psycopg import AsyncPsycopgDriver
from fencepost.publishers.base import Delivery, DestinationPublisher
from fencepost.publishers.callable import as_publisher
from fencepost.publishers.registry import publisher_for
from fencepost.runtime.dispatcher import Dispatcher
from fencepost.runtime.loop import new_event_loop
from fencepost.runtime.routes import Route
from fencepost.testing.samples import sample_delivery, sample_message

TASKS, WHOLE, STAMPS = "a task a message", "the whole batch", "stamps"
"""Publishers: one call for each message, one for a batch, and one for each that notes when it began."""
DESTINATION = "a destination"
"""The publisher of the assignment's destination, which gets messages before the start, so that it is connected."""

WATCH_CLAIMS = "watch_claims"
"""Not a dispatcher's setting: report how long each of its claims took."""

_LOOK_SECONDS = 0.005

Claims = list[tuple[float, int]]
Stamps = list[tuple[int, int]]


class _Whole:
    """Counts as delivered at once, a batch by one call."""

    async def publish(self, _message: Message, _delivery: Delivery) -> None:
        """For a message that comes alone."""

    async def publish_batch(
        self, messages: Sequence[Message], _deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        return [None] * len(messages)


async def _publish(_message: Message, _delivery: Delivery) -> None:
    """Count as delivered at once."""


def _publisher(assignment: Assignment, stamps: Stamps) -> object:
    if assignment.kind == DESTINATION:
        return publisher_for(assignment.destination)

    async def stamp(message: Message, _delivery: Delivery) -> None:
        # The same clock in every process of the machine.
        stamps.append((message.id, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))

    return {TASKS: _publish, WHOLE: _Whole(), STAMPS: stamp}[assignment.kind or TASKS]


async def _warm_up(publisher: object) -> None:
    """Publish as much as the loop that it is compared with does before its start."""
    if not isinstance(publisher, DestinationPublisher):
        return
    messages = [sample_message(EVENT_TYPE) for _ in range(WARM_UP)]
    deliveries = [sample_delivery() for _ in messages]
    batch = as_publisher(publisher).call_batch
    if batch is not None:
        outcomes = await batch(messages, deliveries)
    else:
        outcomes = await asyncio.gather(*map(publisher.publish, messages, deliveries), return_exceptions=True)
    for failure in filter(None, outcomes):
        raise failure


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn numbers, which can travel as JSON, into a dispatcher's settings."""
    durations = {"poll_interval"}
    return {
        name: timedelta(seconds=value) if name in durations else value
        for name, value in given.items()
        if name != WATCH_CLAIMS
    }


async def _drain(assignment: Assignment, start: Start) -> Drained:
    stamps: Stamps = []
    publisher = _publisher(assignment, stamps)
    options = _settings(assignment.settings)
    with _watched(bool(assignment.settings.get(WATCH_CLAIMS))) as claims:
        async with Dispatcher(
            assignment.url, [Route("*", publisher)], batch=assignment.batch, **options
        ) as dispatcher:
            await _warm_up(publisher)
            await asyncio.to_thread(start)
            started = time.monotonic()
            running = asyncio.create_task(dispatcher.run(handle_signals=False))
            total = _counted(assignment, dispatcher)
            # The dispatcher tells nobody that it has nothing left: to it, more may come at any time.
            while total() < assignment.messages and not running.done():  # noqa: ASYNC110 - hence
                await asyncio.sleep(_LOOK_SECONDS)
            seconds = time.monotonic() - started
            dispatcher.stop()
            await running
            return Drained(dispatcher.counters.delivered, seconds, claims=claims, stamps=stamps)


def _counted(assignment: Assignment, dispatcher: Dispatcher) -> Callable[[], int]:
    """Return what tells how many messages are delivered: by us, or by everybody who shares the tally."""
    if not assignment.tally:
        return lambda: dispatcher.counters.delivered
    tally = Tally(assignment.tally, assignment.slot)

    def total() -> int:
        tally.set(dispatcher.counters.delivered)
        return tally.total()

    return total


@contextlib.contextmanager
def _watched(is_wanted: bool) -> Iterator[Claims]:
    """Time every claim of this process where its statement is sent, whoever sends it."""
    claims: Claims = []
    if not is_wanted:
        yield claims
        return
    plain = AsyncPsycopgDriver.execute

    async def timed(driver: AsyncPsycopgDriver, statement: Statement) -> Rows:
        began = time.perf_counter()
        rows = await plain(driver, statement)
        if statement.name == "claim" and rows and rows[0][0] is not None:
            claims.append((time.perf_counter() - began, len(rows)))
        return rows

    AsyncPsycopgDriver.execute = timed  # type: ignore[method-assign, assignment]
    try:
        yield claims
    finally:
        AsyncPsycopgDriver.execute = plain  # type: ignore[method-assign]


def drain(assignment: Assignment, start: Start) -> Drained:
    """Run the dispatcher, settings at their defaults unless told, until everything is delivered."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:  # as `fencepost dispatch` does
        return runner.run(_drain(assignment, start))


if __name__ == "__main__":
    report(drain)
