"""Receivers and servers for the tests of publishers."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.publishers.http_receiver import HttpReceiver
from tests.publishers.nats_server import NatsServer
from tests.publishers.rabbitmq_server import RabbitServer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver()
    await receiver.start()
    yield receiver
    receiver.resume()
    await receiver.stop()


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    """Start a NATS server with further command line arguments."""
    servers: list[NatsServer] = []

    def start(*arguments: str) -> NatsServer:
        server = NatsServer(tmp_path, free_port(), *arguments)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def nats_server(start_nats: Callable[..., NatsServer]) -> NatsServer:
    return start_nats()


@pytest.fixture(scope="session")
def rabbit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """A RabbitMQ broker for all tests of the session: it takes seconds to start."""
    server = RabbitServer(tmp_path_factory.mktemp("rabbitmq"))
    try:
        server.start()
        yield server
    finally:
        server.close()
