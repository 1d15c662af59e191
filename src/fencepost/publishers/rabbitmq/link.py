"""A connection to RabbitMQ and its channels, as `fencepost.publishers.rabbitmq.publisher` uses them.

aiormq does the protocol. What it does not do is done here: its connection can be dropped at once (its own close
waits minutes for a frozen broker), it is known whether anything came back, and its loggers stay silent about us,
because every failure is in the outcome of a publish already.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from fencepost.errors import Retryable
from fencepost.publishers.connector import retrieve
from fencepost.publishers.credentials import redacted

if TYPE_CHECKING:
    from aiormq.channel import Channel
    from aiormq.connection import Connection
    from yarl import URL

HEARTBEAT_SECONDS = 20
"""An idle connection whose other side is gone is noticed after about three of these, at the latest."""

UNLIMITED = 2**31
_IS_OURS: ContextVar[bool] = ContextVar("fencepost-rabbitmq", default=False)


class _NotOurs(logging.Filter):
    """Keeps what aiormq logs for this application's own connections, and drops what it logs for ours."""

    def filter(self, _: logging.LogRecord) -> bool:
        return not _IS_OURS.get()


_NOT_OURS = _NotOurs()


def mark_as_ours() -> None:
    """Mark this task, and those it starts, as ours."""
    _IS_OURS.set(True)


def silence_client() -> None:
    """Have aiormq log nothing on our account."""
    for name in ("aiormq.connection", "aiormq.channel", "aiormq.connection.marshall"):
        logging.getLogger(name).addFilter(_NOT_OURS)


class Wire:
    """The TCP or TLS connection that aiormq asks for (its ``transport_factory``)."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._transport: asyncio.Transport | None = None
        self._is_dropped = False
        self.came_back = 0
        """How many pieces of data came back so far."""

    async def create(self, url: URL, **_: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect; ``url`` is where we would go anyway."""
        loop = asyncio.get_running_loop()
        reader = _Reader(self, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _protocol = await loop.create_connection(
            lambda: protocol, self._host, self._port, ssl=self._tls
        )
        self._transport = transport
        if self._is_dropped:
            transport.abort()
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def abort(self) -> None:
        """Drop the connection at once, also one that is still being made."""
        self._is_dropped = True
        if self._transport is not None:
            self._transport.abort()


class _Reader(asyncio.StreamReader):
    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._wire = wire

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self._wire.came_back += 1
        super().feed_data(data)


class Lane:
    """A channel, closed when it is to be used no more and the last publish on it has ended."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._users = 0
        self._is_retired = False

    @property
    def usable(self) -> bool:
        # The broker's own close is answered at once, but aiormq calls the channel closed only some steps later.
        # What is sent meanwhile would end the whole connection ("expected 'channel.open'").
        is_closing = self.channel._close_exception is not None  # noqa: SLF001 - nothing public tells it in time
        return not self._is_retired and not is_closing and not self.channel.is_closed

    def enter(self) -> None:
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        self._close_when_left()

    def retire(self) -> None:
        """Let nobody else in: a confirm is missing on it, and would come too late."""
        self._is_retired = True
        self._close_when_left()

    def _close_when_left(self) -> None:
        if self._is_retired and not self._users and not self.channel.is_closed:
            # Left to itself: it ends with the broker's answer, or with the connection.
            task = asyncio.ensure_future(_close(self.channel))
            task.add_done_callback(retrieve)
            _KEPT.add(task)
            task.add_done_callback(_KEPT.discard)


async def _close(closable: Channel | Connection) -> None:
    mark_as_ours()
    await closable.close()


_KEPT: set[asyncio.Future[Any]] = set()
"""asyncio itself holds tasks weakly."""


class RabbitLink:
    """A connection, and the channel that all publishes on it share."""

    def __init__(
        self, shown: str, secrets: Sequence[str | None], connection: Connection, wire: Wire, most_bytes: int
    ) -> None:
        self._shown, self._secrets = shown, secrets
        self._connection, self._wire = connection, wire
        self.most_bytes = most_bytes
        """The largest message; less than configured once the broker said that its own limit is lower."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done as soon as the connection is closed, by whichever side."""
        connection.closing.add_done_callback(self._closed)
        self._opening: asyncio.Task[Lane] | None = None

    @property
    def usable(self) -> bool:
        return not self.gone.done()

    def failure(self, text: str, *, unavailable: bool = False) -> Retryable:
        """Return a failure whose text shows no secret: the broker's own texts name the user."""
        return Retryable(f"{self._shown}: {redacted(text, self._secrets)}", unavailable=unavailable)

    @property
    def came_back(self) -> int:
        return self._wire.came_back

    @property
    def most_header_bytes(self) -> int:
        """A message's properties and headers must fit into one frame: a longer one ends the connection."""
        return self._connection.connection_tune.frame_max or UNLIMITED

    def shared(self) -> asyncio.Task[Lane]:
        """Return the task that opens the shared channel, perhaps done long ago."""
        task = self._opening
        if task is None or (task.done() and not _is_usable(task)):
            task = self._opening = self.open_lane()
        return task

    def open_lane(self) -> asyncio.Task[Lane]:
        """Open a channel with confirms."""
        task = asyncio.create_task(self._open())
        task.add_done_callback(retrieve)
        return task

    async def unblocked(self) -> None:
        """Return when the broker takes messages: at once, unless it told us that an alarm blocks publishers."""
        await self._connection.ready()

    @property
    def is_blocked(self) -> bool:
        """Whether `unblocked` would wait: looked at by taking its first step."""
        waiting = self._connection.ready()
        try:
            waiting.send(None)
        except StopIteration:
            return False
        waiting.close()
        return True

    async def end(self) -> None:
        await _close(self._connection)

    def abort(self) -> None:
        self._wire.abort()
        self._closed()

    async def _open(self) -> Lane:
        mark_as_ours()
        return Lane(cast("Channel", await self._connection.channel(publisher_confirms=True)))

    def _closed(self, _: object = None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


async def logged_in(url: URL, vhost: str, wire: Wire) -> Connection:
    """Connect and log in; a failure leaves nothing behind."""
    import aiormq.connection
    from aiormq.exceptions import InvalidFrameError

    mark_as_ours()
    connection = aiormq.connection.Connection(
        url,
        transport_factory=wire,  # type: ignore[arg-type]  # it has the one method that is called
        client_properties={"connection_name": "fencepost"},
    )
    connection.vhost = vhost
    # Without a limit, so that a publish is on its way in the very step in which its channel was found usable: one
    # that waited for room behind others would follow the answer to the broker's close of that channel.
    connection.write_queue = asyncio.Queue()
    try:
        await connection.connect()
    except InvalidFrameError as error:
        wire.abort()
        if "Connection.Close" in str(error):  # aiormq does not look at the reason
            text = f"it closed the connection: is there a virtual host {vhost!r}, and may this user use it?"
            raise ConnectionError(text) from None
        raise
    except BaseException:
        wire.abort()
        raise
    return connection


def said(error: BaseException) -> str:
    # The last argument, because some errors of aiormq are an OSError with an AMQP code for its number.
    return str(error.args[-1] if error.args else "") or type(error).__name__


def _is_usable(task: asyncio.Task[Lane]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().usable
