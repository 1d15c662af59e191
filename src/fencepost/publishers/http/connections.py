"""The connections of one HTTP destination: at most so many, the last used first, closed when in doubt."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import h11

from fencepost.errors import Retryable
from fencepost.publishers.http.network import Network, Stream

KEEP_IDLE_SECONDS = 4.0
"""Many servers close an idle connection after five seconds; a request that crosses that is lost on its way."""
CONNECT_SHARE = 0.8
"""Of the time for one message: at most this much for a connection, so that some is left for the answer."""
MAX_HEAD_BYTES = 102_400
MAX_BODY_BYTES = 65_536
MAX_BODY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A final status, and what was read of the rest."""

    status: int
    headers: Mapping[str, str]
    """By lower-case names; of several with one name the last."""
    body: bytes


class Connection:
    """One connection to a receiver, for one request after another."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._idle_until = 0.0

    @property
    def is_reusable(self) -> bool:
        """Whether nothing came since the last answer, and it is not too long ago."""
        return self._stream.is_quiet and time.monotonic() < self._idle_until

    async def head(self, request: h11.Request, body: bytes) -> h11.Response:
        """Send a request and return status and headers of its answer.

        Raises:
            OSError, h11.ProtocolError: the connection broke, or what came is not HTTP.
        """
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        self._stream.write(b"".join(self._http.send(event) or b"" for event in events))
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("closed without an answer")

    async def body(self, seconds: float) -> bytes:
        """Return the start of an answer's body, undecoded; what is slow, cut or too long is left there."""
        body = bytearray()
        with contextlib.suppress(TimeoutError, OSError, h11.ProtocolError):
            async with asyncio.timeout(seconds):
                while len(body) < MAX_BODY_BYTES:
                    event = await self._event()
                    if not isinstance(event, h11.Data):
                        break
                    body += event.data
        return bytes(body[:MAX_BODY_BYTES])

    def finish(self) -> bool:
        """Make ready for another request; where that cannot be, close, and return False.

        An answer that nobody asked for yet must not be taken for that to the next request.
        """
        is_done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not is_done or self._http.trailing_data[0] or not self._stream.is_quiet:
            self.close()
            return False
        self._http.start_next_cycle()
        self._idle_until = time.monotonic() + KEEP_IDLE_SECONDS
        return True

    def close(self) -> None:
        """Close at once: who waits for an answer is told that there is none."""
        self._stream.abort()

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(await self._stream.read())


class Connections:
    """Posts to one URL over HTTP/1.1.

    Args:
        target: path and query of the URL.
        network: makes connections.
        most: how many there may be at once.
    """

    def __init__(self, target: bytes, network: Network, most: int) -> None:
        self._target, self._network = target, network
        self._slots = asyncio.Semaphore(most)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._running: set[asyncio.Timeout] = set()
        self._is_closed = False

    async def post(self, headers: Sequence[tuple[str, str]], body: bytes, seconds: float) -> Answer:
        """Send this and return the answer, its status within so many seconds.

        Raises:
            Retryable: there is no status; unless it is marked as unavailable, the receiver may have the request.
        """
        deadline = time.monotonic() + seconds
        request = h11.Request(method=b"POST", target=self._target, headers=list(headers))
        turn = _Turn()
        try:
            head = await self._head(turn, request, body, seconds)
            assert turn.connection is not None  # noqa: S101 - for mypy: there is a head
            # The status is known: what follows changes nothing, be it slow or cut.
            start = await turn.connection.body(min(MAX_BODY_SECONDS, deadline - time.monotonic()))
            return Answer(head.status_code, _headers(head), start)
        finally:
            if turn.connection is not None:
                self._take_back(turn.connection)
            if turn.has_slot:
                self._slots.release()

    def close(self) -> None:
        """Close all connections; requests under way end at once, as unanswered."""
        self._is_closed = True
        for limit in self._running:
            limit.reschedule(asyncio.get_running_loop().time())
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    async def _head(self, turn: _Turn, request: h11.Request, body: bytes, seconds: float) -> h11.Response:
        deadline = time.monotonic() + seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._running.add(limit)
                turn.has_slot = await self._slots.acquire()
                turn.connection = self._idle_one()
                if turn.connection is None:
                    turn.missing = "connection"
                    stream = await self._network.connect((deadline - time.monotonic()) * CONNECT_SHARE)
                    turn.connection = Connection(stream)
                    self._open.add(turn.connection)
                turn.missing = "answer"
                return await turn.connection.head(request, body)
        except TimeoutError:
            failure = f"no {turn.missing} within {seconds:.1f} s"
        except (OSError, h11.ProtocolError) as error:
            failure = f"{type(error).__name__}: {error}"
        finally:
            self._running.discard(limit)
        raise Retryable("the publisher was closed" if self._is_closed else failure)

    def _idle_one(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
            self._drop(connection)
        return None

    def _take_back(self, connection: Connection) -> None:
        if connection.finish() and not self._is_closed:
            self._idle.append(connection)
        else:
            self._drop(connection)
        while self._idle and not self._idle[0].is_reusable:  # the one that was used longest ago
            self._drop(self._idle.pop(0))

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()


@dataclass(slots=True)
class _Turn:
    """What one request holds, and what it still waits for."""

    connection: Connection | None = None
    has_slot: bool = False
    missing: str = "free connection"


def _headers(head: h11.Response) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
