"""``nats://`` - publishes to a JetStream stream; the stream's own acknowledgement means delivered.

Message id and subject travel as ``Nats-Msg-Id``, so a repeat inside the stream's duplicate window is acknowledged
as a duplicate, which counts as delivered. Receivers must not rely on that window: it ends. The message id alone
would not do: a stream compares it over all its subjects, and an event that two destinations take to two of them
would be stored on the first one only.

A batch goes out at once and its acknowledgements are awaited together; of each key one message at a time, because
a stream may refuse one message and take the next.

We reconnect on our own, at the next publish: the client library's reconnection would keep messages in its
buffer and send them after their publish was reported as failed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent, PublishFailure, Retryable
from fencepost.publishers.address import parse_address
from fencepost.publishers.base import Delivery, own_copy
from fencepost.publishers.batching import Batch, BatchPublisher, in_rounds
from fencepost.publishers.connector import retrieve
from fencepost.publishers.envelope import ENVELOPE_OPTIONS, Envelope
from fencepost.publishers.nats.access import ACCESS_OPTIONS, Access
from fencepost.publishers.nats.link import Link, Request
from fencepost.publishers.nats.subject import Subject

if TYPE_CHECKING:
    from nats.aio.msg import Msg

DEFAULT_TIMEOUT = 8.0
DEFAULT_SUBJECT = "{event_type}"
OPTIONS = ENVELOPE_OPTIONS | ACCESS_OPTIONS | {"timeout", "stream", "subject"}

# Clients take these for a server's own answer when they stand on a message.
STATUS_HEADERS = frozenset({"status", "description"})

# JetStream error codes (server/errors.json of nats-server).
TOO_LARGE_ERRORS = frozenset({10054, 10097})
WRONG_STREAM_ERROR = 10060
MAX_DESCRIPTION_CHARS = 1_000
UNAVAILABLE_ERRORS = frozenset({10002, 10008, 10023, 10028, 10039, 10047, 10076})
"""Out of resources, no leader in the cluster, or JetStream not enabled: no message of any kind is stored."""


class NatsPublisher(BatchPublisher):
    """Publishes to JetStream and waits for the acknowledgement.

    Args:
        url: ``nats://[user:password@|token@]host[:port][,host[:port]…]`` with any of the options ``subject``
            (a template, default ``{event_type}``; see `fencepost.publishers.nats.subject`), ``stream`` (the stream
            that must acknowledge), ``timeout`` (seconds, 8), and those of login, TLS and envelope.

    Raises:
        ConfigError: nats-py is not installed, or the URL cannot work.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import nats.aio.client
            import nats.errors
        except ImportError:
            raise ConfigError("nats destinations need nats-py: pip install 'fencepost[nats]'") from None
        self._nats = nats
        address = parse_address(url, options=OPTIONS)
        if not address.hosts or not all(host for host, _ in address.hosts):
            raise ConfigError(f"{address.display}: name the server, like nats://127.0.0.1:4222")
        if address.path.strip("/"):
            raise ConfigError(f"{address.display}: a NATS URL has no path; choose the subject with ?subject=")
        self._shown = address.display
        self._timeout = address.seconds("timeout", DEFAULT_TIMEOUT)
        self._stream = address.options.get("stream") or None
        self._subject = Subject(address.options.get("subject", DEFAULT_SUBJECT))
        self._envelope = Envelope(address, prefix="ce-")
        self._access = Access(address, self._timeout)
        self._connecting: asyncio.Task[Link] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        """Publish many, and return an outcome for each.

        Outcomes:
            None: the stream acknowledged this very message, also as a duplicate.
            Retryable: no connection, no acknowledgement before the deadline, no stream on the subject, or an
                answer that is not the stream's. The stream may have the message all the same; the message id
                lets it, and the receiver, drop the repeat.
            Permanent: larger than the server or the stream accepts, or a header that cannot be sent.
        """
        batch = Batch(messages, deliveries, self._timeout)
        return await in_rounds(batch, lambda at: self._request(messages[at], deliveries[at]), self._deliver)

    async def close(self) -> None:
        """Close the connection; a publish that still waits for its acknowledgement fails as retryable."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait({connecting})
            if not connecting.cancelled() and connecting.exception() is None:
                self._discard(connecting.result())
        while self._closing:
            await asyncio.wait(self._closing)

    async def _deliver(self, requests: Sequence[Request], deadline: float) -> None:
        """Send requests together, each to its outcome."""
        try:
            link = await self._linked(deadline)
        except Retryable as failure:
            for request in requests:
                request.outcome = own_copy(failure)
            return
        for request in requests:
            request.outcome = _too_large(request, link.client.max_payload)
        going = [request for request in requests if request.outcome is None]
        if not going:
            return
        began, before = time.monotonic(), link.seen()
        answers = await link.ask(going, deadline)
        for request, answer in zip(going, answers, strict=True):
            request.outcome = self._failure(link, request.subject, answer, before)
        self._give_up_if_silent(link, before, time.monotonic() - began)

    def _request(self, message: Message, delivery: Delivery) -> Request:
        outgoing = self._envelope.wrap(message, delivery, also_reserved=STATUS_HEADERS)
        subject = self._subject.of(message)
        headers = {**outgoing.headers, "Nats-Msg-Id": f"{message.message_id_text}:{subject}"}
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        return Request(subject, headers, outgoing.payload)

    async def _linked(self, deadline: float) -> Link:
        """Return the connection, making it where there is none; concurrent publishes share the attempt."""
        began = time.monotonic()
        task = self._connecting
        if task is None or (task.done() and not _is_usable(task)):
            task = self._connecting = asyncio.create_task(self._connect())
            task.add_done_callback(retrieve)
        # Not awaited directly: one publish that gives up must not cancel the attempt for the others.
        await asyncio.wait({task}, timeout=max(0.0, deadline - began))
        if not task.done():
            # A short rest of a lease says nothing about the server.
            waited_long = deadline - began >= self._timeout / 2
            raise Retryable(f"{self._shown}: not connected before the deadline", unavailable=waited_long)
        if task.cancelled():
            raise Retryable(f"{self._shown}: the publisher was closed")
        failure = task.exception()
        if isinstance(failure, Retryable):
            raise own_copy(failure)
        return task.result()

    async def _connect(self) -> Link:
        options = self._access.connect_options()
        link = Link(self._access.new_client())

        async def on_error(error: Exception) -> None:
            # Also keeps nats-py from logging a traceback for each failed attempt.
            link.errors += 1
            link.last_error = self._access.redacted(_text(error))

        async def on_closed() -> None:
            link.lose()

        try:
            async with asyncio.timeout(self._timeout):
                await link.client.connect(error_cb=on_error, closed_cb=on_closed, **options)
                if not self._access.is_as_asked(link.client):
                    raise ConfigError("this version of nats-py does not let fencepost insist on TLS")
                await link.listen()
        except Exception as error:  # noqa: BLE001 - nats-py, its transports and nkeys raise what they like
            self._discard(link)
            said = link.last_error or self._access.redacted(_text(error))
            raise Retryable(f"{self._shown}: cannot connect: {said}", unavailable=True) from None
        except BaseException:
            self._discard(link)
            raise
        return link

    def _failure(
        self, link: Link, subject: str, answer: Msg | Exception | None, before: tuple[int, int]
    ) -> PublishFailure | None:
        """Return why an answer is no acknowledgement, None where it is one."""
        if answer is None:
            said = f" (the server said: {link.last_error})" if link.errors > before[1] else ""
            if link.is_gone:
                return Retryable(f"{self._shown}: connection lost before the acknowledgement{said}")
            return Retryable(
                f"{self._shown}: no acknowledgement for subject {subject!r} before the deadline{said}"
            )
        if isinstance(answer, Exception):
            if isinstance(answer, self._nats.errors.MaxPayloadError):
                return Permanent("the payload is larger than the NATS server accepts")
            return Retryable(self._access.redacted(f"{self._shown}: {_text(answer)}"))
        if answer.headers is not None and answer.headers.get("Status") == "503":
            return Retryable(
                f"{self._shown}: no JetStream stream listens on subject {subject!r}: "
                "create the stream, or correct ?subject="
            )
        return self._refusal(answer.data, subject)

    def _refusal(self, data: bytes, subject: str) -> PublishFailure | None:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            return self._not_a_stream(subject)
        error = answer.get("error")
        if isinstance(error, dict):
            given, description = error.get("err_code"), str(error.get("description"))[:MAX_DESCRIPTION_CHARS]
            code = given if isinstance(given, int) else None
            text = f"{self._shown}: JetStream refused subject {subject!r}: {description} ({code})"
            if code in TOO_LARGE_ERRORS:
                return Permanent(text)
            if code == WRONG_STREAM_ERROR:
                return Retryable(f"{text}; ?stream={self._stream} must be the stream that has this subject")
            return Retryable(text, unavailable=code in UNAVAILABLE_ERRORS)
        stream, number = answer.get("stream"), answer.get("seq")
        is_one = isinstance(stream, str) and stream and type(number) is int and number > 0
        if not is_one or (self._stream is not None and stream != self._stream):
            return self._not_a_stream(subject)
        return None

    def _not_a_stream(self, subject: str) -> Retryable:
        expected = f"the stream {self._stream!r}" if self._stream is not None else "a stream"
        return Retryable(
            f"{self._shown}: the answer on subject {subject!r} is not an acknowledgement of {expected}"
        )

    def _give_up_if_silent(self, link: Link, before: tuple[int, int], waited: float) -> None:
        """Give the connection up if nothing at all came back on it: a frozen server or a dead path.

        A new connection will tell. One subject without an acknowledgement, or one message with little lease left,
        must not cost the others theirs.
        """
        if not link.is_gone and link.seen() == before and waited >= self._timeout / 2:
            self._discard(link)

    def _discard(self, link: Link) -> None:
        """Close a connection in the background: a publish has no time for a server that does not answer."""
        link.lose()
        task = asyncio.create_task(link.drop())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _too_large(request: Request, most: int) -> Permanent | None:
    """Refuse what is too large for the server: it would cut the connection, and the neighbours with it.

    nats-py compares the payload alone; the server's limit includes the header block.
    """
    size = len(request.payload) + len("NATS/1.0\r\n\r\n")
    size += sum(len(name) + len(value) + len(": \r\n") for name, value in request.headers.items())
    if size <= most:
        return None
    return Permanent(f"payload and headers are {size} bytes; the NATS server accepts {most} (max_payload)")


def _is_usable(task: asyncio.Task[Link]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().usable


def _text(error: BaseException) -> str:
    text = str(error)
    return text if text.startswith("nats:") else f"{type(error).__name__}: {text}".removesuffix(": ")
