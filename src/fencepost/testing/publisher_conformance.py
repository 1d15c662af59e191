"""The suite that every destination passes, against the real thing: subclass it for your own publisher.

::

    class MyHarness(PublisherHarness):
        ...  # how to start, stop, pause and read your broker

    class TestMyPublisher(PublisherConformance):
        opt_outs = {"too_large": "this broker has no size limit"}

        def harness(self) -> PublisherHarness:
            return MyHarness()

Any test runner that collects ``test_`` methods will do: each is an ordinary function that runs its own event
loop. What a destination cannot have is opted out of by name *with the reason* (`CAPABILITIES`); the suite checks
that the name exists and the reason is there.
"""

# ruff: noqa: S101, PT017 - a test suite is made of asserts

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from uuid import UUID, uuid4

from fencepost.core.records import Message
from fencepost.errors import Permanent, Retryable
from fencepost.publishers import headers as names
from fencepost.publishers.base import Delivery
from fencepost.publishers.callable import Invocable, as_publisher, checked_outcomes
from fencepost.testing.samples import sample_delivery, sample_message

FREE_TEXTS: Mapping[str, str] = {
    "empty": "",
    "long": "x" * 800,
    "emoji": "\N{ROCKET}" * 100,
    "line ends": "a\r\nFencepost-Token: 999\r\n\r\nGET / HTTP/1.1\r\n",
    "controls": "tab\there, bell\a, escape\x1b[31m, delete\x7f",
    "dot": ".",
    "dots": "..a..b..",
    "wildcards": "*.>",
    "blanks": "  two before and one after ",
    "percent": "100%25 %zz %",
    "server subject": "$JS.API.STREAM.DELETE.EVENTS",
    "path": "../../etc/passwd?x=1#y",
    "quotes": "\"'\\{}[]<>,;:=",
    "no latin": "заказ.создан 注文",
}
"""None of these is refused at enqueue, so a publisher meets all of them."""

PAYLOADS: Sequence[tuple[bytes, str]] = (
    (b'{ "b":1,"a" : 1.00, "a": 1e400, "big": 123456789012345678901234567890 }', "application/json"),
    ('{"text": "заказ \N{ROCKET} \\u0000"}'.encode(), "application/json"),
    (b"null", "application/json"),
    (b"", "application/octet-stream"),
    (bytes(range(256)), "application/x-protobuf"),
    (b"NaN", "text/plain; charset=utf-8"),
)

USER_HEADERS: Mapping[str, str] = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "baggage": "userId=alice,serverNode=DF%2028",
    "tenant": "acme",
    "X-Odd_Name.1": 'value: with, separators; and "quotes"',
}


@dataclass(frozen=True, slots=True)
class Received:
    """What arrived at the destination, decoded by the destination's documented rule."""

    message_id: UUID
    event_type: str
    key: str | None
    attempt: int
    token: int
    payload: bytes
    content_type: str
    replay_of: str | None
    headers: Mapping[str, str]
    """The headers of the message, without the publisher's own."""


def received_from(payload: bytes, headers: Mapping[str, str]) -> Received:
    """Decode what a publisher sent that uses `fencepost.publishers.headers`.

    Args:
        payload: the body.
        headers: all headers as they arrived, in any case (HTTP). Those of reserved names are the publisher's.
    """
    own = {name.lower(): value for name, value in headers.items()}
    user = {
        name: value if name.lower() in names.TRACE_HEADERS else names.decode_value(value)
        for name, value in headers.items()
        if not names.is_reserved(name)
    }
    return Received(
        message_id=UUID(own[names.MESSAGE_ID.lower()]),
        event_type=names.decode_value(own[names.EVENT_TYPE.lower()]),
        key=_decoded(own.get(names.KEY.lower())),
        attempt=int(own[names.ATTEMPT.lower()]),
        token=int(own[names.TOKEN.lower()]),
        payload=payload,
        content_type=names.decode_value(own[names.CONTENT_TYPE.lower()]),
        replay_of=_decoded(own.get(names.REPLAY_OF.lower())),
        headers=user,
    )


def _decoded(value: str | None) -> str | None:
    return None if value is None else names.decode_value(value)


class PublisherHarness(ABC):
    """A real destination under the suite's control. One harness serves one test."""

    @abstractmethod
    async def start(self) -> None:
        """Start the destination, or start it again after `stop`, at the same address."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop it: connections break, new ones are refused."""

    @abstractmethod
    async def pause(self) -> None:
        """Freeze it (SIGSTOP, or a reader that does not read): connections stay, nothing is answered."""

    @abstractmethod
    async def resume(self) -> None:
        """Let it go on after `pause`."""

    @abstractmethod
    async def close(self) -> None:
        """Stop whatever still runs, in whatever state."""

    @abstractmethod
    def publisher(self) -> object:
        """Return a new publisher whose own time-out is `PublisherConformance.timeout` seconds."""

    @abstractmethod
    async def received(self) -> Sequence[Received]:
        """Return everything that arrived so far, repeats included, in order.

        It is called after publishes returned, so what they acknowledged must be in it: no waiting.
        """

    @abstractmethod
    def too_large(self) -> bytes:
        """Return a payload above the destination's size limit (never called when opted out)."""


GIVE_UP_SECONDS = 10.0
"""A publish that is this late is not waited for any longer."""

Scenario = Callable[[Any, "Rig"], Awaitable[None]]
Suite = TypeVar("Suite", bound="PublisherConformance")


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

    async def publish_batch(self, messages: Sequence[Message]) -> Sequence[BaseException | None]:
        """Publish as the dispatcher does, and check that there is an outcome for each message."""
        call = self.publisher.call_batch
        assert call is not None, "the publisher has no publish_batch"
        deliveries = [sample_delivery() for _ in messages]
        if self.publisher.is_batch_async:
            outcomes = await call(messages, deliveries)
        else:
            outcomes = await asyncio.to_thread(call, messages, deliveries)
            if inspect.isawaitable(outcomes):
                outcomes = await outcomes
        return checked_outcomes(outcomes, len(messages))

    async def refused(self, message: Message, delivery: Delivery | None = None, *, within: float) -> Retryable:
        """Publish, and check that it ends as a retryable failure within so many seconds."""
        started = time.monotonic()
        try:
            await asyncio.wait_for(self.publish(message, delivery), within + GIVE_UP_SECONDS)
        except TimeoutError:
            raise AssertionError(f"still running {GIVE_UP_SECONDS} s after it should have ended") from None
        except Retryable as failure:
            took = time.monotonic() - started
            assert took <= within, f"took {took:.2f} s, more than {within:.2f} s: {failure}"
            assert str(failure), "a failure says why"
            return failure
        raise AssertionError("the publish was acknowledged by a destination that cannot have it")

    async def arrived(self, message: Message) -> Received:
        """Return the message as it arrived first; fail if it did not."""
        return (await self.arrivals(message))[0]

    async def arrivals(self, message: Message) -> list[Received]:
        """Return each arrival of the message, at least one."""
        everything = await self.harness.received()
        found = [one for one in everything if one.message_id == message.message_id]
        assert found, f"acknowledged, but not received: {message.message_id}"
        return found


def scenario(*, needs: str = "") -> Callable[[Scenario], Callable[[Any], None]]:
    """Turn an async scenario into a plain test method with a rig of its own."""

    def decorate(test: Scenario) -> Callable[[Any], None]:
        @functools.wraps(test)
        def run(self: PublisherConformance) -> None:
            if needs not in self.opt_outs:
                asyncio.run(self.run(test))

        # Test runners read the signature for fixtures; the rig is not one.
        del run.__wrapped__
        CAPABILITIES.add(needs)
        return run

    return decorate


CAPABILITIES: set[str] = set()


class PublisherConformance(ABC):
    """The tests. See this module's docstring for how to use it."""

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
            publisher = as_publisher(harness.publisher())
            await _hook(publisher.open)
            try:
                yield Rig(harness, publisher, self.timeout)
            finally:
                await _hook(publisher.close)
        finally:
            await harness.close()

    def test_opt_outs_name_capabilities_and_give_reasons(self) -> None:
        known = CAPABILITIES - {""}
        assert set(self.opt_outs) <= known, f"unknown: {set(self.opt_outs) - known}; known: {sorted(known)}"
        assert all(reason.strip() for reason in self.opt_outs.values()), "an opt-out states its reason"

    @scenario()
    async def test_acknowledged_means_received(self, rig: Rig) -> None:
        message = sample_message()
        await rig.publish(message)
        assert len(await rig.arrivals(message)) == 1

    @scenario()
    async def test_a_hundred_at_once_all_arrive(self, rig: Rig) -> None:
        messages = [sample_message(id=number) for number in range(100)]
        await asyncio.gather(*(rig.publish(message) for message in messages))
        arrived = {one.message_id for one in await rig.harness.received()}
        assert arrived == {message.message_id for message in messages}

    @scenario()
    async def test_payload_and_content_type_are_byte_identical(self, rig: Rig) -> None:
        for payload, content_type in PAYLOADS:
            message = sample_message(payload=payload, content_type=content_type)
            await rig.publish(message)
            arrived = await rig.arrived(message)
            assert arrived.payload == payload
            assert arrived.content_type == content_type

    @scenario()
    async def test_headers_are_identical(self, rig: Rig) -> None:
        message = sample_message(headers=USER_HEADERS)
        await rig.publish(message)
        assert _lower(await rig.arrived(message)) == {k.lower(): v for k, v in USER_HEADERS.items()}

    @scenario()
    async def test_identity_attempt_token_and_key_travel(self, rig: Rig) -> None:
        original = str(uuid4())
        message = sample_message("order.paid", ordering_key='["order","42"]')
        await rig.publish(message, sample_delivery(attempt=3, token=17, replay_of=original))
        arrived = await rig.arrived(message)
        assert (arrived.attempt, arrived.token, arrived.replay_of) == (3, 17, original)
        assert (arrived.event_type, arrived.key) == ("order.paid", '["order","42"]')

    @scenario()
    async def test_a_header_cannot_take_over_the_publishers_own(self, rig: Rig) -> None:
        message = sample_message(
            headers={"fencepost-token": "999", "Fencepost-Message-Id": str(uuid4()), "Host": "evil.example"}
        )
        await rig.publish(message, sample_delivery(token=5))
        assert (await rig.arrived(message)).token == 5

    @scenario(needs="free_text")
    async def test_free_text_in_every_field_arrives(self, rig: Rig) -> None:
        for label, text in FREE_TEXTS.items():
            message = sample_message(
                text, ordering_key=text, aggregate_type=text, aggregate_id=text, headers={"free-text": text}
            )
            await rig.publish(message, sample_delivery(token=5))
            arrived = await rig.arrived(message)
            assert (arrived.event_type, arrived.key) == (text, text), label
            assert _lower(arrived) == {"free-text": text}, label
            assert arrived.token == 5, label

    @scenario(needs="header_names")
    async def test_one_bad_message_spares_twenty_neighbours(self, rig: Rig) -> None:
        good = [sample_message(id=number) for number in range(20)]
        bad = sample_message(headers={"not a\r\nname": "x"}, id=99)
        batch = [*good[:10], bad, *good[10:]]
        results = await asyncio.gather(*(rig.publish(message) for message in batch), return_exceptions=True)
        assert [result for result in results if not isinstance(result, Permanent)] == [None] * 20
        failure = results[10]
        assert isinstance(failure, Permanent)
        assert "not a" in str(failure), "the failure names the header"
        for message in good:
            await rig.arrived(message)

    @scenario(needs="too_large")
    async def test_too_large_is_permanent_and_spares_its_neighbours(self, rig: Rig) -> None:
        good = [sample_message(id=number) for number in range(20)]
        batch = [*good[:10], sample_message(payload=rig.harness.too_large()), *good[10:]]
        results = await asyncio.gather(*(rig.publish(message) for message in batch), return_exceptions=True)
        assert isinstance(results[10], Permanent), results[10]
        assert [result for result in results if not isinstance(result, Permanent)] == [None] * 20
        for message in good:
            await rig.arrived(message)

    @scenario()
    async def test_a_batch_that_is_acknowledged_arrives_and_its_keys_in_order(self, rig: Rig) -> None:
        if not rig.takes_batches:
            return
        keys = (None, "a", "b")
        batch = [sample_message(id=number, ordering_key=keys[number % 3]) for number in range(60)]
        assert list(await rig.publish_batch(batch)) == [None] * 60
        places = {one.message_id: place for place, one in enumerate(await rig.harness.received())}
        for key in keys:
            arrived = [places[one.message_id] for one in batch if one.ordering_key == key]
            assert key is None or arrived == sorted(arrived), f"the messages of key {key} arrived out of order"

    @scenario(needs="too_large")
    async def test_in_a_batch_a_failure_stops_its_key_and_nothing_else(self, rig: Rig) -> None:
        if not rig.takes_batches:
            return
        first, behind = (sample_message(id=number, ordering_key="k") for number in (1, 3))
        bad = sample_message(id=2, ordering_key="k", payload=rig.harness.too_large())
        other, unordered = sample_message(id=4, ordering_key="other"), sample_message(id=5)
        outcomes = await rig.publish_batch([first, bad, behind, other, unordered])
        assert isinstance(outcomes[1], Permanent), outcomes[1]
        assert outcomes[2] is not None, "reported as delivered behind a failure of its key"
        assert [outcomes[0], *outcomes[3:]] == [None] * 3
        for message in (first, other, unordered):
            await rig.arrived(message)
        received = {one.message_id for one in await rig.harness.received()}
        assert behind.message_id not in received, "published behind a failure of its key"

    @scenario(needs="stop")
    async def test_a_batch_for_a_stopped_destination_is_retryable(self, rig: Rig) -> None:
        if not rig.takes_batches:
            return
        await rig.harness.stop()
        try:
            outcomes = await rig.publish_batch([sample_message(id=number) for number in range(5)])
        except Retryable:
            return  # for all of them
        assert all(isinstance(outcome, Retryable) for outcome in outcomes), outcomes

    @scenario()
    async def test_the_same_message_twice_is_success(self, rig: Rig) -> None:
        message = sample_message()
        await rig.publish(message, sample_delivery(attempt=1, token=1))
        await rig.publish(message, sample_delivery(attempt=2, token=2))
        await rig.arrived(message)

    @scenario(needs="stop")
    async def test_stopped_is_retryable_and_started_again_it_delivers(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await rig.harness.stop()
        for _ in range(2):
            await rig.refused(sample_message(), within=rig.timeout + self.slack)
        await rig.harness.start()
        message = sample_message()
        await self._delivered_again(rig, message)
        await rig.arrived(message)

    @scenario(needs="stop")
    async def test_never_reached_is_retryable_and_later_it_delivers(self, rig: Rig) -> None:
        await rig.harness.stop()
        await rig.refused(sample_message(), within=rig.timeout + self.slack)
        await rig.harness.start()
        message = sample_message()
        await self._delivered_again(rig, message)
        await rig.arrived(message)

    @scenario(needs="pause")
    async def test_paused_ends_by_its_own_deadline_and_resumed_it_delivers(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await rig.harness.pause()
        waiting = [rig.refused(sample_message(), within=rig.timeout + self.slack) for _ in range(3)]
        await asyncio.gather(*waiting)
        await rig.harness.resume()
        message = sample_message()
        await self._delivered_again(rig, message)
        await rig.arrived(message)

    @scenario(needs="pause")
    async def test_a_publish_ends_before_its_lease(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await rig.harness.pause()
        lease = rig.timeout * 0.6
        await rig.refused(sample_message(), sample_delivery(lease=lease), within=lease)
        await rig.harness.resume()

    @scenario()
    async def test_without_lease_nothing_is_sent(self, rig: Rig) -> None:
        message = sample_message()
        await rig.refused(message, sample_delivery(lease=0), within=self.slack)
        assert message.message_id not in {one.message_id for one in await rig.harness.received()}

    @scenario(needs="pause")
    async def test_a_cancelled_publish_leaves_the_publisher_usable(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await rig.harness.pause()
        running = asyncio.ensure_future(rig.publish(sample_message()))
        await asyncio.wait({running}, timeout=rig.timeout / 4)
        running.cancel()
        await asyncio.wait({running}, timeout=self.slack)
        assert running.cancelled(), "a publish must end when it is cancelled"
        await rig.harness.resume()
        message = sample_message()
        await self._delivered_again(rig, message)
        await rig.arrived(message)

    @scenario()
    async def test_closed_and_opened_again_it_delivers(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await _hook(rig.publisher.close)
        await _hook(rig.publisher.close)
        await _hook(rig.publisher.open)
        message = sample_message()
        await rig.publish(message)
        await rig.arrived(message)

    async def _delivered_again(self, rig: Rig, message: Message) -> None:
        """Publish, and once more after a retryable failure: one may go into noticing a dead connection."""
        try:
            await rig.publish(message)
        except Retryable:
            await rig.publish(message, sample_delivery(attempt=2, token=2))


def _lower(received: Received) -> dict[str, str]:
    return {name.lower(): value for name, value in received.headers.items()}


async def _hook(hook: Callable[[], Any] | None) -> None:
    result = hook() if hook is not None else None
    if inspect.isawaitable(result):
        await result
