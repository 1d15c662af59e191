"""A real server for each kind of destination, with the place in it that the benchmark's messages go to."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from fencepost.bench.tables import EVENT_TYPE
from fencepost.embedded.ports import free_port
from tests.publishers import (
    kafka_server,
    mosquitto_server,
    moto_server,
    nats_server,
    rabbitmq_server,
    redis_server,
)
from tests.servers import ServerProcess

AWS_NAME = "bench"
PURGE_SECONDS = 0.2
AWS_KEYS = "testing-id:testing-secret"


@contextmanager
def _kafka(directory: Path) -> Iterator[str]:
    with kafka_server.TansuServer(directory) as server:
        kafka_server.create_topics(server.address, EVENT_TYPE)
        yield f"kafka://{server.address}"


@contextmanager
def _rabbitmq(directory: Path) -> Iterator[str]:
    async def prepare() -> None:
        async with await server.connect() as connection:
            channel = await connection.channel()
            await channel.declare_queue(EVENT_TYPE, durable=True)

    with rabbitmq_server.RabbitServer(directory) as server:
        asyncio.run(prepare())
        yield server.url


@contextmanager
def _nats(directory: Path) -> Iterator[str]:
    async def prepare() -> None:
        client = await server.connect()
        await client.jetstream().add_stream(name="bench", subjects=[EVENT_TYPE])
        await client.close()

    with nats_server.NatsServer(directory) as server:
        asyncio.run(prepare())
        yield f"nats://127.0.0.1:{server.port}"


@contextmanager
def _redis(directory: Path) -> Iterator[str]:
    with redis_server.RedisServer(directory) as server:
        asyncio.run(server.ready())
        yield f"redis://127.0.0.1:{server.port}"


@contextmanager
def _mqtt(directory: Path) -> Iterator[str]:
    async def prepare() -> None:
        async with server.client("bench") as subscriber:  # its session stays, and the broker keeps messages for it
            await subscriber.subscribe("#", qos=1)

    with mosquitto_server.MosquittoServer(directory) as server:
        asyncio.run(prepare())
        yield f"mqtt://127.0.0.1:{server.port}"


@contextmanager
def _moto(directory: Path) -> Iterator[moto_server.MotoServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_SQS_ENFORCE_STRICT_QUEUE_PURGE_BEHAVIOUR", "false")  # else once a minute, as AWS
        with moto_server.MotoServer(directory) as server:
            yield server


@contextmanager
def _emptied(server: moto_server.MotoServer, url: str) -> Iterator[None]:
    """Keep a queue nearly empty, as consumers would: with each message that waits, moto answers more slowly."""
    client, ended = server.client("sqs"), threading.Event()

    def purge() -> None:
        while not ended.wait(PURGE_SECONDS):
            client.purge_queue(QueueUrl=url)

    thread = threading.Thread(target=purge)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _aws_url(scheme: str, server: moto_server.MotoServer) -> str:
    place = f"{AWS_KEYS}@{moto_server.REGION}/{moto_server.ACCOUNT}/{AWS_NAME}"
    return f"{scheme}://{place}?endpoint={quote(server.url, safe='')}"


@contextmanager
def _sqs(directory: Path) -> Iterator[str]:
    with _moto(directory) as server, _emptied(server, server.create_queue(AWS_NAME)):
        yield _aws_url("sqs", server)


@contextmanager
def _sns(directory: Path) -> Iterator[str]:
    with _moto(directory) as server:
        server.create_topic(AWS_NAME, AWS_NAME)
        with _emptied(server, server.create_queue(AWS_NAME)):
            yield _aws_url("sns", server)


@contextmanager
def _http(directory: Path) -> Iterator[str]:
    port = free_port()
    with ServerProcess(directory, port, [sys.executable, "-m", "tests.bench.http_sink", str(port)]) as receiver:
        receiver.wait_until_it_listens()
        yield f"http://127.0.0.1:{port}/?allow_private=on"


BROKERS: Mapping[str, Callable[[Path], AbstractContextManager[str]]] = {
    "kafka": _kafka,
    "rabbitmq": _rabbitmq,
    "nats": _nats,
    "redis": _redis,
    "sqs": _sqs,
    "sns": _sns,
    "mqtt": _mqtt,
    "http": _http,
}


@contextmanager
def running(names: Sequence[str], directory: Path, say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Start a server of each kind; yield their addresses. What is not installed is told, and left out."""
    found: dict[str, str] = {}
    with ExitStack() as stack:
        for name in names:
            place = directory / name
            place.mkdir()
            try:
                found[name] = stack.enter_context(BROKERS[name](place))
            except (pytest.skip.Exception, pytest.fail.Exception) as missing:
                say(f"{name} is left out: {missing}")
        yield found
