"""``mqtt://`` and ``mqtts://`` - publishes to an MQTT 5 broker with QoS 1; its acknowledgement means delivered.

The acknowledgement carries a reason: a broker tells so that nobody has subscribed to the topic, and then it keeps
the message for nobody. That is a failure, unless the operator says that it is not (``require_subscriber=off``).

A batch goes out as fast as the broker's Receive Maximum allows and its acknowledgements are awaited together; of
each key one message at a time, because the broker may refuse one message and take the next.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import ssl
import time
from collections.abc import Sequence
from urllib.parse import quote

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Retryable
from fencepost.publishers.address import Address, parse_address
from fencepost.publishers.base import Delivery, own_copy
from fencepost.publishers.batching import Batch, BatchPublisher, in_rounds
from fencepost.publishers.connector import CONNECT_SHARE, Connector, retrieve, until
from fencepost.publishers.credentials import LOGIN_OPTIONS, TLS_OPTIONS, Login, redacted, tls_context
from fencepost.publishers.envelope import ENVELOPE_OPTIONS, Envelope
from fencepost.publishers.headers import CONTENT_TYPE
from fencepost.publishers.mqtt.link import NO_SUBSCRIBERS, Again, Letter, MqttLink, Suspect
from fencepost.publishers.mqtt.packets import Answer
from fencepost.publishers.template import Template, shortened

DEFAULT_TIMEOUT = 8.0
DEFAULT_TOPIC = "{event_type}"
DEFAULT_CLIENT_ID = "fencepost"
OPTIONS = ENVELOPE_OPTIONS | LOGIN_OPTIONS | TLS_OPTIONS | {"topic", "require_subscriber", "client_id", "timeout"}
PORTS = {"mqtt": 1883, "mqtts": 8883}

MAX_TOPIC_BYTES = 255
"""MQTT allows 65,535; brokers allow less (256 bytes is common), and so many levels that these are enough."""

MAX_WARNINGS = 100
MAX_TURNS = 5

# Printable ASCII but for '+', '#' and '/', which structure topics, '$', which begins a broker's own, and '%'.
_SAFE = "!\"&'()*,-.:;<=>?@[\\]^_`{|}~"

_log = logging.getLogger(__name__)


class MqttPublisher(BatchPublisher):
    """Publishes with QoS 1.

    Args:
        url: ``mqtt[s]://[user:password@]host[:port][,host[:port]…]`` with any of the options ``topic`` (a
            template, default ``{event_type}``; see `topic_for`), ``require_subscriber`` (``on``, or ``off`` to
            count what nobody has subscribed to as delivered), ``client_id`` (how the client identifier begins),
            ``timeout`` (seconds, 8), and those of login, TLS and envelope.

    Raises:
        ConfigError: mqtt5 is not installed, or the URL cannot work.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import mqtt5  # noqa: F401 - used where packets are made and read
        except ImportError:
            raise ConfigError("mqtt destinations need mqtt5: pip install 'fencepost[mqtt]'") from None
        address = parse_address(url, options=OPTIONS)
        if not address.hosts or not all(host for host, _ in address.hosts):
            raise ConfigError(f"{address.display}: name the broker, like mqtt://127.0.0.1:1883")
        if address.path.strip("/"):
            raise ConfigError(f"{address.display}: an MQTT URL has no path; choose the topic with ?topic=")
        self._shown = address.display
        self._hosts = [(host, port or PORTS[address.scheme]) for host, port in address.hosts]
        self._timeout = address.seconds("timeout", DEFAULT_TIMEOUT)
        self._topic = _template(address)
        self._needs_subscriber = _is_on(address, "require_subscriber")
        self._client_id = address.options.get("client_id", DEFAULT_CLIENT_ID)
        if not re.fullmatch(r"[!-~]{1,100}", self._client_id):
            raise ConfigError(f"{address.display}: client_id must be 1 to 100 printable characters")
        self._envelope = Envelope(address, prefix="")
        self._login = Login(address)
        self._tls = _tls(address)
        self._connector = Connector(address.display, self._timeout, self._connect)
        self._unheard: set[str] = set()
        self._single = asyncio.Lock()
        self._single_link: MqttLink | None = None
        self._suspected = 0

    async def open(self) -> None:
        """Nothing is connected yet: the first publish does that."""
        self._connector.open()

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        """Publish many, and return an outcome for each.

        Outcomes:
            None: the broker acknowledged this very message.
            Retryable: no connection, no acknowledgement before the deadline, nobody has subscribed to the topic,
                or the broker refused it. Where it was sent, subscribers may have it all the same; the message id
                lets them drop the repeat.
            Permanent: larger than the broker accepts, or a header that cannot be sent.
        """
        batch = Batch(messages, deliveries, self._timeout)
        return await in_rounds(batch, lambda at: self._letter(messages[at], deliveries[at]), self._deliver)

    async def close(self) -> None:
        """Close the connection; a publish that still waits for its acknowledgement fails as retryable."""
        if self._single_link is not None:
            self._connector.discard(self._single_link)
        await self._connector.close()

    def _letter(self, message: Message, delivery: Delivery) -> Letter:
        outgoing = self._envelope.wrap(message, delivery)
        headers = dict(outgoing.headers)
        content_type = headers.pop(CONTENT_TYPE, None)
        return Letter(topic_for(self._topic, message), outgoing.payload, content_type, list(headers.items()))

    async def _deliver(self, letters: Sequence[Letter], deadline: float) -> None:
        """Send letters, each to its outcome; what a neighbour took along with the connection goes again."""
        left = list(letters)
        for _ in range(MAX_TURNS):
            if not left:
                return
            try:
                link = await self._connector.get(deadline)
            except Retryable as failure:
                for letter in left:
                    letter.outcome = own_copy(failure)
                return
            left, suspects = await self._send(link, left, deadline)
            await self._deliver_singly(suspects, deadline)
        for letter in left:
            letter.outcome = Retryable(f"{self._shown}: not sent: the broker ends one connection after another")

    async def _deliver_singly(self, letters: Sequence[Letter], deadline: float) -> None:
        """Send letters with no other in flight, so that what the broker does is surely about this one."""
        if not letters:
            return
        self._suspected += 1
        try:
            for letter in letters:
                lost, letter.outcome = letter.outcome, None
                try:
                    async with asyncio.timeout(deadline - time.monotonic()), self._single:
                        await self._deliver_single(letter, deadline)
                except (TimeoutError, Retryable):
                    letter.outcome = lost  # nothing more is known
        finally:
            self._suspected -= 1
            if not self._suspected and self._single_link is not None:
                self._connector.end(self._single_link)
                self._single_link = None

    async def _deliver_single(self, letter: Letter, deadline: float) -> None:
        self._connector.check_open()
        link = self._single_link
        if link is None or not link.usable:
            link = self._single_link = await self._connect()
        again, _ = await self._send(link, [letter], deadline)
        if again:
            letter.outcome = link.failure("connection lost before the message was sent again")

    async def _send(
        self, link: MqttLink, letters: Sequence[Letter], deadline: float
    ) -> tuple[list[Letter], list[Letter]]:
        """Send letters together; return those to send again, and those that perhaps ended the connection."""
        before, started = link.came_back, time.monotonic()
        requests = [asyncio.create_task(link.acknowledged(letter)) for letter in letters]
        try:
            await until(deadline, link.gone, *requests)
            if requests and link.gone.done():
                await asyncio.wait(requests, timeout=0.1)  # they end by themselves, and know why
        finally:
            in_time = [request.done() for request in requests]
            for request in requests:
                request.add_done_callback(retrieve)
                request.cancel()
        # A frozen broker or a dead path: a new connection will tell. One acknowledgement that is missing, or one
        # message with little lease left, must not cost the others their connection.
        if not all(in_time) and link.came_back == before and time.monotonic() - started >= self._timeout / 2:
            self._connector.discard(link)
        again: list[Letter] = []
        suspects: list[Letter] = []
        for letter, request, is_answered in zip(letters, requests, in_time, strict=True):
            if not is_answered:
                letter.outcome = _unanswered(link, letter)
            elif (error := request.exception()) is None:
                letter.outcome = self._judged(link, letter, request.result())
            elif isinstance(error, Again):
                again.append(letter)
            elif isinstance(error, Suspect):
                suspects.append(letter)
                letter.outcome = link.failure(str(error))
            elif isinstance(error, Exception):
                letter.outcome = error
            else:
                raise error
        return again, suspects

    def _judged(self, link: MqttLink, letter: Letter, answer: Answer) -> Exception | None:
        """Return what the broker's answer means for a message; None is delivered."""
        if answer.code >= 0x80:
            return link.refusal(answer, letter)
        if answer.code != NO_SUBSCRIBERS:
            return None
        text = f"nobody has subscribed to topic {letter.topic!r}, so the broker keeps the message for nobody"
        if self._needs_subscriber:
            return link.failure(f"{text}: subscribe, correct ?topic=, or set ?require_subscriber=off")
        if letter.topic not in self._unheard and len(self._unheard) < MAX_WARNINGS:
            self._unheard.add(letter.topic)
            _log.warning("%s: %s (require_subscriber=off; said once for a topic)", self._shown, text)
        return None

    async def _connect(self) -> MqttLink:
        """Try each broker in its turn, each for its share of the time."""
        user, password = self._login.read()
        client_id = self._client_id + secrets.token_hex(6)
        failures: list[str] = []
        for host, port in self._hosts:
            link = MqttLink(self._shown, (user, password))
            try:
                async with asyncio.timeout(CONNECT_SHARE * self._timeout / len(self._hosts)):
                    await self._dial(link, host, port)
                    await link.log_in(client_id, user, password)
            except TimeoutError:
                failures.append(f"{host}:{port} did not answer in time")
            except OSError as error:
                failures.append(f"{host}:{port}: {error.args[-1] if error.args else type(error).__name__}")
            else:
                return link
            finally:
                if not link.is_welcome:
                    link.abort()
        text = redacted("; ".join(failures), (user, password))
        raise Retryable(f"{self._shown}: cannot connect: {text}", unavailable=True)

    async def _dial(self, link: MqttLink, host: str, port: int) -> None:
        await asyncio.get_running_loop().create_connection(lambda: link, host, port, ssl=self._tls)


def topic_for(template: Template, message: Message) -> str:
    """Return the topic of a message; always one that MQTT allows and that stays what it seems.

    The dots of ``{event_type}`` separate levels (they become ``/``); the other fields are one level each. In
    fields, blanks, ``+``, ``#``, ``/``, ``$``, ``%`` and all but printable ASCII is percent-encoded as UTF-8,
    and an empty level becomes ``_``. A topic of more than 255 bytes is cut to 238 and ends in ``-`` and 16
    hexadecimal digits of the SHA-256 of the whole.
    """
    return shortened(template.render(message, _field), MAX_TOPIC_BYTES)


def _field(name: str, text: str) -> str:
    levels = text.split(".") if name == "event_type" else [text]
    return "/".join(quote(level, safe=_SAFE, errors="surrogatepass") or "_" for level in levels)


def _template(address: Address) -> Template:
    template = Template(address.options.get("topic", DEFAULT_TOPIC), "?topic=")
    if any(re.search(r"[^!-~]|[+#]", literal) for literal in template.literals):
        raise ConfigError(f"{address.display}: topic cannot hold blanks, '+', '#' or anything but ASCII")
    if not all(template.filled("x").split("/")):
        raise ConfigError(f"{address.display}: topic cannot have an empty level: no '/' at an end, none twice")
    return template


def _is_on(address: Address, option: str) -> bool:
    text = address.options.get(option, "on")
    if text not in ("on", "off"):
        raise ConfigError(f"{address.display}: {option} must be on or off")
    return text == "on"


def _tls(address: Address) -> ssl.SSLContext | None:
    if address.scheme == "mqtts":
        return tls_context(address)
    given = sorted(TLS_OPTIONS & set(address.options))
    if given:
        raise ConfigError(f"{address.display}: {', '.join(given)} need mqtts://")
    return None


def _unanswered(link: MqttLink, letter: Letter) -> Retryable:
    if not letter.is_sent:
        return link.failure("not sent: the broker had not acknowledged enough before the deadline")
    return link.failure(f"no acknowledgement before the deadline for topic {letter.topic!r}")
