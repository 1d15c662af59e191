"""The publisher conformance suite on a real Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fencepost.publishers.redis.publisher import RedisPublisher
from fencepost.testing.publisher_conformance import FaultProxy, PublisherConformance, PublisherHarness, Received
from tests.publishers.conftest import free_port
from tests.publishers.redis_server import RedisServer

STREAM = "events"
MAX_BYTES = 100_000


class RedisHarness(PublisherHarness):
    def __init__(self, directory: Path, timeout: float) -> None:
        self._server = RedisServer(directory, free_port())
        self.proxy = FaultProxy("127.0.0.1", self._server.port)
        self._timeout = timeout

    async def start(self) -> None:
        self._server.start()
        async with self._server.client():
            pass

    async def stop(self) -> None:
        self._server.stop()

    async def pause(self) -> None:
        self._server.pause()

    async def resume(self) -> None:
        self._server.resume()

    async def close(self) -> None:
        self._server.stop()

    def publisher(self) -> object:
        return self._publisher(f"stream={STREAM}")

    def unroutable(self) -> tuple[object, str]:
        return self._publisher("stream=nowhere&nomkstream=on"), "'nowhere'"

    def _publisher(self, options: str) -> object:
        assert self.proxy is not None
        return RedisPublisher(
            f"redis://127.0.0.1:{self.proxy.port}/0?{options}&max_bytes={MAX_BYTES}&timeout={self._timeout}"
        )

    async def received(self) -> Sequence[Received]:
        return await self._server.received(STREAM)

    def too_large(self) -> bytes:
        return b"x" * (MAX_BYTES + 1)


class TestRedisConformance(PublisherConformance):
    timeout = 1.0

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self._tmp = tmp_path

    def harness(self) -> PublisherHarness:
        return RedisHarness(self._tmp, self.timeout)
