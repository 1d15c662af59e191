"""A publisher of one's own against a server that is just there: five lines run the suite through the proxy."""

from __future__ import annotations

import asyncio
import json
import socketserver
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest

from fencepost.core.records import Message
from fencepost.errors import Retryable
from fencepost.publishers.base import Delivery, publish_budget
from fencepost.publishers.headers import outgoing_headers
from fencepost.testing.publisher_conformance import (
    ProxiedHarness,
    PublisherConformance,
    PublisherHarness,
    Received,
    SimpleHarness,
    opted_out,
    received_from,
)


class LineServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Lines)
        self.kept: list[Received] = []


class Lines(socketserver.StreamRequestHandler):
    server: LineServer

    def handle(self) -> None:
        try:
            headers, body = json.loads(self.rfile.readline())
            self.server.kept.append(received_from(bytes.fromhex(body), headers))
            self.wfile.write(b"ok\n")
        except (OSError, ValueError):
            return  # cut before the line was whole, or before the answer


class LinePublisher:
    def __init__(self, port: int, timeout: float) -> None:
        self._port, self._timeout = port, timeout

    async def publish(self, message: Message, delivery: Delivery) -> None:
        line = json.dumps([outgoing_headers(message, delivery), message.payload.hex()]).encode() + b"\n"
        try:
            async with asyncio.timeout(publish_budget(delivery, self._timeout)):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(line)
                    answer = await reader.readline()
                finally:
                    writer.transport.abort()
        except (TimeoutError, OSError) as error:
            down = isinstance(error, ConnectionRefusedError)
            raise Retryable(f"{type(error).__name__}: {error}", unavailable=down) from None
        if answer != b"ok\n":
            raise Retryable("no answer")


@pytest.fixture(scope="module")
def server() -> Iterator[LineServer]:
    with LineServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class TestLinePublisher(PublisherConformance):
    opt_outs: ClassVar = opted_out("a line server is not like that", "durable", "too_large", "unroutable")

    @pytest.fixture(autouse=True)
    def _server(self, server: LineServer) -> None:
        self._lines = server

    def harness(self) -> PublisherHarness:
        lines, port = self._lines, self._lines.server_address[1]
        return ProxiedHarness(lambda proxy: LinePublisher(proxy, self.timeout), lambda: lines.kept, port=int(port))


async def test_what_a_harness_cannot_do_it_says() -> None:
    harness = SimpleHarness(lambda: None, list)
    for call in (harness.stop, harness.pause, harness.restart, harness.silence, harness.black_hole, harness.cut):
        with pytest.raises(AssertionError, match=r"SimpleHarness cannot do .*opt_outs"):
            await call()
    with pytest.raises(AssertionError, match="unroutable"):
        harness.unroutable()
    with pytest.raises(AssertionError, match="too_large"):
        harness.too_large()
