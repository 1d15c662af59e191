"""The conformance suite itself: a sound publisher passes it, and each planted fault is found by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from fencepost.core.records import Message
from fencepost.errors import Permanent, Retryable
from fencepost.publishers.base import Delivery, publish_budget
from fencepost.publishers.headers import outgoing_headers
from fencepost.testing.publisher_conformance import (
    PublisherConformance,
    PublisherHarness,
    Received,
    received_from,
    scenario,
)

LIMIT = 1_000


class Broker:
    def __init__(self) -> None:
        self.kept: list[Received] = []
        self.up = True
        self.running = asyncio.Event()
        self.running.set()


class MemoryPublisher:
    def __init__(self, broker: Broker, timeout: float) -> None:
        self._broker = broker
        self._timeout = timeout

    async def publish(self, message: Message, delivery: Delivery) -> None:
        headers = outgoing_headers(message, delivery)
        if len(message.payload) > LIMIT:
            raise Permanent("too large")
        if not self._broker.up:
            raise Retryable("down")
        try:
            async with asyncio.timeout(publish_budget(delivery, self._timeout)):
                await self._broker.running.wait()
        except TimeoutError:
            raise Retryable("no answer") from None
        self._broker.kept.append(received_from(message.payload, headers))


class SaysDoneTooEarly(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        try:
            await super().publish(message, delivery)
        except Retryable:
            return


class WaitsForEver(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        await self._broker.running.wait()
        await super().publish(message, delivery)


class IgnoresTheLease(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        await super().publish(message, replace(delivery, remaining=lambda: 60.0))


class LosesTheToken(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        await super().publish(message, replace(delivery, token=0))


class TidiesThePayload(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        await super().publish(replace(message, payload=message.payload.strip()), delivery)
        self._broker.kept[-1] = replace(self._broker.kept[-1], payload=message.payload.replace(b" ", b""))


class StripsText(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        stripped = {name: value.strip() for name, value in message.headers.items()}
        await super().publish(replace(message, headers=stripped), delivery)


class RetriesTheHopeless(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        try:
            await super().publish(message, delivery)
        except Permanent as failure:
            raise Retryable(str(failure)) from None


class RefusesRepeats(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        if any(one.message_id == message.message_id for one in self._broker.kept):
            raise Permanent("duplicate")
        await super().publish(message, delivery)


class NeverRecovers(MemoryPublisher):
    broken = False

    async def publish(self, message: Message, delivery: Delivery) -> None:
        self.broken = self.broken or not self._broker.up
        if self.broken:
            raise Retryable("broken for good")
        await super().publish(message, delivery)


class CannotReopen(MemoryPublisher):
    closed = False

    async def publish(self, message: Message, delivery: Delivery) -> None:
        if self.closed:
            raise Retryable("closed")
        await super().publish(message, delivery)

    def close(self) -> None:
        self.closed = True


class Bulk(MemoryPublisher):
    stops = True
    says_done = False

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        failed: set[str | None] = set()
        outcomes: list[Exception | None] = []
        for message, delivery in zip(messages, deliveries, strict=True):
            try:
                if self.stops and message.ordering_key is not None and message.ordering_key in failed:
                    raise Retryable("behind a failure")
                await self.publish(message, delivery)
                outcomes.append(None)
            except (Retryable, Permanent) as failure:
                failed.add(message.ordering_key)
                outcomes.append(None if self.says_done and isinstance(failure, Retryable) else failure)
        return outcomes


class GoesOnBehindAFailure(Bulk):
    stops = False


class SaysDoneForABatch(Bulk):
    says_done = True


class TurnsABatchRound(Bulk):
    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        return (await super().publish_batch(messages[::-1], deliveries[::-1]))[::-1]


class MemoryHarness(PublisherHarness):
    def __init__(self, kind: type[MemoryPublisher], timeout: float) -> None:
        self._broker = Broker()
        self._kind = kind
        self._timeout = timeout

    async def start(self) -> None:
        self._broker.up = True

    async def stop(self) -> None:
        self._broker.up = False

    async def pause(self) -> None:
        self._broker.running.clear()

    async def resume(self) -> None:
        self._broker.running.set()

    async def close(self) -> None:
        self._broker.running.set()

    def publisher(self) -> object:
        return self._kind(self._broker, self._timeout)

    async def received(self) -> Sequence[Received]:
        return self._broker.kept

    def too_large(self) -> bytes:
        return b"x" * (LIMIT + 1)


class Memory(PublisherConformance):
    timeout = 0.2
    slack = 0.5
    kind: type[MemoryPublisher] = MemoryPublisher

    def harness(self) -> PublisherHarness:
        return MemoryHarness(self.kind, self.timeout)


class TestASoundPublisherPasses(Memory):
    pass


class TestASoundPublisherOfBatchesPasses(Memory):
    kind = Bulk


TESTS = sorted(name for name in dir(Memory) if name.startswith("test_"))


def failures(kind: type[MemoryPublisher], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Run the suite and return the names of the tests that found something."""
    suite = Memory()
    monkeypatch.setattr(suite, "kind", kind)
    found = set()
    for name in TESTS:
        try:
            getattr(suite, name)()
        except (AssertionError, Retryable, Permanent, TimeoutError):
            found.add(name)
    return found


@pytest.mark.parametrize(
    ("kind", "finder"),
    [
        (SaysDoneTooEarly, "test_stopped_is_retryable_and_started_again_it_delivers"),
        (IgnoresTheLease, "test_a_publish_ends_before_its_lease"),
        (LosesTheToken, "test_identity_attempt_token_and_key_travel"),
        (TidiesThePayload, "test_payload_and_content_type_are_byte_identical"),
        (StripsText, "test_free_text_in_every_field_arrives"),
        (RetriesTheHopeless, "test_too_large_is_permanent_and_spares_its_neighbours"),
        (RefusesRepeats, "test_the_same_message_twice_is_success"),
        (NeverRecovers, "test_never_reached_is_retryable_and_later_it_delivers"),
        (CannotReopen, "test_closed_and_opened_again_it_delivers"),
        (GoesOnBehindAFailure, "test_in_a_batch_a_failure_stops_its_key_and_nothing_else"),
        (SaysDoneForABatch, "test_a_batch_for_a_stopped_destination_is_retryable"),
        (TurnsABatchRound, "test_a_batch_that_is_acknowledged_arrives_and_its_keys_in_order"),
    ],
)
def test_a_planted_fault_is_found(
    kind: type[MemoryPublisher], finder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finder in failures(kind, monkeypatch)


async def test_a_publish_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Memory()
    monkeypatch.setattr(suite, "kind", WaitsForEver)
    monkeypatch.setattr("fencepost.testing.conformance.rig.GIVE_UP_SECONDS", 0.1)
    with pytest.raises(AssertionError, match="still running"):
        await asyncio.to_thread(suite.test_paused_ends_by_its_own_deadline_and_resumed_it_delivers)


class OptsOutOfNothingKnown(Memory):
    opt_outs: ClassVar = {"levitation": "too heavy"}


class OptsOutWithoutReason(Memory):
    opt_outs: ClassVar = {"pause": " "}


class OptsOut(Memory):
    opt_outs: ClassVar = {"pause": "memory cannot freeze"}
    ran: ClassVar[list[str]] = []

    @scenario(needs="pause")
    async def test_needs_a_pause(self, rig: object) -> None:
        self.ran.append("pause")

    @scenario()
    async def test_needs_nothing(self, rig: object) -> None:
        self.ran.append("nothing")


def test_an_opt_out_must_exist_and_have_a_reason() -> None:
    with pytest.raises(AssertionError, match="levitation"):
        OptsOutOfNothingKnown().test_opt_outs_name_capabilities_and_give_reasons()
    with pytest.raises(AssertionError, match="reason"):
        OptsOutWithoutReason().test_opt_outs_name_capabilities_and_give_reasons()


def test_an_opt_out_leaves_out_what_needs_it_and_nothing_else() -> None:
    suite = OptsOut()
    suite.test_opt_outs_name_capabilities_and_give_reasons()
    suite.test_needs_a_pause()
    suite.test_needs_nothing()
    assert suite.ran == ["nothing"]
