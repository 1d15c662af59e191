"""One librdkafka producer, the thread that serves its delivery reports, and what was handed to it.

A report is made in the thread, and counted on the event loop. The loop is woken once for all reports that came
together, however many: at 10,000 messages a second that is some hundred times.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fencepost.errors import ConfigError
from fencepost.publishers.credentials import redacted
from fencepost.publishers.kafka.failures import ALL_DOWN, LOGIN_REFUSED, OUT_OF_STEP, describe

POLL_SECONDS = 0.1
"""How long the thread may sleep where nothing is reported; purged messages wake it at once."""
END_SECONDS = 1.0
"""How long a producer that was given up may take to report what was purged."""
QUIET_SECONDS = 60.0
"""A connection that fails is tried again ten times a second, and librdkafka logs each time."""

KEY_SECONDS = 600.0
"""How long a delivery shows that the broker knows the producer; it forgets one after a day without messages."""
MAX_KEYS = 10_000

# Else a client that has lost its only connection forgets which brokers there are, and takes two seconds to learn
# it again. Where they are really gone, publishes time out, and a new client asks the brokers of the URL.
REMEMBER_BROKERS = {"metadata.recovery.strategy": "none"}

logger = logging.getLogger("fencepost.publishers.kafka")


class ClientLog:
    """Takes librdkafka's log: no secrets, and warnings of one kind at most once a minute."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self.secrets: tuple[str | None, ...] = ()

    def log(self, level: int, template: str, *parts: object) -> None:
        """Log one line; librdkafka's first part is what kind it is, such as FAIL."""
        kind, now = str(parts[0]) if parts else template, time.monotonic()
        if level >= logging.INFO:
            if now < self._said.get(kind, 0.0) or kind == "CONFWARN":
                level = logging.DEBUG
            else:
                self._said[kind] = now + QUIET_SECONDS
        if logger.isEnabledFor(level):
            logger.log(level, "librdkafka: %s", self.clean(template % parts if parts else template))

    def refused(self, shown: str) -> None:
        """Tell, at most once a minute, that a broker refused a whole request."""
        template = "%s refused a request of several messages; they are sent again one by one (rdkafka.batch.size "
        self.log(logging.WARNING, template + "above the topic's max.message.bytes?)", shown)

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        return redacted(text, self.secrets)


@dataclass(frozen=True, slots=True)
class Record:
    """A message as Kafka has it."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, str | bytes | None]]


@dataclass(slots=True, eq=False)
class Shipment:
    """Messages handed over together, each under its place, and what became of them."""

    done: asyncio.Future[None]
    """Done when everything that was handed over is reported."""
    handed_over: list[int] = field(default_factory=list)
    is_complete: bool = False
    """Nothing more will be handed over."""
    reports: dict[int, KafkaError | None] = field(default_factory=dict)

    def report(self, place: int, error: KafkaError | None) -> None:
        """Note what became of one message."""
        self.reports[place] = error
        self.check()

    def check(self) -> None:
        """End the wait where nothing is left to wait for."""
        if self.is_complete and len(self.reports) == len(self.handed_over) and not self.done.done():
            self.done.set_result(None)


class Client:
    """A producer in use until something ends it; then a new one is made.

    Args:
        config: of librdkafka.
        log: where its log goes.
        is_strict: the first failure ends it, before anything behind it can be sent.

    Raises:
        KafkaException: librdkafka does not take the configuration.
    """

    def __init__(self, config: dict[str, object], log: ClientLog, *, is_strict: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._log, self.is_strict = log, is_strict
        self._producer: Producer | None = Producer(
            {**_where_known(REMEMBER_BROKERS), **config, "error_cb": self._on_error}, logger=log
        )
        self._reports: deque[tuple[Shipment, int, KafkaError | None]] = deque()
        self._is_woken = False
        self._moved = asyncio.Event()
        self.ended = self._loop.create_future()
        """Done when its thread is at its end."""
        self.waiting = 0
        """How many messages have no report yet."""
        self.end_reason = ""
        """Why it is not to be used any more; empty while it is."""
        self.trouble = ""
        """Why no broker can be reached, as far as is known; empty once one acknowledged something."""
        self._last_error = ""
        self._delivered: dict[tuple[str, bytes | None], float] = {}
        threading.Thread(target=self._serve, name="fencepost-kafka", daemon=True).start()

    def shipment(self) -> Shipment:
        """Return a new shipment."""
        return Shipment(self._loop.create_future())

    async def hand_over(self, shipment: Shipment, place: int, record: Record, deadline: float) -> None:
        """Hand a message to librdkafka, waiting while its buffer is full.

        Raises:
            KafkaException: it does not take this message.
            BufferError: there was no room before the deadline, or the producer ended meanwhile.
        """
        while (producer := self._producer) is not None and not self.end_reason:
            try:
                producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    on_delivery=partial(self._reported, shipment, place),
                    headers=record.headers,
                )
            except BufferError:
                if not await self._something_reported(deadline):
                    raise BufferError("the client's buffer is full") from None
            else:
                shipment.handed_over.append(place)
                self.waiting += 1
                return
        raise BufferError(self.end_reason)

    async def reported(self, shipment: Shipment, deadline: float) -> bool:
        """Wait for the reports of a shipment; return whether all of them are there by the deadline."""
        shipment.is_complete = True
        shipment.check()
        if not shipment.done.done():
            await asyncio.wait({shipment.done}, timeout=max(0.0, deadline - time.monotonic()))
        return shipment.done.done()

    def note_delivered(self, record: Record) -> None:
        """Note that a message of this topic and key was delivered: its partition's leader knows this producer."""
        if self.is_strict:
            if len(self._delivered) >= MAX_KEYS:
                self._delivered.clear()
            self._delivered[record.topic, record.key] = time.monotonic() + KEY_SECONDS

    def has_delivered(self, record: Record) -> bool:
        """Tell whether this client, while it is in use, delivered one of this topic and key not long ago."""
        until = self._delivered.get((record.topic, record.key), 0.0)
        return not self.end_reason and time.monotonic() < until

    def give_up(self, reason: str) -> None:
        """Send nothing more: what waits, and what is in flight, is reported as purged. Any thread may call it."""
        producer = self._producer
        if producer is not None and not self.end_reason:
            self.end_reason = reason
            producer.purge(blocking=False)

    async def idle(self, deadline: float) -> None:
        """Wait until everything that was handed over is reported, at most until the deadline."""
        while self.waiting and not self.end_reason and await self._something_reported(deadline):
            pass

    async def _something_reported(self, deadline: float) -> bool:
        """Wait for the next reports, which make room in the buffer; return whether there were any."""
        self._moved.clear()
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    # In the thread.

    def _serve(self) -> None:
        producer = self._producer
        assert producer is not None  # noqa: S101 - only the end of this thread takes it away
        while not self.end_reason:
            self._poll(producer, POLL_SECONDS)
        producer.purge(blocking=False)  # what was handed over while it was given up
        ends = time.monotonic() + END_SECONDS
        while len(producer) and time.monotonic() < ends:
            self._poll(producer, POLL_SECONDS / 2)
        self._producer = None
        self._on_loop(self._end)
        del producer  # waits for its own threads, one of which may be looking up a name: not on the event loop

    def _poll(self, producer: Producer, seconds: float) -> None:
        try:
            producer.poll(seconds)
        except KafkaException as failure:
            # The client raises here what is fatal: this producer will never send again.
            self.give_up(self._log.clean(describe(failure.args[0])))
        except Exception:
            # Nothing may end this thread before its time: nobody would hear of a delivery again.
            logger.exception("unexpected failure while delivery reports were served")
        if self._reports and not self._is_woken:
            self._is_woken = True
            self._on_loop(self._take)

    def _reported(self, shipment: Shipment, place: int, error: KafkaError | None, _: Message) -> None:
        self._reports.append((shipment, place, error))
        if error is not None and (self.is_strict or error.fatal() or error.code() in OUT_OF_STEP):
            self.give_up(f"a message failed: {self._log.clean(describe(error))}")

    def _on_error(self, error: KafkaError) -> None:
        text = self._log.clean(describe(error))
        if error.code() in LOGIN_REFUSED:
            self.trouble = self._last_error = text
            self.give_up(text)  # a new one reads the login again, which may have changed
        elif error.code() in ALL_DOWN:
            self.trouble = self._last_error or text
        else:
            self._last_error = text

    def _on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            self.give_up("the event loop was closed")  # and with it everyone who could be told

    # On the event loop.

    def _take(self) -> None:
        """Hand out all reports that are there."""
        self._is_woken = False
        while self._reports:
            shipment, place, error = self._reports.popleft()
            self.waiting -= 1
            if error is None and self.trouble:
                self.trouble = self._last_error = ""
            shipment.report(place, error)
        self._moved.set()

    def _end(self) -> None:
        self._take()
        if not self.ended.done():
            self.ended.set_result(None)


async def all_ended(clients: Iterable[Client], seconds: float) -> None:
    """Wait until these are at their end, or so long."""
    waiting = {client.ended for client in clients}
    if waiting:
        await asyncio.wait(waiting, timeout=seconds)


@functools.cache
def _is_known(name: str, value: str) -> bool:
    try:
        Producer({name: value, "log_level": 0})
    except KafkaException:
        return False
    return True


def _where_known(properties: dict[str, str]) -> dict[str, str]:
    """Return those of these properties that this version of librdkafka knows."""
    return {name: value for name, value in properties.items() if _is_known(name, value)}


def check_config(config: dict[str, object], shown: str, secrets: Iterable[str | None]) -> None:
    """Have librdkafka read a configuration, without connecting anywhere.

    Raises:
        ConfigError: it does not take it; the text names the property.
    """
    try:
        Producer({**config, "bootstrap.servers": "", "log_level": 0})
    except (KafkaException, ValueError, TypeError) as failure:
        error = failure.args[0]
        text = error.str() if isinstance(error, KafkaError) else str(failure)
        raise ConfigError(f"{shown}: {redacted(text, secrets)}") from None
