"""The proxy between one process and the database: the one for tests, which also knows a COMMIT."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from fencepost.testing.fault_proxy import FaultProxy, _Link

COMMIT = b"COMMIT"


class CommitProxy(FaultProxy):
    """A `FaultProxy` that can lose a COMMIT or its answer, on the connection that sends it."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._lose_answer = self._lose_request = False
        self._waiting: set[_Link] = set()
        self.commits_cut = 0

    def url(self, url: str) -> str:
        """Return a database URL that leads through this proxy."""
        parts = urlsplit(url)
        credentials = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{credentials}@127.0.0.1:{self.port}").geturl()

    def retarget(self, url: str) -> None:
        """Lead to another server from now on, and cut what leads to the old one."""
        parts = urlsplit(url)
        self.target = (parts.hostname or "", parts.port or 0)
        self.reset()

    def lose_commit(self, *, answer_only: bool) -> None:
        """Cut the next connection that sends a COMMIT: before it arrives, or after it is done and not answered."""

        def arm() -> None:
            self._lose_answer, self._lose_request = answer_only, not answer_only

        self._call(arm)

    def server_ports(self) -> list[int]:
        """Return the ports of our connections to the server, by which it knows them."""
        found: list[int] = []

        def look() -> None:
            writers = [writer for link in self._links for writer in link.writers[1:]]
            found.extend(writer.get_extra_info("sockname")[1] for writer in writers)

        self._call(look)
        return found

    async def _pump(
        self,
        link: _Link,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        gate: asyncio.Event,
        is_cut: Callable[[bytes], int | None],
    ) -> None:
        sees_requests = is_cut == self._is_cut_request

        def watched(data: bytes) -> int | None:
            lost = self._sent(link, data) if sees_requests else self._answered(link)
            return 0 if lost else is_cut(data)

        try:
            await super()._pump(link, source, sink, gate, watched)
        finally:
            self._waiting.discard(link)

    def _sent(self, link: _Link, data: bytes) -> bool:
        if not (self._lose_answer or self._lose_request) or COMMIT not in data:
            return False
        if self._lose_answer:
            self._waiting.add(link)
        lost, self._lose_answer, self._lose_request = self._lose_request, False, False
        self.commits_cut += lost
        return lost

    def _answered(self, link: _Link) -> bool:
        if link not in self._waiting:
            return False
        self._waiting.discard(link)
        self.commits_cut += 1
        return True
