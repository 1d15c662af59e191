"""The publisher conformance suite for SQS, standard and FIFO, and for SNS FIFO, on a moto server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import pytest

from fencepost.publishers.aws.sns import SnsPublisher
from fencepost.publishers.aws.sqs import SqsPublisher
from fencepost.testing.publisher_conformance import PublisherConformance, PublisherHarness, Received
from tests.publishers.moto_server import ACCOUNT, REGION, MotoServer, aws_environment, decoded
from tests.publishers.served import SharedHarness

MAX_BYTES = 200_000


class AwsHarness(SharedHarness[MotoServer]):
    """One moto server serves all tests of this module; each finds it empty."""

    def __init__(self, moto: MotoServer, timeout: float, suffix: str) -> None:
        super().__init__(moto, timeout)
        self._suffix = suffix
        self._queue = f"orders{suffix}"
        self._seen: list[Received] = []

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        self._server.start()
        self._server.create_queue(self._queue)

    def publisher(self) -> object:
        return SqsPublisher(f"sqs://{REGION}/{self._queue}?{self._options}")

    def unroutable(self) -> tuple[object, str]:
        name = f"nowhere{self._suffix}"
        return SqsPublisher(f"sqs://{REGION}/{name}?{self._options}"), name

    @property
    def _options(self) -> str:
        return f"endpoint=http://127.0.0.1:{self.proxy.port}&timeout={self._timeout}&max_bytes={MAX_BYTES}"

    async def received(self) -> Sequence[Received]:
        # Reading takes them out of the queue, so what was read before is kept here.
        self._seen += map(decoded, await asyncio.to_thread(self._server.drained, self._queue))
        return self._seen

    def too_large(self) -> bytes:
        return b"x" * MAX_BYTES


class SnsHarness(AwsHarness):
    def _start(self) -> None:
        self._server.start()
        self._server.create_topic(f"events{self._suffix}", self._queue)

    def publisher(self) -> object:
        return SnsPublisher(f"sns://{REGION}/{ACCOUNT}/events{self._suffix}?{self._options}")

    def unroutable(self) -> tuple[object, str]:
        name = f"nowhere{self._suffix}"
        return SnsPublisher(f"sns://{REGION}/{ACCOUNT}/{name}?{self._options}"), name


MANY_REQUESTS = frozenset(
    {
        "test_a_hundred_at_once_all_arrive",
        "test_a_batch_that_is_acknowledged_arrives_and_its_keys_in_order",
        "test_in_a_batch_free_text_in_every_field_arrives_beside_twenty_others",
        "test_in_a_batch_one_bad_message_spares_twenty_neighbours",
    }
)
"""These are about what arrives, not about time: each makes dozens of requests to a server in Python, on a machine
that has more to do."""


class AwsConformance(PublisherConformance):
    timeout = 1.5
    patience = timeout
    opt_outs: ClassVar = {"durable": "moto keeps everything in memory; AWS keeps copies in several places"}
    harness_class: ClassVar[type[AwsHarness]] = AwsHarness
    suffix: ClassVar[str] = ""

    @pytest.fixture(autouse=True)
    def _server(
        self, request: pytest.FixtureRequest, shared_moto: MotoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        aws_environment(monkeypatch)
        self._moto = shared_moto
        if request.node.name in MANY_REQUESTS:
            self.patience = 15.0

    def harness(self) -> PublisherHarness:
        return self.harness_class(self._moto, self.patience, self.suffix)


class TestSqsConformance(AwsConformance):
    pass


class TestSqsFifoConformance(AwsConformance):
    suffix = ".fifo"


class TestSnsFifoConformance(AwsConformance):
    harness_class = SnsHarness
    suffix = ".fifo"
