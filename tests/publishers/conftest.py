"""Receivers and servers for the tests of publishers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.publishers.http_receiver import HttpReceiver
from tests.publishers.in_use import Shown
from tests.publishers.moto_server import MotoServer
from tests.publishers.nats_server import NatsServer
from tests.publishers.rabbitmq_server import RabbitServer


@pytest.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver()
    await receiver.start()
    yield receiver
    receiver.resume()
    await receiver.stop()


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Shown:
    return Shown(caplog, capfd)


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    """Start a NATS server with further command line arguments."""
    with ExitStack() as servers:
        yield lambda *arguments: servers.enter_context(NatsServer(tmp_path, *arguments))


@pytest.fixture
def nats_server(start_nats: Callable[..., NatsServer]) -> NatsServer:
    return start_nats()


@pytest.fixture(scope="session")
def rabbit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """A RabbitMQ broker for all tests of the session: it takes seconds to start."""
    with RabbitServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture(scope="module")
def shared_moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """A moto server for all tests of a module, not started yet: `start` empties it for each of them."""
    server = MotoServer(tmp_path_factory.mktemp("moto"))
    yield server
    server.close()
