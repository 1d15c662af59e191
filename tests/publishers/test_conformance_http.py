"""The publisher conformance suite on a real HTTP receiver."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.publishers.http import HttpPublisher
from fencepost.testing.publisher_conformance import PublisherConformance, PublisherHarness, Received, received_from
from tests.publishers.http_receiver import MAX_BODY, HttpReceiver


class HttpHarness(PublisherHarness):
    def __init__(self, timeout: float) -> None:
        self._receiver = HttpReceiver()
        self._timeout = timeout

    async def start(self) -> None:
        await self._receiver.start()

    async def stop(self) -> None:
        await self._receiver.stop()

    async def pause(self) -> None:
        self._receiver.pause()

    async def resume(self) -> None:
        self._receiver.resume()

    async def close(self) -> None:
        self._receiver.resume()
        await self._receiver.stop()

    def publisher(self) -> object:
        return HttpPublisher(f"{self._receiver.url}/hook?timeout={self._timeout}")

    async def received(self) -> Sequence[Received]:
        return [received_from(one.body, dict(one.headers)) for one in self._receiver.requests]

    def too_large(self) -> bytes:
        return b"x" * (MAX_BODY + 1)


class TestHttpConformance(PublisherConformance):
    timeout = 1.5

    def harness(self) -> PublisherHarness:
        return HttpHarness(self.timeout)
