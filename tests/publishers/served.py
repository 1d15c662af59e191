"""What the conformance suites of the destinations with a real server share."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import pytest

from fencepost.testing.publisher_conformance import FaultProxy, PublisherConformance, PublisherHarness
from tests.servers import ServerProcess

Server = TypeVar("Server", bound=ServerProcess)


class ServedHarness(PublisherHarness, Generic[Server]):
    """A server, a proxy before it, and publishers that go through the proxy."""

    proxy: FaultProxy

    def __init__(self, server: Server, timeout: float) -> None:
        self._server = server
        self.proxy = FaultProxy("127.0.0.1", server.port)
        self._timeout = timeout

    async def stop(self) -> None:
        self._server.stop()

    async def pause(self) -> None:
        self._server.pause()

    async def resume(self) -> None:
        self._server.resume()

    async def close(self) -> None:
        self._server.close()


class SharedHarness(ServedHarness[Server]):
    """One server serves all tests, each of which finds it as the one before."""

    async def close(self) -> None:
        self._server.resume()


class ServedConformance(PublisherConformance):
    """A suite whose server has a new directory in each test."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self._tmp = tmp_path
