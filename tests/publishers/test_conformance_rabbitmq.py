"""The publisher conformance suite on a real RabbitMQ broker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fencepost.publishers.rabbitmq.publisher import RabbitPublisher
from fencepost.testing.publisher_conformance import PublisherConformance, PublisherHarness, Received
from tests.publishers.rabbitmq_server import MAX_MESSAGE_BYTES, RabbitServer, as_received
from tests.publishers.served import SharedHarness

EXCHANGE = "events"
QUEUE = "events.all"


class RabbitHarness(SharedHarness[RabbitServer]):
    """One broker serves all tests; it is really restarted only where a test is about that."""

    def __init__(self, server: RabbitServer, timeout: float) -> None:
        super().__init__(server, timeout)
        self._arrived: list[Received] = []
        self._is_fresh = True

    async def start(self) -> None:
        async with await self._server.connect() as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(EXCHANGE, "topic", durable=True)
            queue = await channel.declare_queue(QUEUE, durable=True)
            await queue.bind(exchange, "#")
            if self._is_fresh:
                await queue.purge()
        self._is_fresh = False

    async def stop(self) -> None:
        """The proxy refuses connections: a stop and a start of the broker itself take ten seconds."""

    async def restart(self) -> None:
        self._server.stop()
        self._server.start()
        await self._server.ready()

    def publisher(self) -> object:
        return self._publisher(EXCHANGE)

    def unroutable(self) -> tuple[object, str]:
        return self._publisher("nowhere"), "exchange 'nowhere'"

    def _publisher(self, exchange: str) -> object:
        return RabbitPublisher(
            f"amqp://guest:guest@127.0.0.1:{self.proxy.port}?exchange={exchange}&timeout={self._timeout}"
        )

    async def received(self) -> Sequence[Received]:
        async with await self._server.connect() as connection:
            queue = await (await connection.channel()).get_queue(QUEUE)
            while message := await queue.get(no_ack=True, fail=False):
                self._arrived.append(as_received(message))
        return self._arrived

    def too_large(self) -> bytes:
        return b"x" * (MAX_MESSAGE_BYTES + 1)


class TestRabbitConformance(PublisherConformance):
    timeout = 1.0

    @pytest.fixture(autouse=True)
    def _server(self, rabbit_server: RabbitServer) -> None:
        self._rabbit = rabbit_server

    def harness(self) -> PublisherHarness:
        return RabbitHarness(self._rabbit, self.timeout)
