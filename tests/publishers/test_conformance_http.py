"""The publisher conformance suite on a real HTTP receiver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fencepost.publishers.http.publisher import HttpPublisher
from fencepost.testing.publisher_conformance import (
    FaultProxy,
    PublisherConformance,
    PublisherHarness,
    Received,
    received_from,
)
from tests.publishers.http_receiver import MAX_BODY, HttpReceiver, plain


class HttpHarness(PublisherHarness):
    def __init__(self, timeout: float) -> None:
        self._receiver = HttpReceiver()
        self._timeout = timeout

    async def start(self) -> None:
        await self._receiver.start()
        if self.proxy is None:
            self.proxy = FaultProxy("127.0.0.1", self._receiver.port)

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
        assert self.proxy is not None
        return HttpPublisher(f"http://127.0.0.1:{self.proxy.port}/hook?allow_private=on&timeout={self._timeout}")

    def unroutable(self) -> tuple[object, str]:
        assert self.proxy is not None
        self._receiver.answers["/nowhere"] = plain(404)
        return HttpPublisher(
            f"http://127.0.0.1:{self.proxy.port}/nowhere?allow_private=on&timeout={self._timeout}"
        ), "404"

    async def received(self) -> Sequence[Received]:
        return [received_from(one.body, dict(one.headers)) for one in self._receiver.requests]

    def too_large(self) -> bytes:
        return b"x" * (MAX_BODY + 1)


class TestHttpConformance(PublisherConformance):
    timeout = 1.5
    opt_outs: ClassVar = {"durable": "what the receiver keeps is the receiver's business; ours keeps it in memory"}

    def harness(self) -> PublisherHarness:
        return HttpHarness(self.timeout)
