"""The publisher conformance suite on a real NATS server with JetStream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nats.js.errors import NotFoundError

from fencepost.publishers.nats.publisher import NatsPublisher
from fencepost.testing.publisher_conformance import PublisherHarness, Received, received_from
from tests.publishers.nats_server import NatsServer
from tests.publishers.served import ServedConformance, ServedHarness

STREAM = "EVENTS"


class NatsHarness(ServedHarness[NatsServer]):
    def __init__(self, directory: Path, timeout: float) -> None:
        super().__init__(NatsServer(directory), timeout)

    async def start(self) -> None:
        self._server.start()
        client = await self._server.connect()
        stream = client.jetstream()
        try:
            await stream.stream_info(STREAM)
        except NotFoundError:
            await stream.add_stream(name=STREAM, subjects=["events.>"])
        await client.close()

    def publisher(self) -> object:
        return self._publisher(f"stream={STREAM}&subject=events.{{event_type}}")

    def unroutable(self) -> tuple[object, str]:
        return self._publisher("subject=nowhere.{event_type}"), "nowhere.order.created"

    def _publisher(self, options: str) -> object:
        return NatsPublisher(f"nats://127.0.0.1:{self.proxy.port}?{options}&timeout={self._timeout}")

    async def received(self) -> Sequence[Received]:
        client = await self._server.connect()
        stream = client.jetstream()
        last = (await stream.stream_info(STREAM)).state.last_seq
        arrived = []
        for sequence in range(1, last + 1):
            stored = await stream.get_msg(STREAM, sequence)
            arrived.append(received_from(stored.data or b"", stored.headers or {}))
        await client.close()
        return arrived

    def too_large(self) -> bytes:
        return b"x" * (1_048_576 + 1)


class TestNatsConformance(ServedConformance):
    timeout = 1.0

    def harness(self) -> PublisherHarness:
        return NatsHarness(self._tmp, self.timeout)
