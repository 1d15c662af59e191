"""What is acknowledged arrives, as it was; what cannot be sent fails alone."""

# ruff: noqa: S101 - a test suite is made of asserts

from __future__ import annotations

import asyncio
from uuid import uuid4

from fencepost.core.records import Message
from fencepost.errors import Permanent, Retryable
from fencepost.testing.conformance.received import Received
from fencepost.testing.conformance.rig import Outcome, Rig, Suite, hook, scenario
from fencepost.testing.conformance.texts import BAD_HEADERS, FREE_TEXTS, PAYLOADS, USER_HEADERS
from fencepost.testing.samples import sample_delivery, sample_message


class Delivered(Suite):
    """A destination that is up."""

    @scenario()
    async def test_acknowledged_means_received(self, rig: Rig) -> None:
        message = sample_message()
        await rig.publish(message)
        assert len(await rig.arrivals(message)) == 1

    @scenario()
    async def test_a_hundred_at_once_all_arrive(self, rig: Rig) -> None:
        messages = [sample_message(id=number) for number in range(100)]
        await asyncio.gather(*(rig.publish(message) for message in messages))
        await rig.all_arrived(messages)
        sent = {message.message_id for message in messages}
        arrived = [one.message_id for one in await rig.harness.received() if one.message_id in sent]
        assert len(arrived) == len(sent), f"{len(arrived) - len(sent)} arrived more than once"

    @scenario()
    async def test_payload_and_content_type_are_byte_identical(self, rig: Rig) -> None:
        for payload, content_type in PAYLOADS:
            message = sample_message(payload=payload, content_type=content_type)
            await rig.publish(message)
            arrived = await rig.arrived(message)
            assert arrived.payload == payload
            assert arrived.content_type == content_type

    @scenario(needs="headers")
    async def test_headers_are_identical(self, rig: Rig) -> None:
        message = sample_message(headers=USER_HEADERS)
        await rig.publish(message)
        assert lower(await rig.arrived(message)) == {k.lower(): v for k, v in USER_HEADERS.items()}

    @scenario(needs="identity")
    async def test_identity_attempt_token_and_key_travel(self, rig: Rig) -> None:
        original = str(uuid4())
        message = sample_message("order.paid", ordering_key='["order","42"]')
        await rig.publish(message, sample_delivery(attempt=3, token=17, replay_of=original))
        arrived = await rig.arrived(message)
        assert (arrived.attempt, arrived.token, arrived.replay_of) == (3, 17, original)
        assert (arrived.event_type, arrived.key) == ("order.paid", '["order","42"]')

    @scenario(needs="headers identity")
    async def test_a_header_cannot_take_over_the_publishers_own(self, rig: Rig) -> None:
        message = sample_message(
            headers={"fencepost-token": "999", "Fencepost-Message-Id": str(uuid4()), "Host": "evil.example"}
        )
        await rig.publish(message, sample_delivery(token=5))
        assert (await rig.arrived(message)).token == 5

    @scenario(needs="free_text")
    async def test_free_text_in_every_field_arrives(self, rig: Rig) -> None:
        for message, text in odd_messages():
            await rig.publish(message, sample_delivery(token=5))
            check_odd(await rig.arrived(message), text)

    @scenario(needs="header_names")
    async def test_one_bad_message_spares_twenty_neighbours(self, rig: Rig) -> None:
        batch = twenty_and(sample_message(headers=BAD_HEADERS, id=99))
        outcomes = await asyncio.gather(*(rig.outcome(message) for message in batch))
        await check_only_the_tenth_failed(rig, batch, outcomes)
        assert "not a" in str(outcomes[10]), "the failure names the header"

    @scenario(needs="too_large")
    async def test_too_large_is_permanent_and_spares_its_neighbours(self, rig: Rig) -> None:
        batch = twenty_and(sample_message(payload=rig.harness.too_large()))
        outcomes = await asyncio.gather(*(rig.outcome(message) for message in batch))
        await check_only_the_tenth_failed(rig, batch, outcomes)

    @scenario()
    async def test_the_same_message_twice_is_success(self, rig: Rig) -> None:
        message = sample_message()
        await rig.publish(message, sample_delivery(attempt=1, token=1))
        await rig.publish(message, sample_delivery(attempt=2, token=2))
        await rig.arrived(message)

    @scenario(needs="unroutable")
    async def test_what_has_no_place_there_is_a_failure_that_says_what_is_missing(self, rig: Rig) -> None:
        publisher, missing = rig.harness.unroutable()
        async with rig.another(publisher) as lost:
            outcomes = [await lost.outcome(sample_message())]
            if lost.takes_batches:
                outcomes += await lost.outcomes([sample_message(), sample_message(ordering_key="k")])
        for outcome in outcomes:
            assert isinstance(outcome, (Retryable, Permanent)), f"neither retryable nor permanent: {outcome!r}"
            assert missing in str(outcome), f"does not say that {missing!r} is missing: {outcome}"

    @scenario()
    async def test_without_lease_nothing_is_sent(self, rig: Rig) -> None:
        message = sample_message()
        await rig.refused(message, sample_delivery(lease=0), within=self.slack)
        assert message.message_id not in {one.message_id for one in await rig.harness.received()}

    @scenario()
    async def test_closed_and_opened_again_it_delivers(self, rig: Rig) -> None:
        await rig.publish(sample_message())
        await hook(rig.publisher.close)
        await hook(rig.publisher.close)
        await hook(rig.publisher.open)
        message = sample_message()
        await rig.publish(message)
        await rig.arrived(message)


def odd_messages() -> list[tuple[Message, str]]:
    """Return a message for each free text, which stands in every field of it."""
    return [
        (
            sample_message(
                text, ordering_key=text, aggregate_type=text, aggregate_id=text, headers={"free-text": text}
            ),
            text,
        )
        for text in FREE_TEXTS.values()
    ]


def check_odd(arrived: Received, text: str) -> None:
    """Check that a message of `odd_messages`, sent with token 5, arrived as it was."""
    label = f"{text[:20]!r}"
    assert (arrived.event_type, arrived.key) == (text, text), label
    assert lower(arrived) == {"free-text": text}, label
    assert arrived.token == 5, label


def twenty_and(bad: Message) -> list[Message]:
    """Return twenty good messages and a bad one in their midst, at place 10."""
    good = [sample_message(id=number) for number in range(20)]
    return [*good[:10], bad, *good[10:]]


async def check_only_the_tenth_failed(rig: Rig, batch: list[Message], outcomes: list[Outcome]) -> None:
    """Check that the bad message of `twenty_and` is a permanent failure, and that the others arrived."""
    assert isinstance(outcomes[10], Permanent), outcomes[10]
    good, rest = [*batch[:10], *batch[11:]], [*outcomes[:10], *outcomes[11:]]
    assert rest == [None] * 20, f"one bad message cost its neighbours: {rest}"
    await rig.all_arrived(good)


def lower(received: Received) -> dict[str, str]:
    """Return the message's headers with lower-case names."""
    return {name.lower(): value for name, value in received.headers.items()}
