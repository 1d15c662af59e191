"""A receiver that reads each post and answers 204, in a process of its own, and is never what one waits for.

Run as ``python -m tests.bench.http_sink PORT``.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import cast

from fencepost.runtime.loop import new_event_loop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Sink(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._read = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._read += data
        while (head := self._read.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._read, 0, head + 2)
            assert length is not None, "a request without a length"
            end = head + 4 + int(length[1])
            if len(self._read) < end:
                return
            del self._read[:end]
            self._transport.write(_ANSWER)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
