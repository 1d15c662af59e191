"""A real server for each kind of destination, with the place in it that the benchmark's messages go to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from fencepost.bench.tables import EVENT_TYPE
from tests.publishers import (
    kafka_server,
    mosquitto_server,
    moto_server,
    nats_server,
    rabbitmq_server,
    redis_server,
)
from tests.publishers.rabbitmq_server import free_port

READY_SECONDS = 15.0
AWS_NAME = "bench"
PURGE_SECONDS = 0.2
AWS_KEYS = "testing-id:testing-secret"


@contextmanager
def _kafka(directory: Path) -> Iterator[str]:
    server = kafka_server.TansuServer(directory, free_port())
    server.start()
    try:
        kafka_server.create_topics(server.address, EVENT_TYPE)
        yield f"kafka://{server.address}"
    finally:
        server.stop()


@contextmanager
def _rabbitmq(directory: Path) -> Iterator[str]:
    server = rabbitmq_server.RabbitServer(directory)

    async def prepare() -> None:
        async with await server.connect() as connection:
            channel = await connection.channel()
            await channel.declare_queue(EVENT_TYPE, durable=True)

    try:
        server.start()
        asyncio.run(prepare())
        yield server.url
    finally:
        server.close()


@contextmanager
def _nats(directory: Path) -> Iterator[str]:
    server = nats_server.NatsServer(directory, free_port())

    async def prepare() -> None:
        client = await server.connect()
        await client.jetstream().add_stream(name="bench", subjects=[EVENT_TYPE])
        await client.close()

    server.start()
    try:
        asyncio.run(prepare())
        yield f"nats://127.0.0.1:{server.port}"
    finally:
        server.stop()


@contextmanager
def _redis(directory: Path) -> Iterator[str]:
    server = redis_server.RedisServer(directory, free_port())

    async def prepare() -> None:
        async with server.client():
            pass

    server.start()
    try:
        asyncio.run(prepare())
        yield f"redis://127.0.0.1:{server.port}"
    finally:
        server.stop()


@contextmanager
def _mqtt(directory: Path) -> Iterator[str]:
    server = mosquitto_server.MosquittoServer(directory, free_port())

    async def prepare() -> None:
        async with server.client("bench") as subscriber:  # its session stays, and the broker keeps messages for it
            await subscriber.subscribe("#", qos=1)

    server.start()
    try:
        asyncio.run(prepare())
        yield f"mqtt://127.0.0.1:{server.port}"
    finally:
        server.stop()


@contextmanager
def _moto(directory: Path) -> Iterator[moto_server.MotoServer]:
    server = moto_server.MotoServer(directory, free_port())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_SQS_ENFORCE_STRICT_QUEUE_PURGE_BEHAVIOUR", "false")  # else once a minute, as AWS
        try:
            server.start()
            yield server
        finally:
            server.close()


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
    with (directory / "sink.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.http_sink", str(port)], stdout=log, stderr=log
        )
    try:
        gives_up = time.monotonic() + READY_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            assert process.poll() is None, (directory / "sink.log").read_text()
            assert time.monotonic() < gives_up, "the receiver does not start"
            time.sleep(0.02)  # between two looks at the condition, which is "it accepts connections"
        yield f"http://127.0.0.1:{port}/?allow_private=on"
    finally:
        process.kill()
        process.wait()


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
