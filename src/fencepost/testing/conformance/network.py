"""Connections that fall silent, swallow everything or are reset while publishes are under way."""

# ruff: noqa: S101 - a test suite is made of asserts

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from fencepost.core.records import Message
from fencepost.errors import Retryable
from fencepost.publishers.batching import BEHIND
from fencepost.testing.conformance.rig import Outcome, Rig, Suite, hook, scenario
from fencepost.testing.samples import sample_delivery, sample_message

CLOSE_SECONDS = 2.0
"""How long a publisher may take to close while publishes are in flight."""
MAX_ROUNDS = 6
CUTS = (300, 2_000, None)
"""Where a connection is cut: in the first message of a batch, some messages later, or instead of the answer."""


class Network(Suite):
    """The deadline is kept, an acknowledgement is never made up, and the order of a key survives a retry."""

    @scenario(needs="silence")
    async def test_an_acknowledgement_that_does_not_arrive_is_retryable_and_later_it_delivers(
        self, rig: Rig
    ) -> None:
        await self._ends_and_recovers(rig, rig.harness.silence)

    @scenario(needs="black_hole")
    async def test_in_a_black_hole_it_ends_by_its_own_deadline_and_later_it_delivers(self, rig: Rig) -> None:
        await self._ends_and_recovers(rig, rig.harness.black_hole)

    async def _ends_and_recovers(self, rig: Rig, begin: Callable[[], Awaitable[None]]) -> None:
        await rig.publish(sample_message())
        async with rig.another(rig.harness.publisher()) as never_connected:
            await begin()
            message, whole, lease = sample_message(), rig.timeout + self.slack, rig.timeout * 0.6
            batch = [sample_message(id=number, ordering_key="k") for number in range(3)]
            waiting: list[Awaitable[object]] = [
                rig.refused(message, within=whole),
                rig.refused(sample_message(), sample_delivery(lease=lease), within=lease),
                never_connected.refused(sample_message(), within=whole),
                never_connected.refused(sample_message(), sample_delivery(lease=lease), within=lease),
            ]
            if rig.takes_batches:
                waiting.append(rig.batch_refused(batch, within=whole))
                waiting.append(rig.batch_refused(batch, [sample_delivery(lease=lease)] * 3, within=lease))
            await asyncio.gather(*waiting)
            await rig.harness.heal()
            await rig.delivered_again(message)
            await never_connected.delivered_again(sample_message())

    @scenario(needs="cut")
    async def test_cut_in_flight_nothing_is_made_up_and_it_delivers_again(self, rig: Rig) -> None:
        for attempt in range(3):
            messages = [sample_message(id=number) for number in range(40)]
            await rig.delivered_again(sample_message())  # the cut before may be noticed only now
            running = [asyncio.ensure_future(rig.outcome(message)) for message in messages]
            # Under way for certain: at the start, in the first one's answer, in the midst of the answers.
            if attempt > 0:
                await asyncio.wait(running[: 10 * attempt], return_when=asyncio.FIRST_COMPLETED)
            await rig.harness.cut()
            await self._none_or_retryable_and_arrived(rig, messages, await asyncio.gather(*running))
        await rig.delivered_again(sample_message())

    @scenario(needs="cut")
    async def test_the_order_of_a_key_survives_a_cut_and_the_retry(self, rig: Rig) -> None:
        for after in CUTS:
            for send in (_one_by_one, _as_batch) if rig.takes_batches else (_one_by_one,):
                await rig.delivered_again(sample_message())
                keys = ("a", "b", None)
                messages = [sample_message(id=n, ordering_key=keys[n // 6]) for n in range(18)]
                await rig.harness.cut_next(after)
                await _until_delivered(rig, messages, send)
                await rig.harness.heal()
                await _check_first_arrivals_in_order(rig, messages, keys)

    @scenario()
    async def test_closed_in_flight_it_ends_soon_and_nothing_is_made_up(self, rig: Rig) -> None:
        messages = [sample_message(id=number) for number in range(40)]
        await rig.publish(sample_message())
        running = [asyncio.ensure_future(rig.outcome(message)) for message in messages]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        await self._closes_soon(rig, messages, running)

    @scenario(needs="silence")
    async def test_closed_while_acknowledgements_are_missing_it_ends_soon(self, rig: Rig) -> None:
        messages = [sample_message(id=number) for number in range(10)]
        await rig.publish(sample_message())
        await rig.harness.silence()
        running = [asyncio.ensure_future(rig.outcome(message)) for message in messages]
        await asyncio.wait(running, timeout=rig.timeout / 4)
        await self._closes_soon(rig, messages, running)
        await rig.harness.heal()

    async def _closes_soon(
        self, rig: Rig, messages: Sequence[Message], running: Sequence[asyncio.Future[Outcome]]
    ) -> None:
        started = time.monotonic()
        await hook(rig.publisher.close)
        took = time.monotonic() - started
        assert took < CLOSE_SECONDS, f"close took {took:.2f} s while publishes were in flight"
        _, late = await asyncio.wait(running, timeout=rig.timeout + self.slack)
        assert not late, f"{len(late)} of {len(running)} publishes never ended after close"
        await self._none_or_retryable_and_arrived(rig, messages, [one.result() for one in running])

    async def _none_or_retryable_and_arrived(
        self, rig: Rig, messages: Sequence[Message], outcomes: Sequence[Outcome]
    ) -> None:
        odd = [outcome for outcome in outcomes if not isinstance(outcome, Retryable | None)]
        assert not odd, f"neither delivered nor retryable: {odd}"
        pairs = zip(messages, outcomes, strict=True)
        await rig.all_arrived([message for message, outcome in pairs if outcome is None])


Send = Callable[[Rig, Sequence[Message], int], Awaitable[Sequence[Outcome]]]


async def _one_by_one(rig: Rig, messages: Sequence[Message], attempt: int) -> Sequence[Outcome]:
    """Publish as the dispatcher does without `publish_batch`: keys at once, each key one after another."""
    outcomes: list[Outcome] = [None] * len(messages)

    async def chain(places: Sequence[int]) -> None:
        for number, place in enumerate(places):
            delivery = sample_delivery(attempt=attempt, token=attempt)
            outcomes[place] = await rig.outcome(messages[place], delivery)
            if outcomes[place] is not None:
                for behind in places[number + 1 :]:
                    outcomes[behind] = Retryable(BEHIND)
                return

    keys = {message.ordering_key for message in messages if message.ordering_key is not None}
    chains = [[p for p, one in enumerate(messages) if one.ordering_key == key] for key in sorted(keys)]
    chains += [[place] for place, one in enumerate(messages) if one.ordering_key is None]
    await asyncio.gather(*(chain(places) for places in chains))
    return outcomes


async def _as_batch(rig: Rig, messages: Sequence[Message], attempt: int) -> Sequence[Outcome]:
    return await rig.outcomes(messages, [sample_delivery(attempt=attempt, token=attempt) for _ in messages])


async def _until_delivered(rig: Rig, messages: Sequence[Message], send: Send) -> None:
    """Publish as the dispatcher does: what failed comes again, with everything behind it in its key."""
    waiting = list(messages)
    for attempt in range(1, MAX_ROUNDS + 1):
        outcomes = await send(rig, waiting, attempt)
        odd = [outcome for outcome in outcomes if not isinstance(outcome, Retryable | None)]
        assert not odd, f"neither delivered nor retryable: {odd}"
        stopped: set[str | None] = set()
        again = []
        for message, outcome in zip(waiting, outcomes, strict=True):
            if outcome is not None or (message.ordering_key is not None and message.ordering_key in stopped):
                stopped.add(message.ordering_key)
                again.append(message)
        waiting = again
        if not waiting:
            return
    raise AssertionError(f"{len(waiting)} messages were not delivered in {MAX_ROUNDS} rounds after one cut")


async def _check_first_arrivals_in_order(
    rig: Rig, messages: Sequence[Message], keys: Sequence[str | None]
) -> None:
    places: dict[object, int] = {}
    for place, one in enumerate(await rig.harness.received()):
        places.setdefault(one.message_id, place)
    await rig.all_arrived(messages)
    for key in keys:
        numbers = [message.id for message in messages if message.ordering_key == key]
        arrived = sorted(numbers, key=lambda number: places[messages[number].message_id])
        assert key is None or arrived == numbers, f"the messages of key {key} arrived first in the order {arrived}"
