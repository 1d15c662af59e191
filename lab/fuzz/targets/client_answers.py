"""Brokers whose answers client libraries read (RabbitMQ, SQS, SNS), damaged on their way or made up.

Not Kafka's: librdkafka makes room for as many parts as an answer says it has, and where there is not that much,
an assertion in it ends the whole process. Nothing of ours can keep it from that; a fuzzer would see nothing else.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
from tests.publishers.moto_server import ACCOUNT, REGION, MotoServer, attributes_of
from tests.publishers.rabbitmq_server import RabbitServer

from fencepost.core.records import Message
from fencepost.publishers import headers
from fencepost.publishers.aws.sns import SnsPublisher
from fencepost.publishers.aws.sqs import SqsPublisher
from fencepost.publishers.base import DestinationPublisher
from fencepost.publishers.rabbitmq.publisher import RabbitPublisher
from lab.fuzz.answers import TIMEOUT
from lab.fuzz.brokers import Arrivals, BrokerAnswers
from lab.fuzz.places import Places


def _frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def _method(channel: int, group: int, number: int, arguments: bytes = b"") -> bytes:
    return _frame(1, channel, struct.pack(">HH", group, number) + arguments)


_REASON = struct.pack(">HB4sHH", 320, 4, b"boom", 0, 0)
AMQP_ANSWERS = (
    *(b"", b"\xce", b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x0a", b"HTTP/1.1 200 OK\r\n\r\n", b"\x00" * 40),
    *(_frame(8, 0, b""), _frame(8, 1, b""), _frame(9, 0, b"x"), _frame(1, 1, b""), _frame(1, 1, b"\x00\x3c")),
    *(_method(0, 10, 50, _REASON), _method(0, 10, 50), _method(0, 10, 51), _method(0, 10, 10, b"\x00" * 9)),
    *(_method(1, 20, 40, _REASON), _method(1, 20, 40), _method(1, 20, 41), _method(1, 20, 11, b"\x00" * 4)),
    *(_method(1, 85, 11), _method(1, 99, 99), _method(1, 60, 60, b"\xff" * 20), _method(7, 20, 40, _REASON)),
    # A refusal; confirms of what nobody sent, on other channels, without their fields.
    *(_method(1, 60, 120, b"\x00" * 7 + b"\x01\x00"), _method(1, 60, 120, b"\xff" * 9)),
    *(_method(1, 60, 80, b"\x7f" + b"\xff" * 7 + b"\x00"), _method(9, 60, 80, b"\x00" * 7 + b"\x01\x00")),
    *(_method(1, 60, 80), _method(1, 60, 80, b"\x00\x00"), _method(0, 60, 80, b"\x00" * 7 + b"\x01\x00")),
    # A message that comes back, without its head, and with one that promises too much.
    _method(1, 60, 50, struct.pack(">HB4sBB", 312, 4, b"NOPE", 0, 0)),
    _method(1, 60, 50, struct.pack(">HB4sBB", 312, 4, b"NOPE", 0, 0))
    + _frame(2, 1, struct.pack(">HHQH", 60, 0, 2**62, 0)),
    *(_frame(2, 1, b"\x00" * 14), _frame(3, 1, b"body"), _frame(1, 1, b"\x00\x3c\x00\x50", end=b"\x00")),
    *(struct.pack(">BHI", 1, 1, 2**31), struct.pack(">BHI", 1, 1, 2**32 - 1) + b"x" * 50),
)


class RabbitAnswers(BrokerAnswers):
    name = "rabbitmq-answers"
    share = 0.6
    lanes = 15
    made_up = AMQP_ANSWERS

    @asynccontextmanager
    async def broker(self, places: Places) -> AsyncIterator[None]:
        folder = places.folder / "rabbitmq"
        folder.mkdir(exist_ok=True)
        self._arrivals = Arrivals()
        server = RabbitServer(folder)
        server.ready_seconds = 300  # a machine that does other things lets it wait
        with server as self._server:
            async with await self._server.connect() as connection:
                channel = await connection.channel()
                await (await channel.declare_queue("fuzz")).consume(self._arrived, no_ack=True)
                yield

    async def _arrived(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        self._arrivals.add(message.message_id or "")

    @property
    def port(self) -> int:
        return self._server.port

    def publisher(self, port: int) -> DestinationPublisher:
        return RabbitPublisher(f"amqp://guest:guest@127.0.0.1:{port}?timeout={TIMEOUT}&routing_key=fuzz")

    async def stored(self, message: Message) -> bool:
        return await self._arrivals.has(message)

    _server: RabbitServer


def _http(body: Any, status: str = "200 OK") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(raw), raw)


_IDS: tuple[Any, ...] = ("1", "", "00", 1, None, [], {}, "0 ")
_SAID: dict[str, list[Any]] = {
    "Successful": [
        *([], None, {}, "0", 0, [{}], [None], ["0"]),
        *([{"Id": each, "MessageId": "x"}] for each in _IDS),
    ],
    "Failed": [[], None, {}, [{}], [{"Id": "0"}], [{"Id": "0", "Code": 7}]],
    "QueueUrl": ["", None, 7, "x", "http://[", "http://127.0.0.1:1/q"],
}
_TYPES: list[Any] = ["", None, 7, [], "com.amazonaws.sqs#Throttling", "#"]
AWS_ANSWERS = (
    *(b"", b"\x00", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"SSH-2.0-x\r\n", b"\xff" * 50),
    *(_http(b""), _http({}), _http([]), _http(None), _http(7), _http("x"), _http(b"{"), _http(b"[" * 100_000)),
    *(_http({name: each}) for name, said in _SAID.items() for each in said),
    _http({"Successful": [{"Id": "0", "MessageId": "x"}], "Failed": [{"Id": "0", "Code": "InternalError"}]}),
    *(_http({"__type": each}, "400 Bad Request") for each in _TYPES),
    *(_http({"message": "no"}, status) for status in ("403 Forbidden", "500 Oops", "503 Slow Down", "301 Moved")),
    *(_http(b"<html>", status) for status in ("200 OK", "404 Not Found", "502 Bad Gateway", "999 x")),
    *(_http(b"<?xml version='1.0'?>" + each) for each in (b"<a/>", b"<PublishBatchResponse/>", b"<a>" * 5_000)),
    _http(b"<PublishBatchResponse><PublishBatchResult><Successful><member><Id>7</Id></member></Successful>"),
    _http(b"<ErrorResponse><Error><Code/><Message/></Error></ErrorResponse>", "400 Bad Request"),
)


class SqsAnswers(BrokerAnswers):
    name = "sqs-answers"
    share = 0.6
    lanes = 5
    made_up = AWS_ANSWERS

    @asynccontextmanager
    async def broker(self, places: Places) -> AsyncIterator[None]:
        self._arrivals, self._reading = Arrivals(), asyncio.Lock()
        self._server = places.moto()
        await asyncio.to_thread(self._server.create_topic, "fuzz-topic", "fuzz")
        yield

    @property
    def port(self) -> int:
        return self._server.port

    def publisher(self, port: int) -> DestinationPublisher:
        return SqsPublisher(f"sqs://{_KEYS}@{REGION}/fuzz?{self._options(port)}")

    def _options(self, port: int) -> str:
        return f"endpoint=http://127.0.0.1:{port}&timeout={AWS_TIMEOUT}"

    async def stored(self, message: Message) -> bool:
        async with self._reading:
            for found in await asyncio.to_thread(self._server.drained, "fuzz"):
                self._arrivals.add(attributes_of(found).get(headers.MESSAGE_ID, ""))
        return await self._arrivals.has(message)

    _server: MotoServer


class SnsAnswers(SqsAnswers):
    name = "sns-answers"

    def publisher(self, port: int) -> DestinationPublisher:
        return SnsPublisher(f"sns://{_KEYS}@{REGION}/{ACCOUNT}/fuzz-topic?{self._options(port)}")


AWS_TIMEOUT = 4.0
"""Seconds: to make a client of botocore takes a tenth of one, on a machine that does nothing else."""
_KEYS = "testing-id:testing-secret"
