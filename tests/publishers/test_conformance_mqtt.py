"""The publisher conformance suite on a real mosquitto broker, with a subscriber whose session stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fencepost.publishers.mqtt.publisher import MqttPublisher
from fencepost.testing.publisher_conformance import (
    FaultProxy,
    PublisherConformance,
    PublisherHarness,
    Received,
)
from tests.publishers.conftest import free_port
from tests.publishers.mosquitto_server import MosquittoServer, read_all

MAX_PACKET_BYTES = 100_000


class MqttHarness(PublisherHarness):
    def __init__(self, directory: Path, timeout: float) -> None:
        self._server = MosquittoServer(directory, free_port(), f"max_packet_size {MAX_PACKET_BYTES}")
        self.proxy = FaultProxy("127.0.0.1", self._server.port)
        self._timeout = timeout
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

    async def stop(self) -> None:
        self._server.stop()

    async def pause(self) -> None:
        self._server.pause()

    async def resume(self) -> None:
        self._server.resume()

    async def close(self) -> None:
        self._server.stop()

    def publisher(self) -> object:
        return self._publisher("events/{event_type}")

    def unroutable(self) -> tuple[object, str]:
        return self._publisher("nowhere/{event_type}"), "topic 'nowhere/order/created'"

    def _publisher(self, topic: str) -> object:
        assert self.proxy is not None
        return MqttPublisher(f"mqtt://127.0.0.1:{self.proxy.port}?topic={topic}&timeout={self._timeout}")

    async def received(self) -> Sequence[Received]:
        self._arrived += await read_all(self._server, "reader", "events/#")
        return self._arrived

    def too_large(self) -> bytes:
        return b"x" * (MAX_PACKET_BYTES + 1)


class TestMqttConformance(PublisherConformance):
    timeout = 1.0

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self._tmp = tmp_path

    def harness(self) -> PublisherHarness:
        return MqttHarness(self._tmp, self.timeout)
