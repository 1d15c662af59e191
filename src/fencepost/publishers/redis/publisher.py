"""``redis://`` and ``rediss://`` - appends to Redis streams; the server's answer to each XADD means delivered.

A batch is one pipeline. The messages of an ordering key go through a small script that stops at the first error,
because a pipeline would go on behind one. We hold our own few connections instead of redis-py's client: its
retries would append twice without a word, and what is buffered must not be sent after we have given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.address import Address, parse_address
from fencepost.publishers.base import Delivery, own_copy
from fencepost.publishers.batching import Batch, BatchPublisher
from fencepost.publishers.connector import Talks
from fencepost.publishers.credentials import LOGIN_OPTIONS, TLS_OPTIONS, Login, redacted, tls_context
from fencepost.publishers.redis import stream
from fencepost.publishers.redis.stream import (
    HINTS,
    MISLED,
    TOO_LARGE,
    UNAVAILABLE,
    Entry,
    Writer,
    code_of,
    error_text,
    packed,
    turns,
)

if TYPE_CHECKING:
    from redis.asyncio.connection import Connection

DEFAULT_TIMEOUT = 8.0
DEFAULT_PORT = 6379
OPTIONS = frozenset({"timeout", "wait_replicas"}) | stream.OPTIONS | LOGIN_OPTIONS | TLS_OPTIONS

MAX_CONNECTIONS = 8
MAX_REPLICAS = 100
WAIT_MARGIN = 0.25
"""Seconds before the deadline that ``WAIT`` must end: the server looks at its clock ten times a second."""


@dataclass(slots=True, eq=False)
class _Link:
    """One connection. Its transport is kept, because redis-py closes only after sending what is buffered."""

    connection: Any
    transport: asyncio.WriteTransport | None = None


@dataclass(slots=True)
class _Talk:
    """How far a batch has come; read by whoever waits for it, also when it never ends."""

    batch: Batch
    open: set[int]
    """Places without an answer."""
    sent: set[int] = field(default_factory=set)
    connecting: bool = False


class RedisPublisher(BatchPublisher):
    """Appends each message to a stream.

    Args:
        url: ``redis://[user:password@]host[:port][/db]``, or ``rediss://`` for TLS, with any of the options of
            docs/destinations/redis.md.

    Raises:
        ConfigError: redis-py is not installed, or the URL cannot work.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import redis.asyncio.connection
            import redis.asyncio.retry
            import redis.backoff
            import redis.exceptions
        except ImportError:
            raise ConfigError("redis destinations need redis-py: pip install 'fencepost[redis]'") from None
        self._redis: Any = redis  # untyped in parts
        address = parse_address(url, options=OPTIONS)
        self._shown = address.display
        self._server = _server(address)
        self._login = Login(address)
        self._tls = tls_context(address) if address.scheme == "rediss" else None
        if self._tls is None and not TLS_OPTIONS.isdisjoint(address.options):
            raise ConfigError(f"{address.display}: ca, cert and key are for rediss://")
        self._timeout = address.seconds("timeout", DEFAULT_TIMEOUT)
        given = "wait_replicas" in address.options
        self._replicas = address.count("wait_replicas", 1, most=MAX_REPLICAS) if given else 0
        self._writer = Writer(address)
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[_Link] = []
        self._talks = Talks()

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        """Append all of them, and return an outcome for each.

        Outcomes:
            None: the server answered with the entry's id.
            Retryable: no connection, no answer before the deadline (the entry may have been appended all the
                same), not enough replicas, or an error that a person can mend; the text says what to do.
            Permanent: larger than ``max_bytes``, or a header that cannot be sent.
        """
        batch = Batch(messages, deliveries, self._timeout)
        places = range(len(messages))
        entries = batch.made(places, lambda at: self._writer.entry(at, messages[at], deliveries[at]))
        if entries:
            talk = _Talk(batch, set(entries))
            why = await self._talked(talk, list(entries.values()))
            for place in sorted(talk.open):
                if place in talk.sent or batch.may_go(place):
                    batch.failed(place, own_copy(why))
        return batch.outcomes()

    async def close(self) -> None:
        """Close the connections; a batch that still waits for answers fails as retryable."""
        await self._talks.end()
        await self._forget_idle()

    async def _talked(self, talk: _Talk, entries: list[Entry]) -> Retryable:
        """Let a task send and read; return why what is still open then has no answer."""
        budget = max(0.0, talk.batch.deadline - time.monotonic())
        task = self._talks.start(self._talk(talk, entries))
        try:
            await asyncio.wait({task}, timeout=budget)
        finally:
            task.cancel()
        if not task.done():
            return await self._unanswered(talk, budget)
        if task.cancelled():
            return Retryable(f"{self._shown}: the publisher was closed")
        error = task.exception()
        if error is None or isinstance(error, Retryable):
            return error or Retryable("")  # nothing is open then
        if isinstance(error, (self._redis.exceptions.RedisError, OSError)):
            return self._lost(error, talk)
        raise error

    async def _unanswered(self, talk: _Talk, waited: float) -> Retryable:
        # A message with little lease left says little about the server.
        is_long = waited >= self._timeout / 2
        if is_long and (talk.sent or talk.connecting):
            await self._forget_idle()  # they lead to the same place; new ones will tell
        if talk.connecting:
            return Retryable(f"{self._shown}: not connected before the deadline", unavailable=is_long)
        what = "no answer" if talk.sent else "no free connection"
        return Retryable(f"{self._shown}: {what} before the deadline")

    def _lost(self, error: Exception, talk: _Talk) -> Retryable:
        text = self._text(error)
        if talk.connecting:
            return Retryable(f"{self._shown}: cannot connect: {text}", unavailable=True)
        if code_of(text) in UNAVAILABLE:
            return Retryable(f"{self._shown}: {text}", unavailable=True)
        return Retryable(f"{self._shown}: connection lost before the answer: {text}")

    async def _talk(self, talk: _Talk, entries: list[Entry]) -> None:
        async with self._slots:
            talk.connecting = True
            link = await self._link()
            talk.connecting = False
            usable = False
            try:
                misled = False
                for turn in turns(entries):
                    pieces = [piece for piece in turn if talk.batch.may_go(piece[0].place)]
                    if pieces:
                        misled |= await self._turn(link.connection, pieces, talk)
                usable = not misled
            finally:
                if usable:
                    self._idle.append(link)
                else:
                    await _drop(link)

    async def _turn(self, connection: Any, pieces: list[list[Entry]], talk: _Talk) -> bool:
        """Send a pipeline and read its answers; return whether the connection leads to the wrong place."""
        commands = [self._writer.command(piece) for piece in pieces]
        if self._replicas:
            left = talk.batch.deadline - time.monotonic() - WAIT_MARGIN
            commands.append(["WAIT", self._replicas, max(1, int(left * 1_000))])  # 0 would be for ever
        talk.sent |= {entry.place for piece in pieces for entry in piece}
        try:
            await connection.send_packed_command(packed(commands))
        except RuntimeError as error:  # uvloop's word for a transport that is closed
            raise ConnectionResetError(str(error)) from error
        misled = False
        stored: list[int] = []
        for piece in pieces:
            misled |= self._read(piece, await self._answer(connection), talk, stored)
        if self._replicas:
            self._check_replicas(await self._answer(connection), stored, talk)
        talk.open.difference_update(stored)
        return misled

    async def _answer(self, connection: Any) -> Any:
        try:
            with self._understood():
                return await connection.read_response()
        except self._redis.exceptions.ResponseError as error:
            return error  # of this command alone

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        """Turn what redis-py raises at bytes that are not its protocol into an error of its own."""
        try:
            yield
        except (self._redis.exceptions.RedisError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever its parser meets: ValueError, RecursionError, …
            what = f"not the protocol of Redis: {type(error).__name__}"
            raise self._redis.exceptions.InvalidResponse(what) from None

    def _read(self, piece: list[Entry], answer: Any, talk: _Talk, stored: list[int]) -> bool:
        """Note what a command's answer says about each of its entries."""
        misled = False
        is_of_script = isinstance(answer, list) and self._writer.is_script(piece)
        answers = answer if is_of_script else [answer] * len(piece)
        for entry, one in zip(piece, answers, strict=False):  # a script ends at its first error
            text = self._text(one)
            if not text:
                stored.append(entry.place)
                if not self._replicas:
                    talk.open.discard(entry.place)
                continue
            code = code_of(text)
            misled |= code in MISLED
            hint = f" ({HINTS[code]})" if code in HINTS else ""
            text = f"{self._shown}: stream {entry.stream!r}: {text}{hint}"
            if code == TOO_LARGE and len(piece) == 1:  # in a longer one, who knows which
                talk.batch.failed(entry.place, Permanent(text))
            else:
                talk.batch.failed(entry.place, Retryable(text, unavailable=code in UNAVAILABLE))
            talk.open.discard(entry.place)
        for entry in piece[len(answers) :]:
            if talk.batch.may_go(entry.place):  # else its outcome says so
                talk.batch.failed(
                    entry.place, Retryable(f"{self._shown}: the answer says nothing of this message")
                )
            talk.open.discard(entry.place)
        return misled

    def _check_replicas(self, answer: Any, stored: list[int], talk: _Talk) -> None:
        if isinstance(answer, int) and answer >= self._replicas:
            return
        text = f"only {answer} of {self._replicas} replicas confirmed it in time"
        if not isinstance(answer, int):
            text = f"WAIT: {self._text(answer)}"
        for place in stored:
            talk.batch.failed(place, Retryable(f"{self._shown}: stored, but {text}"))

    def _text(self, answer: Any) -> str:
        text = error_text(answer)
        if text:
            with contextlib.suppress(Retryable):
                text = redacted(text, self._login.read())
        return text

    async def _link(self) -> _Link:
        """Return a connection that is up, as far as this side knows."""
        while self._idle:
            link = self._idle.pop()
            if await self._is_fresh(link.connection):
                return link
            await _drop(link)
        link = _Link(self._connection())
        try:
            with self._understood():
                await link.connection.connect()
        except BaseException:
            await _drop(link)
            raise
        link.transport = link.connection._writer.transport  # noqa: SLF001 - there is no other way to abort it
        return link

    def _connection(self) -> Connection:
        user, password = self._login.read()
        host, port, database = self._server
        options = {
            "host": host,
            "port": port,
            "db": database,
            "username": user or None,
            "password": password,
            "protocol": 2,
            "socket_timeout": None,  # one deadline is over all of it
            "socket_connect_timeout": self._timeout,
            "retry": self._redis.asyncio.retry.Retry(self._redis.backoff.NoBackoff(), 0),
        }
        module = self._redis.asyncio.connection
        connection: Any = (module.Connection if self._tls is None else module.SSLConnection)(**options)
        if self._tls is not None:
            connection.ssl_context.context = self._tls  # its own would trust the usual authorities besides ?ca=
        return connection  # type: ignore[no-any-return]  # chosen at run time

    async def _is_fresh(self, connection: Any) -> bool:
        """Tell whether nothing speaks against an idle connection: not closed, nothing to read on it."""
        look = getattr(connection, "can_read", None) or connection.can_read_destructive  # its name before 8.0
        try:
            return bool(connection.is_connected) and not await look()
        except (self._redis.exceptions.RedisError, OSError):
            return False

    async def _forget_idle(self) -> None:
        idle, self._idle = self._idle, []
        for link in idle:
            await _drop(link)


async def _drop(link: _Link) -> None:
    """Close at once, and send nothing of what is still buffered."""
    if link.transport is not None:
        link.transport.abort()
    # Waits for nothing; an error would be about a connection that nobody wants any more.
    with contextlib.suppress(Exception):
        await link.connection.disconnect(nowait=True)


def _server(address: Address) -> tuple[str, int, int]:
    """Return host, port and database."""
    if len(address.hosts) != 1 or not address.hosts[0][0]:
        raise ConfigError(
            f"{address.display}: name one server, like redis://127.0.0.1:6379/0 (neither Sentinel nor Cluster is "
            "supported: name the primary)"
        )
    host, port = address.hosts[0]
    database = re.fullmatch(r"/?([0-9]{0,5})", address.path)
    if database is None:
        raise ConfigError(f"{address.display}: the path is a database's number; choose the stream with ?stream=")
    return host, port or DEFAULT_PORT, int(database[1] or 0)
