"""The publisher conformance suite on a pipe in the place of standard output."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import select
from collections.abc import Sequence
from typing import ClassVar

from fencepost.publishers.stdout import StdoutPublisher
from fencepost.testing.publisher_conformance import (
    NETWORK_FAULTS,
    PublisherConformance,
    PublisherHarness,
    Received,
    opted_out,
    received_from,
)


class PipeHarness(PublisherHarness):
    """A pipe whose reader runs on the event loop. Starting again puts a new pipe under the same descriptor."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._text = bytearray()
        self._reader = -1
        self._fd = -1

    async def start(self) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        if self._fd < 0:
            self._fd = writer
        else:
            os.dup2(writer, self._fd)
            os.close(writer)
        asyncio.get_running_loop().add_reader(self._reader, self._read)

    async def stop(self) -> None:
        self._read()
        asyncio.get_running_loop().remove_reader(self._reader)
        os.close(self._reader)
        self._reader = -1

    async def pause(self) -> None:
        self._read()
        asyncio.get_running_loop().remove_reader(self._reader)
        fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while poll.poll(0):
            os.write(self._fd, b"\n" * select.PIPE_BUF)

    async def resume(self) -> None:
        asyncio.get_running_loop().add_reader(self._reader, self._read)

    async def close(self) -> None:
        if self._reader >= 0:
            await self.stop()
        os.close(self._fd)

    def publisher(self) -> object:
        return StdoutPublisher(f"stdout:?timeout={self._timeout}", fd=self._fd)

    async def received(self) -> Sequence[Received]:
        if self._reader >= 0:
            self._read()
        lines = [line for line in bytes(self._text).split(b"\n") if line]
        return [_received(line) for line in lines]

    def too_large(self) -> bytes:
        raise AssertionError("opted out")

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._reader, 65_536)
            except BlockingIOError:
                return
            if not chunk:
                return
            self._text += chunk


def _received(line: bytes) -> Received:
    fields = json.loads(line)
    encoded = fields.get("payload_base64")
    # The payload comes last and is spelled as it was stored; parsing it would hide a difference.
    payload = base64.b64decode(encoded) if encoded is not None else line.partition(b', "payload": ')[2][:-1]
    arrived = received_from(payload, fields["headers"])
    assert str(arrived.message_id) == fields["message_id"]
    assert (arrived.attempt, arrived.token) == (fields["attempt"], fields["token"])
    assert (arrived.event_type, arrived.key) == (fields["event_type"], fields["key"])
    return arrived


class TestStdoutConformance(PublisherConformance):
    timeout = 1.0
    opt_outs: ClassVar = {
        "too_large": "a pipe has no size limit",
        "durable": "a pipe keeps nothing; its reader may",
        "unroutable": "a pipe has one end",
        **opted_out("a pipe has no network and no acknowledgements", *NETWORK_FAULTS),
    }

    def harness(self) -> PublisherHarness:
        return PipeHarness(self.timeout)
