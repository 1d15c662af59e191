"""A real redis-server in a process and a directory of its own, stopped by its pid."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fencepost.testing.publisher_conformance import Received, received_from

REQUIRE = "FENCEPOST_REQUIRE_SERVERS"
READY_SECONDS = 10.0


def binary() -> str:
    """Return the path of redis-server; without one, skip, or fail where the servers are required."""
    found = shutil.which("redis-server")
    if found is None:
        reason = "redis-server is not installed: install redis-server"
        if os.environ.get("CI") or os.environ.get(REQUIRE) == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class RedisServer:
    """``redis-server`` on a port that stays the same over restarts; a write is on the disk before its answer."""

    def __init__(self, directory: Path, port: int, *arguments: str) -> None:
        self.port = port
        directory.mkdir(exist_ok=True)
        self._command = [
            *(binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "local", *arguments),
        ]
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # A signal is not yet a stop: the server could still answer meanwhile.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Redis]:
        """Provide a client of the tests' own once the server answers."""
        client = Redis(host="127.0.0.1", port=self.port, protocol=2, **options)
        try:
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    try:
                        await client.ping()
                        break
                    except (OSError, RedisError):
                        await asyncio.sleep(0.02)  # between two looks at the condition, which is "it answers"
            yield client
        finally:
            await client.aclose()

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
