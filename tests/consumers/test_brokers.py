"""What the clients of real brokers hand out is read, in every envelope, and comes again after an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import aio_pika
import aiormq
import confluent_kafka
import paho.mqtt.client as paho
import psycopg
import pytest
from aiobotocore.session import get_session  # type: ignore[import-untyped]  # has no types
from confluent_kafka.aio import AIOConsumer
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes

from fencepost import Acceptance, AsyncInbox, Inbox, InvalidMessage, Message, MessageConflict, SequenceGap
from fencepost.consumers import (
    AsyncConsumer,
    Consumer,
    Incoming,
    Received,
    kafka,
    mqtt,
    nats,
    rabbitmq,
    redis,
    sqs,
)
from fencepost.consumers import http as webhooks
from fencepost.publishers.registry import publisher_for
from fencepost.testing import sample_delivery, sample_message
from tests.consumers.conftest import Effects
from tests.consumers.test_consumer import Boom
from tests.publishers.in_use import in_use
from tests.publishers.kafka_server import TansuServer, create_topics
from tests.publishers.mosquitto_server import MosquittoServer, MqttProperties
from tests.publishers.moto_server import ACCOUNT, REGION, MotoServer
from tests.publishers.nats_server import NatsServer
from tests.publishers.rabbitmq_server import RabbitServer
from tests.publishers.redis_server import RedisServer

EVENT = "order.created"
KINDS = ("none", "cloudevents", "cloudevents-structured")
PLAIN = ("none", "cloudevents-structured")
# (Of a lease that outlasts the tests: it begins when this module is imported.)
DELIVERY = sample_delivery(attempt=2, token=9, lease=86_400.0, replay_of=str(uuid4()))

Next = Callable[[], Awaitable[Incoming]]


def order(**fields: Any) -> Message:
    headers = {"tenant": "ключ", "Host": "shop", "traceparent": f"00-{'4b' * 16}-{'00f067aa0ba902b7'}-01"}
    values: dict[str, Any] = {"ordering_key": "k 1", "key_sequence": 3, "headers": headers}
    return sample_message(EVENT, b'{"id": 4.20e1, "id": 42}', **values | fields)


async def publish(to: str, kind: str, *messages: Message) -> None:
    joint = "&" if "?" in to else "?"
    async with in_use(publisher_for(f"{to}{joint}envelope={kind}"), closes_in=5.0) as publisher:
        for message in messages:
            await publisher.publish(message, DELIVERY)


def check(received: Received, message: Message) -> None:
    assert received.message_id == str(message.message_id)
    assert (received.body, received.content_type) == (message.payload, "application/json")
    assert (received.event_type, received.key, received.key_sequence) == (EVENT, "k 1", 3)
    assert (received.attempt, received.token, received.sequence) == (2, 9, message.id)
    assert received.replay_of == DELIVERY.replay_of
    assert {name.lower(): value for name, value in received.headers.items()} == {
        name.lower(): value for name, value in message.headers.items()
    }


class Handler:
    """Fails once for each message, on either kind of consumer."""

    def __init__(self, effects: Effects, name: str = "billing") -> None:
        self._failed: set[str] = set()
        connect = partial(psycopg.connect, effects.url)
        aconnect = partial(psycopg.AsyncConnection.connect, effects.url)
        self._sync = Consumer(Inbox(name), connect).handler(self._handle)
        self.by_async = AsyncConsumer(AsyncInbox(name), aconnect).handler(self._ahandle)

    async def by_sync(self, incoming: Incoming) -> Acceptance:
        return self._sync(incoming)

    async def _ahandle(self, received: Received, connection: Any) -> None:
        self._handle(received, connection)

    def _handle(self, received: Received, _: Any) -> None:
        if received.message_id not in self._failed:
            self._failed.add(received.message_id)
            raise Boom


async def fails_and_comes_again(handler: Handler, following: Next, *messages: Message, by_async: bool) -> None:
    """Take these messages: each fails, comes again, and then is done with."""
    handle = handler.by_async if by_async else handler.by_sync
    for message in messages:
        incoming = await following()
        check(incoming.received, message)
        with pytest.raises(Boom):
            await handle(incoming)
        again = await following()
        assert again.received == incoming.received
        assert await handle(again) is Acceptance.ACCEPTED


@pytest.fixture
def handler(effects: Effects) -> Handler:
    return Handler(effects)


async def test_nats(tmp_path: Path, handler: Handler) -> None:
    with NatsServer(tmp_path) as server:
        client = await server.connect()
        stream = client.jetstream()
        await stream.add_stream(name="ORDERS", subjects=["order.*"])
        subscription = await stream.pull_subscribe("order.*", durable="billing")

        async def following() -> Incoming:
            [message] = await subscription.fetch(1, timeout=10)
            return nats.incoming(message, delay=0.05)

        for kind in KINDS:
            message = order()
            await publish(f"nats://127.0.0.1:{server.port}", kind, message)
            await fails_and_comes_again(handler, following, message, by_async=True)
        await stream.publish(EVENT, b"{}")
        with pytest.raises(InvalidMessage, match="no message id"):
            await following()
        info = await subscription.consumer_info()
        assert info.num_ack_pending == 1, "and it is not acknowledged"
        await client.close()


async def test_kafka(tmp_path: Path, effects: Effects) -> None:
    """What is behind a failed message in its partition is not taken before it, and its offset is not passed."""
    with TansuServer(tmp_path) as server:
        create_topics(server.address, EVENT)
        messages = [order() for _ in KINDS]
        for kind, message in zip(KINDS, messages, strict=True):
            await publish(f"kafka://{server.address}", kind, message)
        place = confluent_kafka.TopicPartition(EVENT, 0)
        settings: dict[str, Any] = {
            "bootstrap.servers": server.address,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 1_000,  # how long this broker waits for others to join
            "heartbeat.interval.ms": 200,
            "log_level": 0,
        }
        plain = confluent_kafka.Consumer({**settings, "group.id": "plain"})
        plain.subscribe([EVENT])

        async def following() -> Incoming:
            message = await asyncio.to_thread(plain.poll, 20)
            assert message is not None
            assert message.error() is None
            return kafka.incoming(plain, message)

        await fails_and_comes_again(Handler(effects), following, *messages, by_async=False)
        assert plain.committed([place])[0].offset == len(messages)
        plain.close()
        by_async = AIOConsumer({**settings, "group.id": "async"})
        await by_async.subscribe([EVENT])

        async def following_async() -> Incoming:
            message = await by_async.poll(20)
            assert message is not None
            assert message.error() is None
            return kafka.incoming(by_async, message)

        other = Handler(effects, "shipping")
        await fails_and_comes_again(other, following_async, *messages, by_async=True)
        assert (await by_async.committed([place]))[0].offset == len(messages)
        await by_async.close()


async def test_rabbitmq_by_aiormq(rabbit_server: RabbitServer, handler: Handler) -> None:
    await rabbit_server.ready()
    connection = await aiormq.connect(rabbit_server.url)
    channel = await connection.channel()
    await channel.queue_declare(EVENT, durable=True)

    async def following() -> Incoming:
        return rabbitmq.incoming(await channel.basic_get(EVENT))

    for kind in KINDS:
        message = order()
        await publish(rabbit_server.url, kind, message)
        await fails_and_comes_again(handler, following, message, by_async=True)
    await channel.queue_delete(EVENT)
    await connection.close()


async def test_rabbitmq_by_aio_pika(rabbit_server: RabbitServer, handler: Handler) -> None:
    async with await rabbit_server.connect() as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(EVENT, durable=True)

        async def following() -> Incoming:
            found = await queue.get()
            assert found is not None
            return rabbitmq.incoming(found)

        for kind in KINDS:
            message = order()
            await publish(rabbit_server.url, kind, message)
            await fails_and_comes_again(handler, following, message, by_async=True)
        await channel.default_exchange.publish(aio_pika.Message(b"{}", message_id="m"), EVENT)
        with pytest.raises(InvalidMessage, match="no message id"):
            await following()
        await queue.delete(if_unused=False, if_empty=False)


@pytest.mark.parametrize("decoded", [False, True], ids=["bytes", "text"])
async def test_redis(tmp_path: Path, handler: Handler, decoded: bool) -> None:
    with RedisServer(tmp_path) as server:
        url = f"redis://127.0.0.1:{server.port}"
        async with server.client(decode_responses=decoded) as client:
            await client.xgroup_create(EVENT, "billing", id="0", mkstream=True)

            async def following() -> Incoming:
                for after in ("0", ">"):
                    answer: Any = await client.xreadgroup("billing", "w", {EVENT: after}, count=1)
                    for _, entries in answer:
                        for entry_id, fields in entries:
                            return redis.incoming(client, EVENT, "billing", entry_id, fields)
                raise AssertionError("nothing is left")

            for kind in PLAIN:
                message = order()
                await publish(url, kind, message)
                await fails_and_comes_again(handler, following, message, by_async=True)
            await client.xadd(EVENT, {"payload": "{}"})
            with pytest.raises(InvalidMessage, match="no message id"):
                await following()
            await client.xtrim(EVENT, 0)
            with pytest.raises(InvalidMessage, match="deleted or trimmed"):
                await following()


def test_a_foreign_entry_of_redis_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="no field 'payload'"):
        redis.received({b"__data__": b"{}"})
    with pytest.raises(InvalidMessage, match="no field 'payload'"):
        redis.received({b"payload": b"a", "payload": "b"})


async def test_sqs_and_sns(tmp_path: Path, handler: Handler) -> None:
    with MotoServer(tmp_path) as server:
        queue = server.client("sqs").create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "1"})[
            "QueueUrl"
        ]
        topic = str(server.client("sns").create_topic(Name="events")["TopicArn"])
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"
        server.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)  # without raw delivery
        rest = f"endpoint={quote(server.url, safe='')}"
        keys = "testing-id:testing-secret"
        async with get_session().create_client(
            "sqs",
            region_name=REGION,
            endpoint_url=server.url,
            aws_access_key_id="testing-id",
            aws_secret_access_key="testing-secret",  # noqa: S106 - made up
        ) as client:

            async def following() -> Incoming:
                options = {"MessageAttributeNames": ["All"], "WaitTimeSeconds": 5}
                answer = await client.receive_message(QueueUrl=queue, **options)
                [message] = answer["Messages"]
                return sqs.incoming(client, queue, message)

            async def following_sync() -> Incoming:
                plain = server.client("sqs")
                options = {"MessageAttributeNames": ["All"], "WaitTimeSeconds": 5}
                [message] = (await asyncio.to_thread(plain.receive_message, QueueUrl=queue, **options))["Messages"]
                return sqs.incoming(plain, queue, message)

            for kind, by_async, to in (
                ("none", True, f"sqs://{keys}@{REGION}/orders?{rest}"),
                ("cloudevents-structured", False, f"sqs://{keys}@{REGION}/orders?{rest}"),
                ("none", True, f"sns://{keys}@{REGION}/{ACCOUNT}/events?{rest}"),
            ):
                message = order()
                await publish(to, kind, message)
                take = following if by_async else following_sync
                await fails_and_comes_again(handler, take, message, by_async=by_async)
        counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = server.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=counts)["Attributes"]
        assert [found[name] for name in counts] == ["0", "0"]


def attributes(**values: str) -> dict[str, Any]:
    return {f"Fencepost-{name}": {"DataType": "String", "StringValue": value} for name, value in values.items()}


ID = '{"Fencepost-Message-Id": "m"}'


@pytest.mark.parametrize(
    ("message", "match"),
    [
        ({"Body": "{}"}, r"receive with MessageAttributeNames=\['All'\]"),
        ({"Body": '{"Type": "Notification", "Message": "{}"}'}, "no attribute Fencepost-Headers"),
        ({"Body": '{"Type": "Notification", "MessageAttributes": []}'}, "no attribute Fencepost-Headers"),
        ({"Body": "{}", "MessageAttributes": []}, "no attribute"),
        ({"Body": "{}", "MessageAttributes": {"Fencepost-Headers": "x"}}, "no attribute"),
        ({"Body": "{}", "MessageAttributes": attributes(Headers="{")}, "cannot be read"),
        ({"Body": "{}", "MessageAttributes": attributes(Headers="[" * 100_000)}, "cannot be read"),
        ({"Body": "{}", "MessageAttributes": attributes(Headers="[1]")}, "must be a JSON object"),
        ({"Body": "{}", "MessageAttributes": attributes(Headers="7")}, "must be a JSON object"),
        ({"Body": "{}", "MessageAttributes": attributes(Headers="{}")}, "no message id"),
        ({"Body": "{}", "MessageAttributes": attributes(Headers=ID[:-1] + "," + ID[1:])}, "came twice"),
        ({"Body": "{}", "MessageAttributes": attributes(Headers='{"Fencepost-Message-Id": {}}')}, "no text"),
        ({"Body": "!", "MessageAttributes": attributes(Headers=ID, Encoding="base64")}, "cannot be read"),
        ({"Body": "!", "MessageAttributes": attributes(Headers=ID, Encoding="gzip")}, "Fencepost-Encoding"),
        ({"Body": "\ud800", "MessageAttributes": attributes(Headers=ID)}, "cannot be read"),
        ({"Body": 7, "MessageAttributes": attributes(Headers=ID)}, "cannot be read"),
    ],
)
def test_a_foreign_message_of_sqs_is_refused(message: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidMessage, match=match):
        sqs.received(message)


async def test_mqtt(tmp_path: Path, handler: Handler) -> None:
    """A failed message comes again when the client connects anew to its session."""
    with MosquittoServer(tmp_path) as server:
        async with server.client("billing") as session:
            await session.subscribe("order/#", qos=1)
        for kind in KINDS:
            message = order()
            await publish(f"mqtt://127.0.0.1:{server.port}", kind, message)
            async with AsyncExitStack() as connections:

                async def following(stack: AsyncExitStack = connections) -> Incoming:
                    await stack.aclose()
                    arrived: asyncio.Queue[tuple[paho.Client, paho.MQTTMessage]] = asyncio.Queue()
                    client = _connected(server, asyncio.get_running_loop(), arrived)
                    stack.callback(_disconnected, client)
                    async with asyncio.timeout(10):
                        return mqtt.incoming(*await arrived.get())

                await fails_and_comes_again(handler, following, message, by_async=False)
        async with server.client() as other:
            await other.publish("order/created", b"{}", qos=1)
        async with server.client("billing") as session, asyncio.timeout(10):
            foreign = await anext(aiter(session.messages))
            with pytest.raises(InvalidMessage, match="no message id"):
                mqtt.received(foreign)


def _connected(
    server: MosquittoServer, loop: asyncio.AbstractEventLoop, arrived: asyncio.Queue[Any]
) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, "billing", protocol=paho.MQTTv5, manual_ack=True)

    def on_message(who: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, (who, message))

    client.on_message = on_message
    session = MqttProperties(PacketTypes.CONNECT)
    session.SessionExpiryInterval = 3_600
    client.connect("127.0.0.1", server.port, clean_start=False, properties=session)
    client.loop_start()
    return client


def _disconnected(client: paho.Client) -> None:
    client.disconnect()
    client.loop_stop()


def test_an_acknowledgement_that_paho_cannot_send_is_an_error() -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, "billing", protocol=paho.MQTTv5, manual_ack=True)
    message = paho.MQTTMessage(mid=1)
    message.qos, message.payload = 1, b"{}"
    message.properties = _with_id()
    incoming = mqtt.incoming(client, message)
    assert incoming.ack is not None
    with pytest.raises(ConnectionError, match="cannot send the acknowledgement"):
        incoming.ack()


def _with_id() -> Any:
    properties = MqttProperties(PacketTypes.PUBLISH)
    properties.UserProperty = ("Fencepost-Message-Id", "m")
    return properties


def test_the_answer_to_a_webhook() -> None:
    statuses = {
        None: 204,
        InvalidMessage("x"): 400,
        MessageConflict("x"): 409,
        SequenceGap("billing", "k", expected=1, received=3): 425,
        Boom(): 500,
    }
    assert {error: webhooks.status_after(error) for error in statuses} == statuses


def test_json_of_others_in_a_webhook_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="no message id"):
        webhooks.received({"Content-Type": "application/json"}, json.dumps({"id": 1}).encode())
