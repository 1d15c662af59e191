"""Brokers that answer what no broker should: never delivered, always a classified failure, and it passes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import mqtt5
import pytest
from nats.aio.msg import Msg

from fencepost.errors import Retryable
from fencepost.publishers.mqtt.publisher import MqttPublisher
from fencepost.publishers.nats.publisher import NatsPublisher
from fencepost.publishers.rabbitmq.publisher import RabbitPublisher
from fencepost.publishers.redis.publisher import RedisPublisher
from fencepost.testing import sample_delivery, sample_message
from tests.acceptor import Acceptor
from tests.publishers.nats_server import NatsServer

REDIS_ANSWERS = [b"+OK", b"$2\r\nOK", b"$0\r\n", b"*0", b":1", b"+QUEUED", b"*-1"]
NOT_REDIS = [b":", b"$a", b"*1\r\n" * 2_000, b"%", b"\xff"]
NOT_AMQP = [
    *(b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x01\x00\x00\x00\x00\x00\x02\x00<\xce"),
    *(b"\x01\x00\x00\x00\x00\x00\x04\x00\xff\x00\xff\xce", b"\xff" * 20, b"AMQP\x00\x00\x09\x01"),
]
NATS_ANSWERS = [
    *(
        b"",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"error":{"err_code":[]}}',
        b'{"error":{"err_code":{}}}',
    ),
    *(
        b'{"stream":1,"seq":2}',
        b'{"stream":"S","seq":null}',
        b'{"stream":"S","seq":true}',
        b'{"stream":{"a":1},"seq":1}',
    ),
]


def redis_that_answers(answer: bytes) -> Acceptor:
    """A server that takes every login, and answers an XADD or a script so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            is_write = b"XADD" in data or b"EVAL" in data
            writer.write(answer + b"\r\n" if is_write else b"+OK\r\n" * data.count(b"*"))

    return Acceptor(serve)


@pytest.mark.parametrize("answer", [*REDIS_ANSWERS, *NOT_REDIS], ids=lambda each: repr(each)[:20])
@pytest.mark.parametrize("option", ["", "&dedupe=60"])
async def test_redis_delivers_by_the_id_of_an_entry_only(answer: bytes, option: str) -> None:
    async with redis_that_answers(answer) as server:
        publisher = RedisPublisher(f"redis://127.0.0.1:{server.port}?timeout=1{option}")
        for keys in ((None,), ("k", "k")):
            messages = [sample_message(ordering_key=key) for key in keys]
            outcomes = await publisher.publish_batch(messages, [sample_delivery() for _ in messages])
            assert [type(each) for each in outcomes] == [Retryable] * len(keys)
        await publisher.close()


@pytest.mark.parametrize("answer", NATS_ANSWERS, ids=lambda each: repr(each)[:30])
async def test_nats_delivers_by_the_name_of_a_stream_and_a_number_only(
    nats_server: NatsServer, answer: bytes
) -> None:
    client = await nats_server.connect()

    async def respond(message: Msg) -> None:
        await message.respond(answer)

    await client.subscribe("odd", cb=respond)
    await client.flush()
    publisher = NatsPublisher(f"nats://127.0.0.1:{nats_server.port}?timeout=5&subject=odd")
    with pytest.raises(Retryable):
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()
    await client.close()


def read_packets(buffer: bytearray) -> Iterator[mqtt5.Packet]:
    """Yield the whole packets that a buffer begins with, and take them out of it."""
    while True:
        try:
            with memoryview(buffer) as view:
                packet, size = mqtt5.read(view)
        except IndexError:
            return
        del buffer[:size]
        yield packet


async def test_mqtt_gives_a_connection_up_on_which_an_answer_never_ends() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        # The start of a packet of 256 MB: what follows is taken for a part of it.
        before = b"\x40\xff\xff\xff\x7f" if connections == 1 else b""
        buffer = bytearray()
        while data := await reader.read(65_536):
            buffer += data
            for packet in read_packets(buffer):
                if isinstance(packet, mqtt5.ConnectPacket):
                    writer.write(mqtt5.ConnAckPacket().write())
                elif isinstance(packet, mqtt5.PublishPacket):
                    writer.write(before + mqtt5.PubAckPacket(packet.packet_id or 0).write())

    async with Acceptor(serve) as server:
        publisher = MqttPublisher(f"mqtt://127.0.0.1:{server.port}?timeout=0.5")
        with pytest.raises(Retryable, match="no acknowledgement before the deadline"):
            await publisher.publish(sample_message(), sample_delivery())
        await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()
    assert connections == 2


@pytest.mark.parametrize("answer", NOT_AMQP, ids=lambda each: repr(each)[:20])
async def test_rabbitmq_whose_frames_make_no_sense_is_a_failure_that_passes(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(answer)
        await writer.drain()
        if not answer:
            return  # hang up
        await reader.read()

    async with Acceptor(serve) as server:
        publisher = RabbitPublisher(f"amqp://127.0.0.1:{server.port}/?timeout=1")
        with pytest.raises(Retryable, match=r"127\.0\.0\.1"):
            await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()
