"""A plain loop for each client library, written as by hand to lose nothing; see `fencepost.bench.clients`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from fencepost.errors import FencepostError
from fencepost.publishers.address import Address
from fencepost.publishers.aws.address import SECRETS, endpoint_of, place_of, secrets_of

WINDOW = 100
"""Messages in flight at once, where one writes that oneself."""
REQUESTS = 10
"""Requests in flight at once, of as many messages each, to SQS and SNS: the most that one request may hold."""
POSTS = 4
"""Posts in flight at once: more make httpx slower, since it looks through all connections for each request."""
FLUSH_SECONDS = 60.0

Send = Callable[[int], Awaitable[None]]
"""Sends so many messages and returns once each of them is acknowledged."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a loop sends what.

    Args:
        name: of the topic, stream, subject or routing key.
    """

    address: Address
    name: str
    payload: bytes
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    def server(self, port: int) -> tuple[str, int]:
        """Return host and port of the first server."""
        host, given = self.address.hosts[0]
        return host, given or port


# --- one loop a library ----------------------------------------------------------------------------------


@asynccontextmanager
async def kafka(target: Target) -> AsyncIterator[Send]:
    from confluent_kafka import KafkaError, Producer

    servers = ",".join(f"{host}:{port or 9092}" for host, port in target.address.hosts)
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})

    async def send(messages: int) -> None:
        failures: list[KafkaError] = []

        def reported(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error)

        for _ in range(messages):
            while True:
                try:
                    producer.produce(target.name, target.payload, on_delivery=reported)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        if producer.flush(FLUSH_SECONDS) or failures:
            raise FencepostError(f"not acknowledged: {failures[0] if failures else 'no report in time'}")

    yield send


@asynccontextmanager
async def amqp(target: Target) -> AsyncIterator[Send]:
    import aio_pika

    host, port = target.server(5672)
    login: dict[str, Any] = {"login": target.user, "password": target.password} if target.user else {}
    vhost = unquote(target.address.path[1:]) or "/"
    connection = await aio_pika.connect(host=host, port=port, virtualhost=vhost, **login)
    async with connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        named = target.address.options.get("exchange")
        exchange = await channel.get_exchange(named, ensure=False) if named else channel.default_exchange

        async def one() -> None:
            message = aio_pika.Message(
                target.payload,
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                content_type="application/json",
                message_id=str(uuid4()),
            )
            await exchange.publish(message, target.name, mandatory=True)

        yield _in_windows(one)


@asynccontextmanager
async def nats(target: Target) -> AsyncIterator[Send]:
    import nats as client

    servers = [f"nats://{host}:{port or 4222}" for host, port in target.address.hosts]
    connection = await client.connect(servers, user=target.user, password=target.password)
    stream = connection.jetstream()

    async def send(messages: int) -> None:
        for size in _sizes(messages, WINDOW):
            await asyncio.gather(
                *[
                    await stream.publish_async(target.name, target.payload, headers={"Nats-Msg-Id": str(uuid4())})
                    for _ in range(size)
                ]
            )

    try:
        yield send
    finally:
        await connection.close()


@asynccontextmanager
async def redis(target: Target) -> AsyncIterator[Send]:
    from redis.asyncio import Redis

    host, port = target.server(6379)
    database = int(target.address.path.strip("/") or 0)
    async with Redis(host=host, port=port, db=database, username=target.user, password=target.password) as client:

        async def send(messages: int) -> None:
            for size in _sizes(messages, WINDOW):
                async with client.pipeline(transaction=False) as pipeline:
                    for _ in range(size):
                        pipeline.xadd(target.name, {"payload": target.payload})
                    await pipeline.execute()  # raises where an answer is an error

        yield send


@asynccontextmanager
async def mqtt(target: Target) -> AsyncIterator[Send]:
    import aiomqtt

    host, port = target.server(1883)
    # It would warn at every message that many are under way.
    quiet = logging.getLogger("fencepost.bench.aiomqtt")
    quiet.setLevel(logging.ERROR)
    client = aiomqtt.Client(
        host,
        port,
        username=target.user,
        password=target.password,
        protocol=aiomqtt.ProtocolVersion.V5,
        max_inflight_messages=WINDOW,
        logger=quiet,
    )
    async with client:

        async def one() -> None:
            await client.publish(target.name.replace(".", "/"), target.payload, qos=1)

        yield _in_windows(one)


@asynccontextmanager
async def sqs(target: Target) -> AsyncIterator[Send]:
    place = place_of(target.address, "sqs", r"[A-Za-z0-9_-]+")
    async with _aws_client(target, "sqs", place.region) as client:
        account = {} if place.account is None else {"QueueOwnerAWSAccountId": place.account}
        url = (await client.get_queue_url(QueueName=place.name, **account))["QueueUrl"]

        async def request(size: int) -> Any:
            body = target.payload.decode()
            entries = [{"Id": str(number), "MessageBody": body} for number in range(size)]
            return await client.send_message_batch(QueueUrl=url, Entries=entries)

        yield _in_requests(request)


@asynccontextmanager
async def sns(target: Target) -> AsyncIterator[Send]:
    place = place_of(target.address, "sns", r"[A-Za-z0-9_-]+")
    async with _aws_client(target, "sns", place.region) as client:
        topic = f"arn:{client.meta.partition or 'aws'}:sns:{place.region}:{place.account}:{place.name}"

        async def request(size: int) -> Any:
            body = target.payload.decode()
            entries = [{"Id": str(number), "Message": body} for number in range(size)]
            return await client.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)

        yield _in_requests(request)


def _aws_client(target: Target, service: str, region: str) -> AbstractAsyncContextManager[Any]:
    from aiobotocore.session import get_session  # type: ignore[import-untyped]  # has no types

    secrets = secrets_of(target.address)
    access_key, secret_key, token = (secrets[name].read() for name in SECRETS)
    made: AbstractAsyncContextManager[Any] = get_session().create_client(
        service,
        region_name=region,
        endpoint_url=endpoint_of(target.address),
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        aws_session_token=token,
    )
    return made


@asynccontextmanager
async def http(target: Target) -> AsyncIterator[Send]:
    import httpx

    address = target.address
    host, port = target.server(443 if address.scheme == "https" else 80)
    query = address.options.get("query", "")
    url = f"{address.scheme}://{f'[{host}]' if ':' in host else host}:{port}{address.path or '/'}?{query}".rstrip(
        "?"
    )
    auth = None if target.user is None else httpx.BasicAuth(target.user, target.password or "")
    limits = httpx.Limits(max_connections=POSTS, max_keepalive_connections=POSTS)
    async with httpx.AsyncClient(limits=limits, auth=auth, timeout=FLUSH_SECONDS) as client:

        async def one() -> None:
            headers = {"Content-Type": "application/json", "webhook-id": str(uuid4())}
            (await client.post(url, content=target.payload, headers=headers)).raise_for_status()

        async def send(messages: int) -> None:
            await _side_by_side(POSTS, [one] * messages)

        yield send


# --- what they have in common ----------------------------------------------------------------------------


def _sizes(messages: int, most: int) -> list[int]:
    """Return the sizes of the portions that so many messages make."""
    return [min(most, messages - done) for done in range(0, messages, most)]


def _in_windows(one: Callable[[], Awaitable[None]]) -> Send:
    """Return what sends a window at once and awaits all of it before the next one."""

    async def send(messages: int) -> None:
        for size in _sizes(messages, WINDOW):
            await asyncio.gather(*(one() for _ in range(size)))

    return send


def _in_requests(request: Callable[[int], Awaitable[Any]]) -> Send:
    """Return what sends requests of ten, ten at once, and looks for what was not taken of one."""

    async def whole(size: int) -> None:
        failed = (await request(size)).get("Failed")
        if failed:
            raise FencepostError(f"not taken: {failed[0]}")

    async def send(messages: int) -> None:
        await _side_by_side(REQUESTS, [partial(whole, size) for size in _sizes(messages, REQUESTS)])

    return send


async def _side_by_side(workers: int, work: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Do all of it, so many at once."""
    left = iter(work)

    async def worker() -> None:
        for each in left:
            await each()

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
