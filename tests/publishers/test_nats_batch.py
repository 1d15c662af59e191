"""Batches to JetStream on a real server: what fails alone, what stops a key, and what says that all is down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from nats.aio.msg import Msg

from fencepost.core.records import Message
from fencepost.errors import Permanent, Retryable
from fencepost.publishers.batching import BEHIND
from fencepost.publishers.nats.publisher import NatsPublisher
from fencepost.testing import sample_delivery, sample_message
from tests.publishers.nats_server import NatsServer
from tests.publishers.test_nats import SLACK, TIMEOUT, add_stream, client_of, opened, stored


async def batch(publisher: NatsPublisher, messages: Sequence[Message]) -> list[Exception | None]:
    return await publisher.publish_batch(messages, [sample_delivery() for _ in messages])


async def test_a_key_stops_at_a_message_that_the_stream_refuses_and_the_others_go_on(
    nats_server: NatsServer,
) -> None:
    await add_stream(nats_server, max_msg_size=2_000)
    big = b"x" * 2_001
    messages = [
        sample_message(ordering_key="a"),
        sample_message(ordering_key="b"),
        sample_message(ordering_key="a", payload=big),
        sample_message(),
        sample_message(payload=big),
        sample_message(ordering_key="a"),
        sample_message(ordering_key="b"),
    ]
    async with opened(nats_server) as publisher:
        outcomes = await batch(publisher, messages)
    assert [type(outcome) for outcome in outcomes] == [
        *(type(None), type(None), Permanent, type(None)),
        *(Permanent, Retryable, type(None)),
    ]
    assert str(outcomes[5]) == BEHIND
    assert await stored(nats_server) == 4


async def test_one_subject_without_a_stream_and_one_without_an_answer_fail_alone(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with client_of(nats_server) as client, opened(nats_server) as publisher:
        await client.subscribe("mute")
        await client.flush()
        messages = [sample_message(), sample_message("mute"), sample_message("nobody"), sample_message()]
        started = time.monotonic()
        outcomes = await batch(publisher, messages)
        assert time.monotonic() - started < TIMEOUT + SLACK
        link = publisher._connecting
        await publisher.publish(sample_message(), sample_delivery())
        assert publisher._connecting is link, "the connection works: it is kept"
    assert outcomes[0] is None
    assert outcomes[3] is None
    assert "no acknowledgement for subject 'mute' before the deadline" in str(outcomes[1])
    assert "no JetStream stream listens on subject 'nobody'" in str(outcomes[2])
    for outcome in outcomes[1:3]:
        assert isinstance(outcome, Retryable)
        assert not outcome.unavailable, "other subjects work"


async def test_a_batch_larger_than_the_clients_buffer_arrives(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    messages = [sample_message(payload=b"x" * 100_000, id=number) for number in range(60)]
    async with opened(nats_server, timeout=10) as publisher:
        assert await batch(publisher, messages) == [None] * 60
    assert await stored(nats_server) == 60


async def test_keys_arrive_in_order_and_repeats_count_as_delivered(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    messages = [sample_message(id=number, ordering_key=f"k{number % 7}") for number in range(70)]
    async with opened(nats_server, timeout=5) as publisher:
        for _ in range(2):
            assert await batch(publisher, messages) == [None] * 70
    assert await stored(nats_server) == 70
    async with client_of(nats_server) as client:
        stream = client.jetstream()
        ids = [(await stream.get_msg("EVENTS", place)).headers or {} for place in range(1, 71)]
    arrived = [headers["Fencepost-Message-Id"] for headers in ids]
    for key in range(7):
        sent = [str(one.message_id) for one in messages[key::7]]
        assert [one for one in arrived if one in set(sent)] == sent


async def test_a_server_stopped_in_mid_batch_ends_it_at_once(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with client_of(nats_server) as client, opened(nats_server, timeout=60) as publisher:
        await client.subscribe("mute")
        await client.flush()
        messages = [sample_message(), *(sample_message("mute", ordering_key="k") for _ in range(3))]
        waiting = asyncio.create_task(batch(publisher, messages))
        await asyncio.wait({waiting}, timeout=0.2)
        await asyncio.to_thread(nats_server.stop)
        outcomes = await asyncio.wait_for(waiting, 5)
    assert outcomes[0] is None, "acknowledged before the server went"
    assert "connection lost before the acknowledgement" in str(outcomes[1])
    assert isinstance(outcomes[1], Retryable)
    assert not outcomes[1].unavailable, "it was sent: the stream may have it"
    assert [str(outcome) for outcome in outcomes[2:]] == [BEHIND] * 2


async def test_a_frozen_server_ends_a_big_batch_by_the_deadline(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with opened(nats_server) as publisher:
        await publisher.publish(sample_message(), sample_delivery())
        nats_server.pause()
        started = time.monotonic()
        outcomes = await batch(publisher, [sample_message(payload=b"x" * 900_000) for _ in range(20)])
        assert time.monotonic() - started < TIMEOUT + SLACK
        assert all("no acknowledgement" in str(outcome) for outcome in outcomes)
        nats_server.resume()
        await publisher.publish(sample_message(), sample_delivery())


async def test_closing_ends_a_batch_as_retryable_within_a_second(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    async with client_of(nats_server) as client, opened(nats_server, timeout=60) as publisher:
        await client.subscribe("mute")
        await client.flush()
        waiting = asyncio.create_task(batch(publisher, [sample_message(), sample_message("mute")]))
        await asyncio.wait({waiting}, timeout=0.2)
        await publisher.close()
        outcomes = await asyncio.wait_for(waiting, 1)
    assert outcomes[0] is None
    assert isinstance(outcomes[1], Retryable)


async def test_the_lease_of_each_message_bounds_the_batch(nats_server: NatsServer) -> None:
    await add_stream(nats_server)
    messages = [sample_message(), sample_message("mute"), sample_message()]
    deliveries = [sample_delivery(), sample_delivery(lease=0.5), sample_delivery(lease=0)]
    async with client_of(nats_server) as client, opened(nats_server, timeout=60) as publisher:
        await client.subscribe("mute")
        await client.flush()
        started = time.monotonic()
        outcomes = await publisher.publish_batch(messages, deliveries)
        assert time.monotonic() - started < 0.5
    assert outcomes[0] is None
    assert "before the deadline" in str(outcomes[1])
    assert "lease is about to end" in str(outcomes[2])
    assert await stored(nats_server) == 1


class TestUnavailable:
    """What opens the breaker of a queue, and what does not."""

    async def test_no_server(self, nats_server: NatsServer) -> None:
        nats_server.stop()
        async with opened(nats_server) as publisher:
            outcomes = await batch(publisher, [sample_message(), sample_message()])
        for outcome in outcomes:
            assert isinstance(outcome, Retryable)
            assert outcome.unavailable
        assert outcomes[0] is not outcomes[1]

    @pytest.mark.parametrize(("code", "unavailable"), [(10008, True), (10077, False), (10071, False)])
    async def test_what_the_server_says(self, nats_server: NatsServer, code: int, unavailable: bool) -> None:
        async def answer(message: Msg) -> None:
            await message.respond(b'{"error": {"code": 503, "err_code": %d, "description": "no"}}' % code)

        async with client_of(nats_server) as client, opened(nats_server) as publisher:
            await client.subscribe("service", cb=answer)
            await client.flush()
            with pytest.raises(Retryable, match=rf"JetStream refused subject 'service': no \({code}\)") as failure:
                await publisher.publish(sample_message("service"), sample_delivery())
        assert failure.value.unavailable is unavailable
