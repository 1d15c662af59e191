"""A real broker for each example: where the dispatcher sends, and what the broker still keeps for the consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import confluent_kafka
import psycopg
from nats.js.api import ConsumerConfig

from fencepost.embedded.ports import free_port
from tests.publishers.kafka_server import TansuServer, create_topics
from tests.publishers.mosquitto_server import MosquittoServer
from tests.publishers.moto_server import REGION, MotoServer
from tests.publishers.nats_server import NatsServer
from tests.publishers.rabbitmq_server import RabbitServer
from tests.publishers.redis_server import RedisServer

EVENT = "order.created"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - made up


@dataclass(frozen=True)
class Place:
    """Somewhere to send to and to receive from.

    Args:
        to: the destination's URL.
        environment: what the example is told.
        left: returns how many of so many messages the broker has not seen acknowledged.
    """

    to: str
    environment: Mapping[str, str]
    left: Callable[[int], Awaitable[int]]


@dataclass(frozen=True)
class Site:
    """What there is before: a directory, the consumer's database, and a RabbitMQ that starts when asked for."""

    directory: Path
    database: str
    rabbit: Callable[[], RabbitServer]


@asynccontextmanager
async def nats(site: Site) -> AsyncIterator[Place]:
    with NatsServer(site.directory) as server:
        client = await server.connect()
        stream = client.jetstream()
        await stream.add_stream(name="ORDERS", subjects=["order.*"])
        config = ConsumerConfig(durable_name="billing", ack_wait=0.5, filter_subject="order.*")
        await stream.add_consumer("ORDERS", config)

        async def left(_: int) -> int:
            info = await stream.consumer_info("ORDERS", "billing")
            return (info.num_pending or 0) + (info.num_ack_pending or 0)

        url = f"nats://127.0.0.1:{server.port}"
        try:
            yield Place(url, {"BROKER_URL": url}, left)
        finally:
            await client.close()


@asynccontextmanager
async def kafka(site: Site) -> AsyncIterator[Place]:
    with TansuServer(site.directory) as server:
        create_topics(server.address, EVENT)
        watcher = confluent_kafka.Consumer({"bootstrap.servers": server.address, "group.id": "billing"})

        async def left(count: int) -> int:
            [place] = watcher.committed([confluent_kafka.TopicPartition(EVENT, 0)], timeout=10)
            return count - max(0, place.offset)

        try:
            yield Place(f"kafka://{server.address}", {"BROKER_URL": server.address}, left)
        finally:
            watcher.close()


@asynccontextmanager
async def rabbitmq(site: Site) -> AsyncIterator[Place]:
    server = site.rabbit()
    async with await server.connect() as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(EVENT, durable=True)

        async def left(_: int) -> int:
            listed = await asyncio.to_thread(
                server.control, "list_queues", "name", "messages", "--formatter", "json"
            )
            return sum(one["messages"] for one in json.loads(listed) if one["name"] == EVENT)

        try:
            yield Place(server.url, {"BROKER_URL": server.url}, left)
        finally:
            await queue.delete(if_unused=False, if_empty=False)


@asynccontextmanager
async def redis(site: Site) -> AsyncIterator[Place]:
    with RedisServer(site.directory) as server:
        async with server.client(decode_responses=True) as client:
            await client.xgroup_create(EVENT, "billing", id="0", mkstream=True)

            async def left(_: int) -> int:
                groups: Any = await client.xinfo_groups(EVENT)
                return int(groups[0]["pending"]) + int(groups[0]["lag"])

            url = f"redis://127.0.0.1:{server.port}"
            yield Place(url, {"BROKER_URL": url}, left)


@asynccontextmanager
async def sqs(site: Site) -> AsyncIterator[Place]:
    with MotoServer(site.directory) as server:
        client = server.client("sqs")
        queue = client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "1"})["QueueUrl"]
        counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

        async def left(_: int) -> int:
            found = client.get_queue_attributes(QueueUrl=queue, AttributeNames=counts)["Attributes"]
            return sum(int(found[name]) for name in counts)

        environment = {
            "BROKER_URL": queue,
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "testing-id",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        to = f"sqs://testing-id:testing-secret@{REGION}/orders?endpoint={quote(server.url, safe='')}"
        yield Place(to, environment, left)


@asynccontextmanager
async def mqtt(site: Site) -> AsyncIterator[Place]:
    with MosquittoServer(site.directory, "log_type all") as server:
        async with server.client("billing") as session:  # it stays, and the broker keeps messages for it
            await session.subscribe("order/#", qos=1)

        async def left(count: int) -> int:
            return count - server.log().count("Received PUBACK from billing")

        url = f"mqtt://127.0.0.1:{server.port}"
        yield Place(url, {"BROKER_URL": url}, left)


@asynccontextmanager
async def webhook(site: Site) -> AsyncIterator[Place]:
    port = free_port()
    secret = site.directory / "secret"
    secret.write_text(SECRET)

    async def left(_: int) -> int:
        async with await psycopg.AsyncConnection.connect(site.database) as connection:
            rows = await connection.execute("SELECT count(*) FROM outbox WHERE status <> 'done'")
            found = await rows.fetchone()
        assert found is not None
        return int(found[0])

    to = f"http://127.0.0.1:{port}/?allow_private=on&secret_file={secret}"
    yield Place(to, {"PORT": str(port), "WEBHOOK_SECRET": SECRET}, left)


PLACES: Mapping[str, Callable[[Site], AbstractAsyncContextManager[Place]]] = {
    "nats_consumer": nats,
    "kafka_consumer": kafka,
    "rabbitmq_consumer": rabbitmq,
    "redis_consumer": redis,
    "sqs_consumer": sqs,
    "mqtt_consumer": mqtt,
    "webhook_consumer": webhook,
    "faststream_nats": nats,
    "faststream_rabbitmq": rabbitmq,
    "faststream_redis": redis,
}
"""Where each example runs."""
