"""One test's destination and publisher, and how a scenario becomes a test."""

# ruff: noqa: S101 - a test suite is made of asserts

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from fencepost.core.records import Message
from fencepost.errors import Retryable
from fencepost.publishers.base import Delivery
from fencepost.publishers.callable import Invocable, as_publisher, checked_outcomes
from fencepost.testing.conformance.harness import PublisherHarness
from fencepost.testing.conformance.received import Received
from fencepost.testing.samples import sample_delivery

GIVE_UP_SECONDS = 10.0
"""A publish that is this late is not waited for any longer."""

CAPABILITIES: set[str] = set()
"""What a destination can be opted out of."""

Scenario = Callable[[Any, "Rig"], Awaitable[None]]
Outcome = BaseException | None


class Rig:
    """A started destination and an open publisher."""

    def __init__(self, harness: PublisherHarness, publisher: Invocable, timeout: float) -> None:
        self.harness = harness
        self.publisher = publisher
        self.timeout = timeout

    async def publish(self, message: Message, delivery: Delivery | None = None) -> None:
        """Publish as the dispatcher does: async on the loop, anything else in a thread."""
        delivery = delivery or sample_delivery()
        if self.publisher.is_async:
            await self.publisher.call(message, delivery)
            return
        result = await asyncio.to_thread(self.publisher.call, message, delivery)
        if inspect.isawaitable(result):
            await result

    @property
    def takes_batches(self) -> bool:
        """Whether the publisher has `publish_batch`; the suite tries it then."""
        return self.publisher.call_batch is not None

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery] | None = None
    ) -> Sequence[Outcome]:
        """Publish as the dispatcher does, and check that there is an outcome for each message."""
        call = self.publisher.call_batch
        assert call is not None, "the publisher has no publish_batch"
        deliveries = deliveries or [sample_delivery() for _ in messages]
        if self.publisher.is_batch_async:
            outcomes = await call(messages, deliveries)
        else:
            outcomes = await asyncio.to_thread(call, messages, deliveries)
            if inspect.isawaitable(outcomes):
                outcomes = await outcomes
        return checked_outcomes(outcomes, len(messages))

    async def outcome(self, message: Message, delivery: Delivery | None = None) -> Outcome:
        """Publish, and return the failure instead of raising it."""
        try:
            await self.publish(message, delivery)
        except Exception as failure:  # noqa: BLE001 - what it is, is for the scenario to judge
            return failure
        return None

    async def outcomes(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery] | None = None
    ) -> Sequence[Outcome]:
        """Publish a batch; what it raises is the outcome of all."""
        try:
            return await self.publish_batch(messages, deliveries)
        except Exception as failure:  # noqa: BLE001 - what it is, is for the scenario to judge
            return [failure] * len(messages)

    async def refused(self, message: Message, delivery: Delivery | None = None, *, within: float) -> Retryable:
        """Publish, and check that it ends as a retryable failure within so many seconds."""
        return await _retryable(self.outcome(message, delivery), within)

    async def batch_refused(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery] | None = None, *, within: float
    ) -> None:
        """Publish a batch, and check that each message ends as a retryable failure within so many seconds."""
        for outcome in await _timed(self.outcomes(messages, deliveries), within):
            _check_retryable(outcome)

    async def delivered_again(self, message: Message) -> None:
        """Publish, and once more after a retryable failure: one may go into noticing a dead connection."""
        try:
            await self.publish(message)
        except Retryable:
            await self.publish(message, sample_delivery(attempt=2, token=2))
        await self.arrived(message)

    async def arrived(self, message: Message) -> Received:
        """Return the message as it arrived first; fail if it did not."""
        return (await self.arrivals(message))[0]

    async def arrivals(self, message: Message) -> list[Received]:
        """Return each arrival of the message, at least one."""
        everything = await self.harness.received()
        found = [one for one in everything if one.message_id == message.message_id]
        assert found, f"acknowledged, but not received: {message.message_id}"
        return found

    async def all_arrived(self, messages: Sequence[Message]) -> None:
        """Fail unless each of them arrived."""
        received = {one.message_id for one in await self.harness.received()}
        lost = [message.id for message in messages if message.message_id not in received]
        assert not lost, f"acknowledged, but not received: {len(lost)} of {len(messages)}, numbers {lost[:10]}"

    async def stop(self) -> None:
        """Stop the destination, and have its proxy refuse connections as it does."""
        await self.harness.stop()
        if self.harness.proxy is not None:
            self.harness.proxy.refuse()

    async def start(self) -> None:
        """Start the destination, and its proxy."""
        await self.harness.start()
        if self.harness.proxy is not None:
            self.harness.proxy.start().heal()

    async def restart(self) -> None:
        """Stop the destination and start it again."""
        await self.harness.restart()
        if self.harness.proxy is not None:
            self.harness.proxy.start().heal()

    @asynccontextmanager
    async def another(self, publisher: object) -> AsyncIterator[Rig]:
        """Provide a rig with another publisher for the same destination."""
        invocable = as_publisher(publisher)
        await hook(invocable.open)
        try:
            yield Rig(self.harness, invocable, self.timeout)
        finally:
            await hook(invocable.close)


async def _timed(outcome: Awaitable[Any], within: float) -> Any:
    started = time.monotonic()
    try:
        result = await asyncio.wait_for(outcome, within + GIVE_UP_SECONDS)
    except TimeoutError:
        raise AssertionError(f"still running {GIVE_UP_SECONDS} s after it should have ended") from None
    took = time.monotonic() - started
    assert took <= within, f"took {took:.2f} s, more than {within:.2f} s: {result!r}"
    return result


async def _retryable(outcome: Awaitable[Outcome], within: float) -> Retryable:
    return _check_retryable(await _timed(outcome, within))


def _check_retryable(outcome: Outcome) -> Retryable:
    assert outcome is not None, "the publish was acknowledged by a destination that cannot have it"
    if not isinstance(outcome, Retryable):
        raise AssertionError(f"not a retryable failure: {outcome!r}") from outcome
    assert str(outcome), "a failure says why"
    return outcome


def scenario(*, needs: str = "") -> Callable[[Scenario], Callable[[Any], None]]:
    """Turn an async scenario into a plain test method with a rig of its own.

    Args:
        needs: the capabilities without which it is left out, separated by blanks.
    """
    wanted = needs.split()

    def decorate(test: Scenario) -> Callable[[Any], None]:
        @functools.wraps(test)
        def run(self: Suite) -> None:
            if not any(capability in self.opt_outs for capability in wanted):
                asyncio.run(self.run(test))

        # Test runners read the signature for fixtures; the rig is not one.
        del run.__wrapped__
        CAPABILITIES.update(wanted)
        return run

    return decorate


class Suite(ABC):
    """What all parts of the conformance suite share."""

    timeout: ClassVar[float] = 1.0
    """Seconds that the harness's publishers allow themselves for one message."""
    slack: ClassVar[float] = 1.0
    """Seconds that a slow test machine may add."""
    opt_outs: ClassVar[Mapping[str, str]] = {}
    """Capability to the reason why this destination does not have it."""

    @abstractmethod
    def harness(self) -> PublisherHarness:
        """Return a new harness, not started."""

    async def run(self, test: Scenario) -> None:
        """Run one scenario between a start and a close that also happens when it fails."""
        async with self.rig() as rig:
            await test(self, rig)

    @asynccontextmanager
    async def rig(self) -> AsyncIterator[Rig]:
        """Provide a started destination with an open publisher."""
        harness = self.harness()
        try:
            await harness.start()
            if harness.proxy is not None:
                harness.proxy.start()
            publisher = as_publisher(harness.publisher())
            await hook(publisher.open)
            try:
                yield Rig(harness, publisher, self.timeout)
            finally:
                await hook(publisher.close)
        finally:
            await harness.close()
            if harness.proxy is not None:
                harness.proxy.close()

    def test_opt_outs_name_capabilities_and_give_reasons(self) -> None:
        unknown = set(self.opt_outs) - CAPABILITIES
        assert not unknown, f"unknown: {unknown}; known: {sorted(CAPABILITIES)}"
        assert all(reason.strip() for reason in self.opt_outs.values()), "an opt-out states its reason"


async def hook(call: Callable[[], Any] | None) -> None:
    """Call a publisher's ``open`` or ``close``, where there is one."""
    result = call() if call is not None else None
    if inspect.isawaitable(result):
        await result
