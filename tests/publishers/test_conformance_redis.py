"""The publisher conformance suite on a real Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fencepost.publishers.redis.publisher import RedisPublisher
from fencepost.testing.publisher_conformance import PublisherHarness, Received
from tests.publishers.redis_server import RedisServer
from tests.publishers.served import ServedConformance, ServedHarness

STREAM = "events"
MAX_BYTES = 100_000


class RedisHarness(ServedHarness[RedisServer]):
    def __init__(self, directory: Path, timeout: float) -> None:
        super().__init__(RedisServer(directory), timeout)

    async def start(self) -> None:
        self._server.start()
        await self._server.ready()

    def publisher(self) -> object:
        return self._publisher(f"stream={STREAM}")

    def unroutable(self) -> tuple[object, str]:
        return self._publisher("stream=nowhere&nomkstream=on"), "'nowhere'"

    def _publisher(self, options: str) -> object:
        return RedisPublisher(
            f"redis://127.0.0.1:{self.proxy.port}/0?{options}&max_bytes={MAX_BYTES}&timeout={self._timeout}"
        )

    async def received(self) -> Sequence[Received]:
        return await self._server.received(STREAM)

    def too_large(self) -> bytes:
        return b"x" * (MAX_BYTES + 1)


class TestRedisConformance(ServedConformance):
    timeout = 1.0

    def harness(self) -> PublisherHarness:
        return RedisHarness(self._tmp, self.timeout)
