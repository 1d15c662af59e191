"""A real HTTP/1.1 server on a free port that answers well, badly, or not at all."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.acceptor import Acceptor

MAX_BODY = 1_048_576
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header that must not be there twice."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(values) <= 1, f"{name} was sent {len(values)} times"
        return values[0] if values else None


def plain(status: int, *headers: str, body: bytes = b"") -> Answer:
    """Return an answer that sends a whole response."""
    head = [f"HTTP/1.1 {status} Status", *headers, f"Content-Length: {len(body)}"]

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        await writer.drain()

    return answer


class HttpReceiver:
    """Records requests. ``answers`` maps a path to what is sent for it; without one it is 204."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.answers: dict[str, Answer] = {}
        self.connections = 0
        self.connected = asyncio.Event()
        self._tls = tls
        self._acceptor = Acceptor(self._serve, limit=MAX_BODY, tls=tls)
        self._running = asyncio.Event()
        self._running.set()

    @property
    def port(self) -> int:
        return self._acceptor.port

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        await self._acceptor.start()

    async def stop(self) -> None:
        await self._acceptor.stop()

    def drop_connections(self) -> None:
        self._acceptor.cut()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.connected.set()
        while await self._one(reader, writer):
            pass

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        method, target, _ = first.split(" ")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        size = int(next(value for name, value in headers if name.lower() == "content-length"))
        body = await reader.readexactly(size)
        await self._running.wait()
        request = Request(method, target, headers, body)
        if size > MAX_BODY:
            await plain(413)(writer)
            return True
        self.requests.append(request)
        answer = self.answers.get(target.partition("?")[0])
        if answer is None:
            writer.write(NO_CONTENT)
            await writer.drain()
        else:
            await answer(writer)
        return not writer.is_closing()
