"""The publisher conformance suite on a real mosquitto broker, with a subscriber whose session stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fencepost.publishers.mqtt.publisher import MqttPublisher
from fencepost.testing.publisher_conformance import PublisherHarness, Received
from tests.publishers.mosquitto_server import MosquittoServer, read_all
from tests.publishers.served import ServedConformance, ServedHarness

MAX_PACKET_BYTES = 100_000


class MqttHarness(ServedHarness[MosquittoServer]):
    def __init__(self, directory: Path, timeout: float) -> None:
        super().__init__(MosquittoServer(directory, f"max_packet_size {MAX_PACKET_BYTES}"), timeout)
        self._arrived: list[Received] = []
        self._is_subscribed = False

    async def start(self) -> None:
        self._server.start()
        if self._is_subscribed:
            await self._server.ready()  # the reader would take what the broker has kept for it
            return
        async with self._server.client("reader") as client:
            await client.subscribe("events/#", qos=1)
        self._is_subscribed = True

    def publisher(self) -> object:
        return self._publisher("events/{event_type}")

    def unroutable(self) -> tuple[object, str]:
        return self._publisher("nowhere/{event_type}"), "topic 'nowhere/order/created'"

    def _publisher(self, topic: str) -> object:
        return MqttPublisher(f"mqtt://127.0.0.1:{self.proxy.port}?topic={topic}&timeout={self._timeout}")

    async def received(self) -> Sequence[Received]:
        self._arrived += await read_all(self._server, "reader", "events/#")
        return self._arrived

    def too_large(self) -> bytes:
        return b"x" * (MAX_PACKET_BYTES + 1)


class TestMqttConformance(ServedConformance):
    timeout = 1.0

    def harness(self) -> PublisherHarness:
        return MqttHarness(self._tmp, self.timeout)
