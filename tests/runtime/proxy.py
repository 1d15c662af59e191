"""A TCP proxy in front of a server, for network faults: silence, resets, and cuts at a chosen moment."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from tests.acceptor import Acceptor


class Proxy:
    """Forwards bytes until it is told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._acceptor = Acceptor(self._serve)
        self.silent = False
        """Swallow everything, and close nothing."""
        self.swallowed = 0
        self.accepted = 0
        self.accepted_while_silent = 0
        self.cut_after: bytes | None = None
        """Cut a connection right after the client sent these bytes: its answer is lost."""
        self.cuts = 0

    @property
    def port(self) -> int:
        return self._acceptor.port

    async def __aenter__(self) -> Self:
        await self._acceptor.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def url(self, url: str) -> str:
        """Return a database URL that goes through this proxy."""
        parts = urlsplit(url)
        credentials = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{credentials}@127.0.0.1:{self.port}"))

    def reset(self) -> None:
        """Cut every open connection."""
        self._acceptor.cut()

    async def close(self) -> None:
        """Refuse new connections and cut the open ones."""
        await self._acceptor.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.accepted_while_silent += self.silent
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, up_writer, from_client=True))
                pumps.create_task(self._pump(up_reader, writer, from_client=False))
        finally:
            up_writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, from_client: bool) -> None:
        try:
            while data := await source.read(65536):
                if self.silent:
                    self.swallowed += len(data)
                    continue
                sink.write(data)
                await sink.drain()
                if from_client and self.cut_after is not None and self.cut_after in data:
                    await self._cut()
        except OSError:
            pass
        finally:
            sink.transport.abort()

    async def _cut(self) -> None:
        """Let the server read what was sent, and keep its answer from ever arriving."""
        self.cut_after = None
        self.cuts += 1
        self.silent = True
        await asyncio.sleep(0.2)  # the server works on it; nobody can see that from here
        self.silent = False
        self.reset()
