"""Real brokers behind a proxy that damages their answers or makes them up: delivered only where it is stored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from uuid import uuid4

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StorageType
from nats.js.errors import NotFoundError
from redis.asyncio import Redis
from tests.publishers.mosquitto_server import MosquittoServer
from tests.publishers.nats_server import NatsServer
from tests.publishers.redis_server import RedisServer

from fencepost.core.records import Message
from fencepost.publishers.base import DestinationPublisher
from fencepost.publishers.mqtt.publisher import MqttPublisher
from fencepost.publishers.nats.publisher import NatsPublisher
from fencepost.publishers.redis.publisher import RedisPublisher
from fencepost.testing import sample_message
from lab.fuzz import values
from lab.fuzz.answers import DELIVERED, TIMEOUT, Lane, as_result
from lab.fuzz.brokers import BrokerAnswers
from lab.fuzz.places import Places
from lab.fuzz.target import Case, Result, failed

REDIS_ANSWERS = (
    *(
        b"+OK\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"$-1\r\n",
        b":1\r\n",
        b"$2\r\nOK\r\n",
        b"$0\r\n\r\n",
        b"*1\r\n$2\r\nhi\r\n",
        b"-\r\n",
    ),
    *(
        b"-ERR no\r\n",
        b"-OOM x\r\n",
        b"-MOVED 1 a:1\r\n",
        b"+QUEUED\r\n",
        b"+1-\r\n",
        b"_\r\n",
        b"%1\r\n+a\r\n+b\r\n",
        b"\r\n",
    ),
    *(
        b"*2\r\n$3\r\n1-1\r\n$3\r\n1-1\r\n",
        b"$99999999999\r\n",
        b"*99999999\r\n",
        b":\r\n",
        b"$a\r\n",
        b"*1\r\n" * 2_000,
        b"\xff",
    ),
    *(
        b"-MISCONF \xff\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"(12345678901234567890\r\n",
        b"$-5\r\n",
        b"*-7\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ),
)
NATS_BODIES = (
    *(
        b"",
        b"{}",
        b"[]",
        b"null",
        b"+OK",
        b'{"stream":"FUZZ"}',
        b'{"seq":1}',
        b'{"stream":"","seq":1}',
        b'{"stream":1,"seq":2}',
    ),
    *(
        b'{"stream":"FUZZ","seq":null}',
        b'{"stream":"FUZZ","seq":"x"}',
        b'{"stream":"FUZZ","seq":[]}',
        b'{"stream":{},"seq":1}',
    ),
    *(
        b'{"error":{"err_code":[]}}',
        b'{"error":{"err_code":{}}}',
        b'{"error":{}}',
        b'{"error":"x"}',
        b'{"error":{"err_code":"a"}}',
    ),
    *(
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 10_000,
        b'{"stream":"FUZZ","seq":1',
        b"\xff\xfe",
        b'{"error":{"err_code":1e999}}',
    ),
    *(
        b'{"stream":"FUZZ","seq":0}',
        b'{"stream":"FUZZ","seq":-1}',
        b'{"stream":"FUZZ","seq":true}',
        b'{"stream":"FUZZ","seq":1.5}',
    ),
    *(b'{"error":{"code":500,"err_code":10054,"description":7}}', b'{"error":null,"stream":"FUZZ"}'),
)
MQTT_ANSWERS = (
    *(
        b"",
        b"\x00",
        b"\x40\x00",
        b"\x40\x02\xff\xff",
        b"\x40\x01\x00",
        b"\xe0\x00",
        b"\xe0\x01\x8b",
        b"\xd0\x00",
        b"\x20\x03\x00\x00\x00",
    ),
    *(
        b"\xff" * 10,
        b"\x40\xff\xff\xff\xff",
        b"\x40\xff\xff\xff\x7f",
        b"\x30\x00",
        b"\x31\x05\x00\x01#\x00x",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ),
    *(
        b"\x40\x04\xff\xff\x00\x00",
        b"\x50\x02\x00\x01",
        b"\x40\x05\x00\x01\x87\x01\x1f",
        b"\x90\x04\x00\x01\x00\x00",
    ),
)


class RedisAnswers(BrokerAnswers):
    name = "redis-answers"
    share = 1.5
    made_up = REDIS_ANSWERS

    @asynccontextmanager
    async def broker(self, places: Places) -> AsyncIterator[None]:
        with RedisServer(places.folder / "redis", "--appendonly", "no") as self._server:
            async with self._server.client() as self._client:
                yield

    @property
    def port(self) -> int:
        return self._server.port

    def publisher(self, port: int) -> DestinationPublisher:
        return RedisPublisher(f"redis://127.0.0.1:{port}?timeout={TIMEOUT}&stream={{aggregate_id}}")

    def message(self, case: Case) -> Message:
        return sample_message("fuzz", aggregate_type="fuzz", aggregate_id=uuid4().hex)

    async def stored(self, message: Message) -> bool:
        return bool(await self._client.xlen(str(message.aggregate_id)))

    _server: RedisServer
    _client: Redis


class NatsAnswers(BrokerAnswers):
    name = "nats-answers"
    share = 1.5

    def __init__(self) -> None:
        super().__init__()
        self._odd: dict[str, bytes] = {}
        """What is answered to a message, by its aggregate id."""

    def case(self, chance: Random) -> Case:
        if not values.often(chance, 0.4):
            return super().case(chance)
        body = chance.choice(NATS_BODIES)
        return {"how": "instead", "bytes": values.damaged(chance, body) if values.often(chance, 0.3) else body}

    @asynccontextmanager
    async def broker(self, places: Places) -> AsyncIterator[None]:
        with NatsServer(places.folder / "nats") as self._server:
            self._client = await self._server.connect()
            await self._client.jetstream().add_stream(name="FUZZ", subjects=["fuzz.>"], storage=StorageType.MEMORY)
            await self._client.subscribe("odd.*", cb=self._answer_oddly)
            yield
            await self._client.close()

    async def _answer_oddly(self, message: Msg) -> None:
        await message.respond(self._odd.get(message.subject.partition(".")[2], b""))

    @property
    def port(self) -> int:
        return self._server.port

    def publisher(self, port: int) -> DestinationPublisher:
        return NatsPublisher(
            f"nats://127.0.0.1:{port}?timeout={TIMEOUT}&subject={{aggregate_type}}.{{aggregate_id}}"
        )

    def message(self, case: Case) -> Message:
        place = uuid4().hex
        is_odd = bool(case) and case.get("how") == "instead"
        if is_odd:
            self._odd[place] = case.get("bytes", b"")
        return sample_message("fuzz", aggregate_type="odd" if is_odd else "fuzz", aggregate_id=place)

    async def verdict(self, lane: Lane, case: Case, message: Message, outcome: str) -> Result:
        if case.get("how") != "instead":
            return await super().verdict(lane, case, message, outcome)
        answer = self._odd.pop(str(message.aggregate_id))
        if outcome == DELIVERED and not _is_acknowledgement(answer):
            return failed("delivered after an odd answer", answer[:300])
        return as_result(outcome)

    async def stored(self, message: Message) -> bool:
        with suppress(NotFoundError):
            await self._client.jetstream().get_last_msg("FUZZ", f"fuzz.{message.aggregate_id}")
            return True
        return False

    _server: NatsServer
    _client: Client


def _is_acknowledgement(answer: bytes) -> bool:
    """Tell whether an answer is one that a stream gives: its name, and a number."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("stream"), str) and type(found.get("seq")) is int


class MqttAnswers(BrokerAnswers):
    name = "mqtt-answers"
    share = 0.8
    made_up = MQTT_ANSWERS

    @asynccontextmanager
    async def broker(self, places: Places) -> AsyncIterator[None]:
        (places.folder / "mqtt").mkdir(exist_ok=True)
        with MosquittoServer(places.folder / "mqtt") as self._server:
            async with self._server.client("fuzz") as client:
                await client.subscribe("#", qos=0)
                yield

    @property
    def port(self) -> int:
        return self._server.port

    def publisher(self, port: int) -> DestinationPublisher:
        return MqttPublisher(f"mqtt://127.0.0.1:{port}?timeout={TIMEOUT}")

    _server: MosquittoServer
