"""The conformance suite itself: a sound publisher passes it, and each planted fault is found by name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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
        self.places = {"home"}
        self.up = True
        self.running, self.answering = asyncio.Event(), asyncio.Event()
        self.running.set()
        self.answering.set()
        self.resets = 0
        self.cut_after: int | None = None
        self.cut_answer = False
        self.slots = asyncio.Semaphore(8)

    async def exchange(self, message: Message, headers: Mapping[str, str]) -> None:
        """Take a message in and answer; a connection may be cut before and after that."""
        resets = self.resets
        async with self.slots:
            await self.running.wait()
            await asyncio.sleep(0)
            self._check(resets, size=len(message.payload) + sum(map(len, [*headers, *headers.values()])))
            self.kept.append(received_from(message.payload, headers))
            await self.answering.wait()
            await asyncio.sleep(0)
            cut, self.cut_answer = self.cut_answer, False
            if cut:
                raise Retryable("reset before the answer")
            self._check(resets)

    def _check(self, resets: int, size: int = 0) -> None:
        if self.resets != resets:
            raise Retryable("reset")
        if self.cut_after is not None and size:
            self.cut_after -= size
            if self.cut_after <= 0:
                self.cut_after = None
                raise Retryable("reset while sending")


class MemoryPublisher:
    volatile = False
    says_unavailable = True

    def __init__(self, broker: Broker, timeout: float, place: str = "home") -> None:
        self._broker = broker
        self._timeout = timeout
        self._place = place

    async def publish(self, message: Message, delivery: Delivery) -> None:
        headers = outgoing_headers(message, delivery)
        if len(message.payload) > LIMIT:
            raise Permanent("too large")
        if not self._broker.up:
            raise Retryable("down", unavailable=self.says_unavailable)
        if self._place not in self._broker.places:
            raise Retryable(f"there is no place {self._place!r}")
        try:
            async with asyncio.timeout(publish_budget(delivery, self._timeout)):
                await self._broker.exchange(message, headers)
        except TimeoutError:
            raise Retryable("no answer") from None


class AcknowledgesWithoutSending(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        publish_budget(delivery, self._timeout)


class TakesACutForDone(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        try:
            await super().publish(message, delivery)
        except Retryable as failure:
            if "reset" not in str(failure):
                raise


class LetsACutOut(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        try:
            await super().publish(message, delivery)
        except Retryable as failure:
            if "reset" in str(failure):
                raise ConnectionResetError from None
            raise


class TakesUnroutableForDone(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        if self._place in self._broker.places:
            await super().publish(message, delivery)


class DoesNotSayWhatIsMissing(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        if self._place not in self._broker.places:
            raise Retryable("refused (312)")
        await super().publish(message, delivery)


class SendsItLater(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        self._waiting: list[tuple[Message, Delivery]]
        self._waiting = [*getattr(self, "_waiting", []), (message, delivery)]
        await super().publish(message, delivery)
        waiting, self._waiting = self._waiting[:-1], []
        for kept in waiting:
            await super().publish(*kept)


class ForgetsAtARestart(MemoryPublisher):
    volatile = True


class DoesNotSayThatItIsDown(MemoryPublisher):
    says_unavailable = False


class ClosesSlowly(MemoryPublisher):
    async def close(self) -> None:
        await asyncio.sleep(2.1)


class MakesUpOutcomesAtClose(MemoryPublisher):
    closed = False

    async def publish(self, message: Message, delivery: Delivery) -> None:
        sending = asyncio.ensure_future(super().publish(message, delivery))
        while not sending.done():
            await asyncio.wait({sending}, timeout=0.001)
            if self.closed:
                sending.cancel()
                return
        sending.result()

    def open(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class WaitsForTheAnswerForEver(MemoryPublisher):
    async def publish(self, message: Message, delivery: Delivery) -> None:
        if not self._broker.answering.is_set():
            await self._broker.exchange(message, outgoing_headers(message, delivery))
        await super().publish(message, delivery)


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


class Pipelines(Bulk):
    """Sends all at once, and reports what is behind a failure as failed: too late, it has been sent."""

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        sending = (self.publish(*pair) for pair in zip(messages, deliveries, strict=True))
        results = await asyncio.gather(*sending, return_exceptions=True)
        failed: set[str | None] = set()
        outcomes: list[Exception | None] = []
        for message, result in zip(messages, results, strict=True):
            behind = message.ordering_key is not None and message.ordering_key in failed
            outcome = Retryable("behind a failure") if behind else result
            assert outcome is None or isinstance(outcome, Exception)
            if outcome is not None:
                failed.add(message.ordering_key)
            outcomes.append(outcome)
        return outcomes


class OneBadMessageCostsTheBatch(Bulk):
    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        for message, delivery in zip(messages, deliveries, strict=True):
            outgoing_headers(message, delivery)
        return await super().publish_batch(messages, deliveries)


class StripsTextInABatch(Bulk):
    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        stripped = [replace(message, event_type=message.event_type.strip()) for message in messages]
        return await super().publish_batch(stripped, deliveries)


class OneLeaseCostsTheBatch(Bulk):
    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        min(publish_budget(delivery, self._timeout) for delivery in deliveries)
        return await super().publish_batch(messages, deliveries)


class IgnoresALeaseInABatch(Bulk):
    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        return await super().publish_batch(messages, [deliveries[0]] * len(deliveries))


class BatchesHaveNoDeadline(Bulk):
    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        await self._broker.running.wait()
        return await super().publish_batch(messages, deliveries)


class MemoryHarness(PublisherHarness):
    def __init__(self, kind: type[MemoryPublisher], timeout: float) -> None:
        self._broker = Broker()
        self._kind = kind
        self._timeout = timeout

    async def start(self) -> None:
        self._broker.up = True

    async def stop(self) -> None:
        self._broker.up = False
        if self._kind.volatile:
            self._broker.kept.clear()

    async def silence(self) -> None:
        self._broker.answering.clear()

    async def black_hole(self) -> None:
        self._broker.running.clear()

    async def cut(self) -> None:
        self._broker.resets += 1

    async def cut_next(self, after: int | None) -> None:
        self._broker.cut_after, self._broker.cut_answer = after, after is None

    async def heal(self) -> None:
        self._broker.cut_after, self._broker.cut_answer = None, False
        self._broker.running.set()
        self._broker.answering.set()

    def unroutable(self) -> tuple[object, str]:
        return self._kind(self._broker, self._timeout, "nowhere"), "nowhere"

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


def finds(finder: str, kind: type[MemoryPublisher], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run one test of the suite, and tell whether it found something."""
    suite = Memory()
    monkeypatch.setattr(suite, "kind", kind)
    try:
        getattr(suite, finder)()
    except (AssertionError, Retryable, Permanent, TimeoutError):
        return True
    return False


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
        (AcknowledgesWithoutSending, "test_acknowledged_means_received"),
        (TakesACutForDone, "test_cut_in_flight_nothing_is_made_up_and_it_delivers_again"),
        (LetsACutOut, "test_cut_in_flight_nothing_is_made_up_and_it_delivers_again"),
        (TakesUnroutableForDone, "test_what_has_no_place_there_is_a_failure_that_says_what_is_missing"),
        (DoesNotSayWhatIsMissing, "test_what_has_no_place_there_is_a_failure_that_says_what_is_missing"),
        (SendsItLater, "test_what_failed_for_want_of_a_connection_is_not_sent_later"),
        (ForgetsAtARestart, "test_restarted_it_delivers_and_has_what_it_acknowledged"),
        (DoesNotSayThatItIsDown, "test_stopped_is_retryable_and_started_again_it_delivers"),
        (ClosesSlowly, "test_closed_while_acknowledgements_are_missing_it_ends_soon"),
        (MakesUpOutcomesAtClose, "test_closed_in_flight_it_ends_soon_and_nothing_is_made_up"),
        (Pipelines, "test_the_order_of_a_key_survives_a_cut_and_the_retry"),
        (OneBadMessageCostsTheBatch, "test_in_a_batch_one_bad_message_spares_twenty_neighbours"),
        (OneLeaseCostsTheBatch, "test_in_a_batch_one_with_hardly_any_lease_spares_twenty_neighbours"),
        (IgnoresALeaseInABatch, "test_in_a_batch_one_with_hardly_any_lease_spares_twenty_neighbours"),
        (StripsTextInABatch, "test_in_a_batch_free_text_in_every_field_arrives_beside_twenty_others"),
    ],
)
def test_a_planted_fault_is_found(
    kind: type[MemoryPublisher], finder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finds(finder, kind, monkeypatch)
    assert not finds(finder, Bulk, monkeypatch)


@pytest.mark.parametrize(
    ("kind", "finder"),
    [
        (WaitsForEver, "test_paused_ends_by_its_own_deadline_and_resumed_it_delivers"),
        (WaitsForEver, "test_in_a_black_hole_it_ends_by_its_own_deadline_and_later_it_delivers"),
        (BatchesHaveNoDeadline, "test_in_a_black_hole_it_ends_by_its_own_deadline_and_later_it_delivers"),
        (
            WaitsForTheAnswerForEver,
            "test_an_acknowledgement_that_does_not_arrive_is_retryable_and_later_it_delivers",
        ),
    ],
)
def test_a_publish_that_never_ends_is_found(
    kind: type[MemoryPublisher], finder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = Memory()
    monkeypatch.setattr(suite, "kind", kind)
    monkeypatch.setattr("fencepost.testing.conformance.rig.GIVE_UP_SECONDS", 0.1)
    with pytest.raises(AssertionError, match="still running"):
        getattr(suite, finder)()


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
