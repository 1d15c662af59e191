"""The publisher conformance suite on a real broker that speaks Kafka's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from fencepost.publishers.kafka.publisher import KafkaPublisher
from fencepost.testing.publisher_conformance import PublisherHarness, Received, opted_out, received_from
from tests.publishers.kafka_server import TansuServer, create_topics, headers_of, stored
from tests.publishers.served import ServedConformance, ServedHarness

TOPIC = "events"


class KafkaHarness(ServedHarness[TansuServer]):
    """Tansu tells its clients to come through the proxy: the publisher, and those that create topics and read."""

    def __init__(self, directory: Path, timeout: float) -> None:
        super().__init__(TansuServer(directory), timeout)
        self.proxy.start()
        self._server.advertise(self.proxy.port)

    async def start(self) -> None:
        self._server.start()
        self.proxy.heal()
        await asyncio.to_thread(create_topics, f"127.0.0.1:{self.proxy.port}", TOPIC)

    def publisher(self) -> object:
        return self._publisher(TOPIC)

    def unroutable(self) -> tuple[object, str]:
        return self._publisher("missing"), "missing"

    def _publisher(self, topic: str) -> object:
        return KafkaPublisher(f"kafka://127.0.0.1:{self.proxy.port}?topic={topic}&timeout={self._timeout}")

    async def received(self) -> Sequence[Received]:
        self.proxy.heal()  # the suite may read while a fault is on, once nothing is in flight any more
        found = await asyncio.to_thread(stored, f"127.0.0.1:{self.proxy.port}", TOPIC)
        return [received_from(message.value() or b"", headers_of(message)) for message in found]

    def too_large(self) -> bytes:
        return b"x" * 1_000_001


class TestKafkaConformance(ServedConformance):
    patience = timeout = (
        2.0  # librdkafka makes a new producer known to the brokers half a second or a second later
    )
    opt_outs = opted_out("this broker keeps everything in memory; Kafka itself keeps it", "durable")

    def harness(self) -> PublisherHarness:
        return KafkaHarness(self._tmp, self.patience)

    def test_a_hundred_at_once_all_arrive(self) -> None:
        self.patience = 15.0  # each a request of its own, on a machine that has more to do
        super().test_a_hundred_at_once_all_arrive()
