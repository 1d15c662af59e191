"""``amqp://`` and ``amqps://`` - publishes to an exchange of RabbitMQ; the broker's confirm means delivered.

Every message is mandatory and persistent: one that no queue takes comes back and is a failure, although the broker
confirms it as well.

A batch goes out at once on one channel and its confirms are awaited together; of each key one message at a time,
because the broker may return or refuse one message and take the next.

We connect on our own, at the next publish: a client that reconnects by itself would send what it kept after its
publish was reported as failed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.address import Address, parse_address
from fencepost.publishers.base import Delivery, own_copy
from fencepost.publishers.batching import Batch, BatchPublisher, in_rounds
from fencepost.publishers.connector import CONNECT_SHARE, Connector, retrieve, until, within
from fencepost.publishers.credentials import LOGIN_OPTIONS, TLS_OPTIONS, Login, redacted, tls_context
from fencepost.publishers.envelope import ENVELOPE_OPTIONS, Envelope
from fencepost.publishers.headers import CONTENT_TYPE, encode_value
from fencepost.publishers.rabbitmq.letter import (
    Again,
    Letter,
    Suspect,
    confirmed,
    place,
    routing_key_for,
    short,
    too_large,
)
from fencepost.publishers.rabbitmq.link import (
    HEARTBEAT_SECONDS,
    Lane,
    RabbitLink,
    Wire,
    logged_in,
    said,
    silence_client,
)
from fencepost.publishers.template import Template

DEFAULT_TIMEOUT = 8.0
DEFAULT_ROUTING_KEY = "{event_type}"
OPTIONS = (
    ENVELOPE_OPTIONS | LOGIN_OPTIONS | TLS_OPTIONS | {"exchange", "routing_key", "max_message_bytes", "timeout"}
)
PORTS = {"amqp": 5672, "amqps": 5671}

MAX_MESSAGE_BYTES = 134_217_728
"""RabbitMQ's own ``max_message_size`` unless it is set otherwise (16 MiB from version 4 on)."""
MOST_MESSAGE_BYTES = 536_870_912
MAX_TURNS = 5
BLOCKED = "the broker blocks publishers (a memory or disk alarm)"

# RabbitMQ itself reads these: more routing keys, who may see the message, delays, where it had been.
OBEYED_HEADERS = frozenset({"bcc", "cc", "x-death", "x-delay", "x-stream-filter-value"})


class RabbitPublisher(BatchPublisher):
    """Publishes with confirms to one exchange.

    Args:
        url: ``amqp[s]://[user:password@]host[:port][,host[:port]…][/vhost]`` with any of the options ``exchange``
            (default: the one without a name, whose routing keys are names of queues), ``routing_key`` (a template,
            default ``{event_type}``; see `routing_key_for`), ``max_message_bytes``, ``timeout`` (seconds, 8), and
            those of login, TLS and envelope.

    Raises:
        ConfigError: aiormq is not installed, or the URL cannot work.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import aiormq.exceptions
            from pamqp.commands import Basic
            from yarl import URL
        except ImportError:
            raise ConfigError("amqp destinations need aiormq: pip install 'fencepost[rabbitmq]'") from None
        self._errors, self._basic, self._url_type = aiormq.exceptions, Basic, URL
        silence_client()
        address = parse_address(url, options=OPTIONS)
        if not address.hosts or not all(host for host, _ in address.hosts):
            raise ConfigError(f"{address.display}: name the broker, like amqp://127.0.0.1:5672")
        self._shown, self._scheme = address.display, address.scheme
        self._hosts = [(host, port or PORTS[address.scheme]) for host, port in address.hosts]
        self._vhost = unquote(address.path[1:]) or "/"
        self._timeout = address.seconds("timeout", DEFAULT_TIMEOUT)
        self._most_bytes = address.count("max_message_bytes", MAX_MESSAGE_BYTES, most=MOST_MESSAGE_BYTES)
        self._exchange = address.options.get("exchange", "")
        try:
            Basic.Publish(exchange=self._exchange)
        except ValueError as error:
            raise ConfigError(f"{address.display}: exchange: {error}") from None
        self._routing_key = Template(address.options.get("routing_key", DEFAULT_ROUTING_KEY), "?routing_key=")
        self._envelope = Envelope(address, prefix="cloudEvents:")
        self._login = Login(address)
        self._by_certificate = "cert" in address.options and not self._login.is_given
        self._tls = _tls(address)
        self._connector = Connector(address.display, self._timeout, self._connect)

    async def open(self) -> None:
        """Nothing is connected yet: the first publish does that."""
        self._connector.open()

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        """Publish many, and return an outcome for each.

        Outcomes:
            None: the broker confirmed this very message, having put it into a queue.
            Retryable: no connection, no confirm before the deadline, no such exchange, no queue for the routing
                key, refused by a queue that is full, or publishers are blocked by an alarm. Where it was sent, a
                queue may have it all the same; the message id lets the receiver drop the repeat.
            Permanent: larger than the broker accepts, or a header that cannot be sent.
        """
        batch = Batch(messages, deliveries, self._timeout)
        return await in_rounds(batch, lambda at: self._letter(messages[at], deliveries[at]), self._deliver)

    async def close(self) -> None:
        """Close the connection; a publish that still waits for its confirm fails as retryable."""
        await self._connector.close()

    def _letter(self, message: Message, delivery: Delivery) -> Letter:
        outgoing = self._envelope.wrap(message, delivery, also_reserved=OBEYED_HEADERS)
        headers: dict[str, Any] = dict(outgoing.headers)
        content_type = short(headers.get(CONTENT_TYPE))
        if content_type is not None:
            del headers[CONTENT_TYPE]
        key = routing_key_for(self._routing_key, message)
        properties = self._basic.Properties(
            content_type=content_type,
            headers=headers,
            delivery_mode=2,
            message_id=message.message_id_text,
            timestamp=message.created_at,
            message_type=short(encode_value(message.event_type)),
            app_id="fencepost",
        )
        return Letter(outgoing.payload, self._exchange, key, properties)

    async def _deliver(self, letters: Sequence[Letter], deadline: float) -> None:
        """Send letters, each to its outcome; what a neighbour took along when it broke the channel goes again."""
        left = list(letters)
        for _ in range(MAX_TURNS):
            if not left:
                return
            try:
                link, lane = await self._lane(deadline)
            except Retryable as failure:
                for letter in left:
                    letter.outcome = own_copy(failure)
                return
            left, suspects = await self._send(link, lane, left, deadline)
            for letter, _reason in suspects:
                await self._deliver_alone(letter, deadline)
        for letter in left:
            letter.outcome = Retryable(f"{self._shown}: the channel was closed again and again")

    async def _deliver_alone(self, letter: Letter, deadline: float) -> None:
        """Send a letter on a channel of its own, so that a refusal is surely about this one."""
        try:
            link, lane = await self._lane(deadline, own=True)
        except Retryable as failure:
            letter.outcome = failure
            return
        again, suspects = await self._send(link, lane, [letter], deadline)
        lane.retire()
        for _letter, reason in suspects:
            letter.outcome = link.failure(f"refused for {place(letter)}: {reason}")
        if again:
            letter.outcome = link.failure("the channel was closed before the confirm")

    async def _lane(self, deadline: float, *, own: bool = False) -> tuple[RabbitLink, Lane]:
        """Return the connection and its shared channel, or a channel for one letter alone."""
        link = await self._connector.get(deadline)
        if link.is_blocked:
            # Channels cannot be opened then either, and what is sent now would arrive besides its repeat.
            waiting = asyncio.ensure_future(link.unblocked())
            await until(deadline, link.gone, waiting)
            waiting.cancel()
            if link.is_blocked:
                raise link.failure(f"not sent: {BLOCKED}", unavailable=True)
        opening, before, started = link.open_lane() if own else link.shared(), link.came_back, time.monotonic()
        if not opening.done():
            await until(deadline, link.gone, opening)
        if not opening.done():
            self._give_up(link, None, before, started)
            raise link.failure("not sent: no channel before the deadline", unavailable=True)
        error = None if opening.cancelled() else opening.exception()
        if opening.cancelled() or error is not None:
            raise link.failure(f"not sent: no channel: {said(error) if error else 'closed'}", unavailable=True)
        return link, opening.result()

    async def _send(
        self, link: RabbitLink, lane: Lane, letters: Sequence[Letter], deadline: float
    ) -> tuple[list[Letter], list[tuple[Letter, str]]]:
        """Send letters together; return those to send again, and those that perhaps broke the channel, and how."""
        before, started = link.came_back, time.monotonic()
        going = [letter for letter in letters if self._fits(letter, link)]
        requests = [asyncio.create_task(confirmed(link, lane, letter)) for letter in going]
        lane.enter()
        try:
            await until(deadline, link.gone, *requests)
        finally:
            in_time, was_gone = [request.done() for request in requests], link.gone.done()
            if not all(in_time):
                self._give_up(link, lane, before, started)
            for request in requests:
                request.add_done_callback(retrieve)
                request.cancel()
            lane.leave()
        again: list[Letter] = []
        suspects: list[tuple[Letter, str]] = []
        for letter, request, is_answered in zip(going, requests, in_time, strict=True):
            if is_answered and not request.cancelled():
                error = request.exception()
            else:
                error = _unanswered(link, letter, is_gone=was_gone)
            if isinstance(error, Again):
                again.append(letter)
            elif isinstance(error, Suspect):
                suspects.append((letter, str(error)))
            elif error is None or isinstance(error, Exception):
                letter.outcome = error
            else:
                raise error
        return again, suspects

    def _give_up(self, link: RabbitLink, lane: Lane | None, before: int, started: float) -> None:
        """Replace the channel that lacks a confirm, and the connection if nothing at all came back on it."""
        if lane is not None:
            lane.retire()
        waited = time.monotonic() - started
        # A frozen broker or a dead path: a new connection will tell. One confirm that is missing, or one message
        # with little lease left, must not cost the others their connection; nor is a blocked one dead.
        if link.came_back == before and waited >= self._timeout / 2 and not link.is_blocked:
            self._connector.discard(link)

    def _fits(self, letter: Letter, link: RabbitLink) -> bool:
        """Tell whether the broker can take it; it would close the channel, or the connection, if not."""
        if len(letter.body) > link.most_bytes:
            letter.outcome = too_large(letter, link.most_bytes)
        elif letter.header_bytes > link.most_header_bytes:
            letter.outcome = Permanent(
                f"the headers are {letter.header_bytes} bytes; "
                f"RabbitMQ accepts {link.most_header_bytes} (frame_max)"
            )
        return letter.outcome is None

    async def _connect(self) -> RabbitLink:
        """Try each broker in its turn, each for its share of the time."""
        user, password = self._login.read()
        secrets = (user, password)
        query = {"heartbeat": str(HEARTBEAT_SECONDS)} | ({"auth": "external"} if self._by_certificate else {})
        failures: list[str] = []
        for host, port in self._hosts:
            url = self._url_type.build(
                scheme=self._scheme, host=host, port=port, user=user, password=password, query=query
            )
            wire = Wire(host, port, self._tls)
            try:
                connection = await within(
                    CONNECT_SHARE * self._timeout / len(self._hosts), logged_in(url, self._vhost, wire), _ignored
                )
            except TimeoutError:
                wire.abort()
                failures.append(f"{host}:{port} did not answer in time")
            except (
                OSError,
                ValueError,
                self._errors.AMQPError,
            ) as error:  # (ValueError: of frames that make no sense)
                failures.append(f"{host}:{port}: {said(error)}")
            else:
                return RabbitLink(self._shown, secrets, connection, wire, self._most_bytes)
        text = redacted("; ".join(failures), secrets)
        raise Retryable(f"{self._shown}: cannot connect: {text}", unavailable=True)


def _tls(address: Address) -> ssl.SSLContext | None:
    if address.scheme == "amqps":
        return tls_context(address)
    given = sorted(TLS_OPTIONS & set(address.options))
    if given:
        raise ConfigError(f"{address.display}: {', '.join(given)} need amqps://")
    return None


def _ignored(_: object) -> None:
    """Do nothing: a wire that was aborted drops what comes too late."""


def _unanswered(link: RabbitLink, letter: Letter, *, is_gone: bool) -> Retryable:
    unsent = "" if letter.is_sent else "not sent: "
    if is_gone:
        return link.failure(f"{unsent}connection lost before the confirm", unavailable=not letter.is_sent)
    if link.is_blocked:
        return link.failure(f"{unsent or 'no confirm before the deadline: '}{BLOCKED}", unavailable=True)
    return link.failure(f"{unsent}no confirm before the deadline for {place(letter)}")
