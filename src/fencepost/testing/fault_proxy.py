"""A TCP proxy in front of a server, for what networks do: refuse, reset, swallow answers, swallow everything.

::

    with FaultProxy("127.0.0.1", 4222) as proxy:
        publisher = NatsPublisher(f"nats://127.0.0.1:{proxy.port}")
        proxy.mute()        # the server gets everything, its answers do not arrive
        ...
        proxy.heal()        # they arrive now, late

It runs on an event loop in a thread of its own, so that it works while the test's loop is blocked, and its
methods may be called from any thread; each returns when it is in force. What a fault holds back is not lost: as
with real TCP it arrives after `heal`, unless its connection is gone by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

CALL_SECONDS = 10.0
CHUNK = 65_536
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends RST instead of FIN."""

Result = TypeVar("Result")


class _Link:
    """One connection of a client, and ours to the server once there is one."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.was_reset = False
        self.writers: list[asyncio.StreamWriter] = []
        """The client's first. None while asyncio takes over the client's socket, which may not be closed then."""

    def reset(self) -> None:
        self.was_reset = True
        sockets = [writer.get_extra_info("socket") for writer in self.writers]
        for each in sockets or [self.client]:
            with contextlib.suppress(OSError):  # closed already
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        for writer in self.writers:
            writer.transport.abort()

    def end(self) -> None:
        self.reset()
        if not self.writers:  # and there will be none
            self.client.close()


class FaultProxy:
    """Forwards bytes until it is told otherwise.

    Args:
        host: where the server is.
        port: its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        """May be set anew: connections made from then on go there."""
        self.port = 0
        """The port to connect to, on 127.0.0.1; set by `start`, and the same for the proxy's whole life."""
        self.connections = 0
        """How many connections were accepted so far."""
        self.cuts = 0
        """How many connections `cut_after` and `cut_answer` have cut so far."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests_pass, self._answers_pass = asyncio.Event(), asyncio.Event()
        self._requests_left: int | None = None
        self._answer_is_cut = False

    def start(self) -> Self:
        """Listen on a free port of 127.0.0.1. Does nothing when it runs already."""
        if self._loop is None:
            # Asyncio's own, whatever the policy: uvloop gives no socket away once a connection ends.
            self._loop = loop = asyncio.SelectorEventLoop()
            self._thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
            self._thread.start()
            self.heal()
        return self

    def close(self) -> None:
        """Cut everything and end the thread; it can be started again, at another port."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._do(self._end)
        self._loop, self._thread, self.port = None, None, 0
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CALL_SECONDS)
        loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def heal(self) -> None:
        """Let everything pass again, also what was held back, and listen again after `refuse`."""
        self._do(self._heal)

    def refuse(self) -> None:
        """Stop listening and reset every connection, as a server that is gone."""
        self._do(self._refuse)

    def reset(self) -> None:
        """Reset every open connection (RST); new ones are welcome."""
        self._call(self._reset)

    def mute(self) -> None:
        """Forward what clients send, and hold back every answer: accepted, then silent."""
        self._call(lambda: self._pass(requests=True, answers=False))

    def black_hole(self) -> None:
        """Keep connections and accept new ones, and forward nothing either way."""
        self._call(lambda: self._pass(requests=False, answers=False))

    def cut_after(self, count: int) -> None:
        """Forward the next ``count`` bytes that clients send, then reset the connection that sent the last one."""
        self._call(lambda: setattr(self, "_requests_left", count))

    def cut_answer(self) -> None:
        """Reset the next connection that the server answers on; the answer does not arrive."""
        self._call(lambda: setattr(self, "_answer_is_cut", True))

    def _do(self, step: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        if self._loop is None:
            raise RuntimeError("the proxy is not started")
        return asyncio.run_coroutine_threadsafe(step(), self._loop).result(CALL_SECONDS)

    def _call(self, step: Callable[[], object]) -> None:
        async def run() -> None:
            step()

        self._do(run)

    async def _heal(self) -> None:
        self._requests_left, self._answer_is_cut = None, False
        self._pass(requests=True, answers=True)
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def _refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._reset()

    async def _end(self) -> None:
        await self._refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _reset(self) -> None:
        for link in self._links:
            link.reset()

    def _pass(self, *, requests: bool, answers: bool) -> None:
        for gate, is_open in ((self._requests_pass, requests), (self._answers_pass, answers)):
            if is_open:
                gate.set()
            else:
                gate.clear()

    def _accept(self, listener: socket.socket) -> None:
        """Take a connection and know it at once: asyncio's servers have some that `refuse` would not find yet."""
        try:
            client, _ = listener.accept()
        except OSError:  # it has gone again
            return
        client.setblocking(False)
        link = _Link(client)
        self._links.add(link)
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(link))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(link, task))

    def _ended(self, link: _Link, task: asyncio.Task[None]) -> None:
        link.end()
        self._links.discard(link)
        self._tasks.discard(task)

    async def _serve(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(sock=link.client)
            link.writers.append(writer)
            if link.was_reset:
                return
            # A real black hole would not even have let it connect: what was sent since has never left.
            if not self._requests_pass.is_set():
                await self._requests_pass.wait()
                return
            await self._forward(link, reader, writer)

    async def _forward(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self.target)
        link.writers.append(up_writer)
        pumps = (
            asyncio.ensure_future(self._pump(link, reader, up_writer, self._requests_pass, self._is_cut_request)),
            asyncio.ensure_future(self._pump(link, up_reader, writer, self._answers_pass, self._is_cut_answer)),
        )
        try:
            await asyncio.gather(*pumps)
            for each in link.writers:
                each.close()
                await each.wait_closed()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        link: _Link,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        gate: asyncio.Event,
        is_cut: Callable[[bytes], int | None],
    ) -> None:
        while data := await source.read(CHUNK):
            await gate.wait()
            left = is_cut(data)
            sink.write(data[:left])
            await sink.drain()
            if left is not None:
                self.cuts += 1
                link.reset()
                return
        await gate.wait()
        if sink.can_write_eof():
            sink.write_eof()

    def _is_cut_request(self, data: bytes) -> int | None:
        """Return how much of it still goes out before the cut; None where nothing is cut."""
        left = self._requests_left
        if left is None:
            return None
        self._requests_left = None if len(data) >= left else left - len(data)
        return left if len(data) >= left else None

    def _is_cut_answer(self, _: bytes) -> int | None:
        cut, self._answer_is_cut = self._answer_is_cut, False
        return 0 if cut else None
