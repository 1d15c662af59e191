"""A TCP server for tests that knows each connection from the moment it was accepted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Acceptor:
    """Serves connections on 127.0.0.1 until it is stopped, and leaves none behind.

    Asyncio's own server has connections for a few turns of the loop that it does not tell about yet: they live
    through its close, and show up as transports that nobody closed in whatever test runs when they are collected.
    """

    def __init__(self, serve: Serve, *, limit: int = 65_536, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        """Set by the first `start`, and the same from then on."""
        self._serve = serve
        self._limit = limit
        self._tls = tls
        self._listener: socket.socket | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._listener = listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut every open connection."""
        for writer in list(self._open):
            writer.transport.abort()

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # it has gone again
            return
        client.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._connected(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: client.close())  # for one cancelled before its first step

    async def _connected(self, client: socket.socket) -> None:
        reader = asyncio.StreamReader(self._limit)
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        with suppress(OSError, asyncio.IncompleteReadError):
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=self._tls)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            self._open.add(writer)
            try:
                await self._serve(reader, writer)
            finally:
                self._open.discard(writer)
                transport.abort()
                await writer.wait_closed()
