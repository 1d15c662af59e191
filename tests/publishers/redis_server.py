"""A real redis-server in a process and a directory of its own, stopped by its pid."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from fencepost.embedded.ports import free_port
from fencepost.testing.publisher_conformance import Received, received_from
from tests.servers import ServerProcess, found


class RedisServer(ServerProcess):
    """``redis-server``: a write is on its disk before its answer; `ready` and `client` tell when it answers."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        program, port = found("redis-server", "install redis-server"), free_port()
        command = [
            *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "local", *arguments),
        ]
        super().__init__(directory, port, command)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Redis]:
        """Provide a client of the tests' own once the server answers."""
        client = Redis(host="127.0.0.1", port=self.port, protocol=2, **options)
        try:
            await self.first_awaited(client.ping, OSError, RedisError)
            yield client
        finally:
            await client.aclose()

    async def ready(self) -> None:
        """Return once the server answers."""
        async with self.client():
            pass

    async def entries(self, stream: str, **options: Any) -> list[Mapping[bytes, bytes]]:
        """Return the fields of each entry of a stream."""
        async with self.client(**options) as client:
            entries: Any = await client.xrange(stream)  # its type allows for every way to decode
            return [fields for _, fields in entries]

    async def received(self, stream: str) -> Sequence[Received]:
        """Return each entry of a stream, decoded by the rule of docs/destinations/redis.md."""
        return [decoded(fields) for fields in await self.entries(stream)]


def decoded(fields: Mapping[bytes, bytes]) -> Received:
    """Return an entry as a receiver reads it: the field ``payload``, and the headers beside it."""
    headers = {name.decode(): value.decode() for name, value in fields.items() if name != b"payload"}
    return received_from(fields[b"payload"], headers)
