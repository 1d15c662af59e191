"""``nats://`` - publishes to a JetStream stream; the stream's own acknowledgement means delivered.

The message id travels as ``Nats-Msg-Id``, so a repeat inside the stream's duplicate window is acknowledged
as a duplicate, which counts as delivered. Receivers must not rely on that window: it ends.

We reconnect on our own, at the next publish: the client library's reconnection would keep messages in its
buffer and send them after their publish was reported as failed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.address import Address, parse_address
from fencepost.publishers.base import Delivery, DestinationPublisher, publish_budget
from fencepost.publishers.headers import outgoing_headers

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

DEFAULT_TIMEOUT = 8.0
DEFAULT_SUBJECT = "{event_type}"
OPTIONS = frozenset({"timeout", "stream", "subject"})

MAX_SUBJECT_CHARS = 255
"""Far below the server's control line limit of 4096 bytes, past which it would cut the connection."""
MAX_TEMPLATE_CHARS = 128
CLOSE_SECONDS = 1.0

# Clients take these for a server's own answer when they stand on a message.
STATUS_HEADERS = frozenset({"status", "description"})

# JetStream error codes (server/errors.json of nats-server) that say the message itself is too large.
TOO_LARGE_ERRORS = frozenset({10054, 10097})
WRONG_STREAM_ERROR = 10060

_FIELDS: Mapping[str, Callable[[Message], str | None]] = {
    "event_type": lambda message: message.event_type,
    "queue": lambda message: message.queue,
    "aggregate_type": lambda message: message.aggregate_type,
    "aggregate_id": lambda message: message.aggregate_id,
    "key": lambda message: message.ordering_key if message.ordering_key is not None else message.aggregate_id,
}
_UNSAFE = re.compile(r"[^!-~]|[*>%$]")


@dataclass(slots=True, eq=False)
class _Link:
    """One connection and what is known about it."""

    client: Client
    stream: JetStreamContext
    gone: asyncio.Future[None]
    """Done as soon as the connection is closed, by whichever side."""
    errors: int = 0
    """How many errors the client reported apart from any call, such as a missing permission."""
    last_error: str = ""

    @property
    def usable(self) -> bool:
        return not self.gone.done() and self.client.is_connected

    def seen(self) -> tuple[int, int]:
        """Return how many messages and how many errors came back so far."""
        return int(self.client.stats["in_msgs"]), self.errors


class NatsPublisher(DestinationPublisher):
    """Publishes to JetStream and waits for the acknowledgement.

    Args:
        url: ``nats://[user:password@|token@]host[:port][,host[:port]…]`` with any of the options ``subject``
            (a template, default ``{event_type}``; see `subject_for`), ``stream`` (the stream that must
            acknowledge) and ``timeout`` (seconds, 8).

    Raises:
        ConfigError: nats-py is not installed, or the URL cannot work.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import nats.aio.client
            import nats.errors
            import nats.js.errors
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
        self._subject = address.options.get("subject", DEFAULT_SUBJECT)
        check_template(self._subject)
        self._connect_options = _connect_options(address, self._timeout)
        self._connecting: asyncio.Task[_Link] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def publish(self, message: Message, delivery: Delivery) -> None:
        """Publish and return once the stream acknowledged this very message, also as a duplicate.

        Raises:
            Retryable: no connection, no acknowledgement before the deadline, no stream on the subject, or an
                answer that is not the stream's. The stream may have the message all the same; the message id
                lets it, and the receiver, drop the repeat.
            Permanent: larger than the server or the stream accepts, or a header that cannot be sent.
        """
        subject = subject_for(self._subject, message)
        headers = self._headers(message, delivery)
        deadline = time.monotonic() + publish_budget(delivery, self._timeout)
        link = await self._linked(deadline)
        _check_size(message.payload, headers, link.client.max_payload)
        await self._acknowledged(link, subject, headers, message.payload, deadline)

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

    def _headers(self, message: Message, delivery: Delivery) -> dict[str, str]:
        headers = outgoing_headers(message, delivery, also_reserved=STATUS_HEADERS)
        headers["Nats-Msg-Id"] = str(message.message_id)
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        return headers

    async def _linked(self, deadline: float) -> _Link:
        """Return the connection, making it where there is none; concurrent publishes share the attempt."""
        task = self._connecting
        if task is None or (task.done() and not _is_usable(task)):
            task = self._connecting = asyncio.create_task(self._connect())
            task.add_done_callback(_retrieve)
        # Not awaited directly: one publish that gives up must not cancel the attempt for the others.
        await asyncio.wait({task}, timeout=max(0.0, deadline - time.monotonic()))
        if not task.done():
            raise Retryable(f"{self._shown}: not connected before the deadline")
        if task.cancelled():
            raise Retryable(f"{self._shown}: the publisher was closed")
        failure = task.exception()
        if isinstance(failure, Retryable):
            raise Retryable(str(failure))  # each waiter its own, or their tracebacks would pile up in one
        return task.result()

    async def _connect(self) -> _Link:
        client = self._nats.aio.client.Client()
        link = _Link(client, client.jetstream(), asyncio.get_running_loop().create_future())

        async def on_error(error: Exception) -> None:
            # Also keeps nats-py from logging a traceback for each failed attempt.
            link.errors += 1
            link.last_error = _text(error)

        async def on_closed() -> None:
            if not link.gone.done():
                link.gone.set_result(None)

        try:
            async with asyncio.timeout(self._timeout):
                await client.connect(error_cb=on_error, closed_cb=on_closed, **self._connect_options)
        except BaseException as error:
            self._discard(link)
            if isinstance(error, (TimeoutError, OSError, self._nats.errors.Error)):
                raise Retryable(f"{self._shown}: cannot connect: {link.last_error or _text(error)}") from None
            raise
        return link

    async def _acknowledged(
        self, link: _Link, subject: str, headers: dict[str, str], payload: bytes, deadline: float
    ) -> None:
        left = max(0.0, deadline - time.monotonic())
        before = link.seen()
        # A task of its own, because nats-py swallows a cancellation while it flushes: we can leave it behind.
        request = asyncio.create_task(link.stream.publish(subject, payload, timeout=left, headers=headers))
        request.add_done_callback(_retrieve)
        try:
            either: set[asyncio.Future[Any]] = {request, link.gone}
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise self._unanswered(link, subject, before, left)
            ack = request.result()
        except TimeoutError:
            raise self._unanswered(link, subject, before, left) from None
        except (self._nats.errors.Error, OSError) as error:
            raise self._classified(error, subject) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self._not_a_stream(subject) from None
        finally:
            request.cancel()
        if not ack.stream or (self._stream is not None and ack.stream != self._stream):
            raise self._not_a_stream(subject)

    def _unanswered(self, link: _Link, subject: str, before: tuple[int, int], waited: float) -> Retryable:
        """Say why there is no acknowledgement, and give the connection up if nothing at all came back on it."""
        said = f" (the server said: {link.last_error})" if link.errors > before[1] else ""
        if link.gone.done():
            return Retryable(f"{self._shown}: connection lost before the acknowledgement{said}")
        if link.seen() == before and waited >= self._timeout / 2:
            # A frozen server or a dead path: a new connection will tell. One subject without an
            # acknowledgement, or one message with little lease left, must not cost the others theirs.
            self._discard(link)
        return Retryable(f"{self._shown}: no acknowledgement for subject {subject!r} before the deadline{said}")

    def _classified(self, error: Exception, subject: str) -> Permanent | Retryable:
        errors, stream_errors = self._nats.errors, self._nats.js.errors
        if isinstance(error, errors.MaxPayloadError):
            return Permanent("the payload is larger than the NATS server accepts")
        if isinstance(error, (errors.NoRespondersError, stream_errors.NoStreamResponseError)):
            return Retryable(
                f"{self._shown}: no JetStream stream listens on subject {subject!r}: "
                "create the stream, or correct ?subject="
            )
        if isinstance(error, stream_errors.APIError):
            return self._refused(error, subject)
        return Retryable(f"{self._shown}: {_text(error)}")

    def _refused(self, error: Any, subject: str) -> Permanent | Retryable:
        text = f"{self._shown}: JetStream refused subject {subject!r}: {error.description} ({error.err_code})"
        if error.err_code in TOO_LARGE_ERRORS:
            return Permanent(text)
        if error.err_code == WRONG_STREAM_ERROR:
            return Retryable(f"{text}; ?stream={self._stream} must be the stream that has this subject")
        return Retryable(text)

    def _not_a_stream(self, subject: str) -> Retryable:
        expected = f"the stream {self._stream!r}" if self._stream is not None else "a stream"
        return Retryable(
            f"{self._shown}: the answer on subject {subject!r} is not an acknowledgement of {expected}"
        )

    def _discard(self, link: _Link) -> None:
        """Close a connection in the background: a publish has no time for a server that does not answer."""
        if not link.gone.done():
            link.gone.set_result(None)
        task = asyncio.create_task(_close(link.client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def check_template(template: str) -> None:
    """Check a subject template once, at configuration.

    Raises:
        ConfigError: unknown field, wildcard, blank, empty token, or too long.
    """
    if len(template) > MAX_TEMPLATE_CHARS:
        raise ConfigError(f"?subject= is longer than {MAX_TEMPLATE_CHARS} characters")
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"?subject={template!r}: {error}") from None
    sample = ""
    for literal, name, spec, conversion in parts:
        if re.search(r"[^!-~]|[*>{}]", literal):
            raise ConfigError(f"?subject={template!r}: the text between fields cannot hold blanks, '*' or '>'")
        if name is not None and (name not in _FIELDS or spec or conversion):
            raise ConfigError(f"?subject={template!r}: fields are {', '.join(f'{{{f}}}' for f in _FIELDS)}")
        sample += literal + ("x" if name is not None else "")
    if not all(sample.split(".")):
        raise ConfigError(f"?subject={template!r}: a subject cannot be empty, nor start, end or go on with '.'")


def subject_for(template: str, message: Message) -> str:
    """Return the subject for a message; always one that a NATS server accepts.

    ``{event_type}`` and the operator's own text may have several tokens, separated by dots; ``{queue}``,
    ``{aggregate_type}``, ``{aggregate_id}`` and ``{key}`` are one token each, dots encoded. In the fields,
    blanks, ``*``, ``>``, ``$``, ``%`` and everything but printable ASCII is percent-encoded as UTF-8 (``$``
    begins the server's own subjects), and an empty token becomes ``_``. A subject longer than 255 characters is
    cut to 238 and ends in ``-`` and 16 hexadecimal digits of the SHA-256 of the whole.
    """
    subject = "".join(
        literal + (_field(name, message) if name is not None else "")
        for literal, name, _, _ in Formatter().parse(template)
    )
    if subject.startswith("_INBOX"):
        subject = "%5F" + subject[1:]  # where the answers to other clients' requests arrive
    if len(subject) <= MAX_SUBJECT_CHARS:
        return subject
    digest = hashlib.sha256(subject.encode("ascii")).hexdigest()[:16]
    return f"{subject[: MAX_SUBJECT_CHARS - 17]}-{digest}"


def _field(name: str, message: Message) -> str:
    text = _FIELDS[name](message) or ""
    tokens = text.split(".") if name == "event_type" else [text]
    return ".".join(_token(token) for token in tokens)


def _token(text: str) -> str:
    return _UNSAFE.sub(_percent, text).replace(".", "%2E") or "_"


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _connect_options(address: Address, timeout: float) -> dict[str, Any]:
    """Return the arguments of nats-py's ``connect``. Secrets go in as arguments, never inside a server URL."""
    options: dict[str, Any] = {
        "servers": [_server(host, port) for host, port in address.hosts],
        "name": "fencepost",
        "allow_reconnect": False,
        # 0 would mean "for ever" to nats-py's first connection. With 1 it dials each server twice at most.
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": timeout / len(address.hosts),
    }
    if address.password is not None:
        options |= {"user": address.username, "password": address.password}
    elif address.username is not None:
        options["token"] = address.username
    return options


def _server(host: str, port: int | None) -> str:
    return f"nats://{f'[{host}]' if ':' in host else host}:{port or 4222}"


def _check_size(payload: bytes, headers: Mapping[str, str], most: int) -> None:
    """Refuse what is too large for the server: it would cut the connection, and the neighbours with it.

    nats-py compares the payload alone; the server's limit includes the header block.
    """
    block = len("NATS/1.0\r\n\r\n") + sum(
        len(name) + len(value) + len(": \r\n") for name, value in headers.items()
    )
    if len(payload) + block > most:
        raise Permanent(
            f"payload and headers are {len(payload) + block} bytes; the NATS server accepts {most} (max_payload)"
        )


async def _close(client: Client) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
    except Exception:  # noqa: BLE001, S110 - the connection is given up either way
        pass
    finally:
        # nats-py has no way to drop a connection whose peer no longer reads: its close flushes first.
        writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
        if writer is not None:
            writer.transport.abort()


def _is_usable(task: asyncio.Task[_Link]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().usable


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at a result that perhaps nobody waits for any more, so that asyncio does not complain about it."""
    if not task.cancelled():
        task.exception()


def _text(error: BaseException) -> str:
    text = str(error)
    return text if text.startswith("nats:") else f"{type(error).__name__}: {text}".removesuffix(": ")
