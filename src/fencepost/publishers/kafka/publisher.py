"""``kafka://`` - publishes to Kafka topics; the delivery report of each message means delivered.

**Order.** The client sends many requests at once, and when one of them fails for good it sends those behind it all
the same, idempotent producer or not. So there are two ways to the brokers:

* what stands alone in its batch, without a key or as the only one of its key, goes through a producer with five
  requests in flight (`Order.FREE`): each failure there is one message's own;
* several of one key go through another one, with one request in flight, whose first failure ends it
  (`Order.STRICT`). A request that it had made up by then still goes out, and the broker refuses it, because its
  sequence number leaves a gap. Since KIP-360 a broker refuses a gap only where it knows the producer already: so
  several of a key go at once only after this client has delivered one of the key. It has no time-outs of its own,
  for the next message would go out after one that timed out: at the deadline of a publish it is ended as a whole.

A broker refuses a request as a whole, although one message of it may be the reason. What was refused so is sent
again one by one through a third producer (`Order.SINGLE`); only what is refused there is a permanent failure.

**Deadlines.** At its deadline a message is taken out of the client, and if need be the client is given up and made
anew, so that nothing is sent after its publish was reported as failed; only a request that was on its way already
may still be stored.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.base import Delivery, own_copy
from fencepost.publishers.batching import Batch, BatchPublisher, rounds
from fencepost.publishers.envelope import Envelope
from fencepost.publishers.kafka.options import OPTIONS, Order, Settings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from fencepost.publishers.kafka.client import Client, Record, Shipment

__all__ = ["OPTIONS", "KafkaPublisher"]

FLUSH_SECONDS = 0.3
"""How long `close` waits for what is in flight."""
CLOSE_SECONDS = 0.5
"""How long it then waits for the producers' threads."""
PURGE_SHARE = 0.1
"""The part of a publish's time that is kept for taking its messages back at the deadline, at most 0.2 seconds."""


class KafkaPublisher(BatchPublisher):
    """Publishes to Kafka topics and waits for the delivery report of each message.

    Args:
        url: ``kafka://[user:password@]host[:port][,host[:port]…]`` with any of the options ``topic`` (a template,
            default ``{event_type}``; see `fencepost.publishers.kafka.options.Topic`), ``timeout`` (seconds, 8),
            ``partitioner``, ``compression``, ``tls``, ``sasl``, ``auto_create``, those of login, TLS and envelope,
            and properties of librdkafka as ``rdkafka.<name>``.

    Raises:
        ConfigError: confluent-kafka is not installed, or the URL cannot work.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import confluent_kafka

            from fencepost.publishers.kafka import client as kafka_client
            from fencepost.publishers.kafka import failures as kafka_failures
        except ImportError:
            raise ConfigError("kafka destinations need confluent-kafka: pip install 'fencepost[kafka]'") from None
        self._kafka, self._client_module, self._failures = confluent_kafka, kafka_client, kafka_failures
        self._settings = settings = Settings(url)
        self._shown, self._timeout = settings.shown, settings.timeout
        self._envelope = Envelope(settings.address, prefix="ce_")
        self._log = kafka_client.ClientLog()
        self._clients: dict[Order, Client] = {}
        self._ending: set[Client] = set()
        self._lives = 0
        """How often it was closed: what was under way then must not make new producers."""
        kafka_client.check_config(settings.config(Order.STRICT), settings.shown, settings.secrets())

    async def open(self) -> None:
        """Make a producer, which connects in the background."""
        try:
            self._client(Order.FREE, self._lives)
        except Retryable:
            return  # a secret is not there yet: the first publish will tell

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        """Publish many, and return an outcome for each.

        Outcomes:
            None: the brokers acknowledged this very message (``acks=all``).
            Retryable: no acknowledgement before the deadline, no broker, no such topic, no permission. The topic
                may have the message all the same where the text does not say "not sent".
            Permanent: larger than the client or the topic accepts, refused by the topic's rules for records, or a
                header that cannot be sent.
        """
        batch = _Batch(messages, deliveries, self._timeout, self._lives)
        places = range(len(messages))
        batch.records = batch.made(places, lambda at: self._record(messages[at], deliveries[at]))
        waiting = list(batch.records)
        while waiting:
            waiting = await self._one_round(waiting, batch)
        return batch.outcomes()

    async def close(self) -> None:
        """Wait a moment for what is in flight, and give up the rest; those publishes fail as retryable."""
        self._lives += 1
        clients = list(self._clients.values())
        deadline = time.monotonic() + FLUSH_SECONDS
        for client in clients:
            await client.idle(deadline)
        for way in list(self._clients):
            self._give_up(way, "the publisher was closed")
        await self._client_module.all_ended(self._ending, CLOSE_SECONDS)
        self._ending.clear()

    def _record(self, message: Message, delivery: Delivery) -> Record:
        outgoing = self._envelope.wrap(message, delivery)
        key = message.ordering_key if message.ordering_key is not None else message.aggregate_id
        return self._client_module.Record(
            topic=self._settings.topic.of(message),
            key=None if key is None else key.encode("utf-8", "surrogatepass"),
            value=outgoing.payload,
            headers=list(outgoing.headers.items()),
        )

    async def _one_round(self, places: Sequence[int], batch: _Batch) -> list[int]:
        """Send what may go now, each to its outcome; return the places of what comes after it in its key."""
        now: dict[Order, list[int]] = {Order.FREE: [], Order.STRICT: []}
        batch.strict = self._clients.get(Order.STRICT)
        later: list[int] = []
        for way, place in batch.next_ones(places):
            (later if way is None else now[way]).append(place)
        sends = [self._send(way, chosen, batch) for way, chosen in now.items() if chosen]
        parts = await asyncio.gather(*sends) if len(sends) > 1 else [await send for send in sends]
        refused = [place for part in parts for place in part]
        for turn in rounds([batch.messages[place] for place in refused]):
            await self._send(Order.SINGLE, [refused[number] for number in turn], batch)
        return later

    async def _send(self, way: Order, places: Sequence[int], batch: _Batch) -> list[int]:
        """Send these, and note what failed; return what should be sent again, each in a request of its own."""
        try:
            client = self._client(way, batch.life)
        except Retryable as failure:
            for place in places:
                batch.failed(place, own_copy(failure))
            return []
        shipment = client.shipment()
        try:
            for place in places:
                if batch.may_go(place):
                    await self._hand_over(client, shipment, place, batch)
            if not await client.reported(shipment, batch.send_until):
                self._give_up(way, "given up at the deadline of a publish", client)
                await client.reported(shipment, batch.deadline)
        except asyncio.CancelledError:
            if way is Order.STRICT:
                self._give_up(way, "a publish was cancelled", client)  # it has no time-outs of its own
            raise
        return self._judged(way, client, shipment, batch)

    async def _hand_over(self, client: Client, shipment: Shipment, place: int, batch: _Batch) -> None:
        record = batch.records[place]
        if time.monotonic() >= batch.send_until:
            batch.failed(place, Retryable(f"{self._shown}: not sent before the deadline"))
            return
        if client.is_strict and client is not batch.strict and batch.key_is_in(shipment, place):
            # It was chosen to follow another one through a client that has ended since.
            batch.failed(place, Retryable(f"{self._shown}: not sent: the client was replaced"))
            return
        try:
            await client.hand_over(shipment, place, record, batch.send_until)
        except BufferError as failure:
            unavailable = bool(client.trouble)
            batch.failed(place, Retryable(f"{self._shown}: not sent: {failure}", unavailable=unavailable))
        except self._kafka.KafkaException as failure:
            batch.failed(place, self._failure(failure.args[0], record, client))

    def _judged(self, way: Order, client: Client, shipment: Shipment, batch: _Batch) -> list[int]:
        """Note what became of a shipment, and return what should be sent again one by one."""
        codes = {place: error.code() for place, error in shipment.reports.items() if error is not None}
        if client.trouble and not self._failures.TIMED_OUT.isdisjoint(codes.values()):
            self._give_up(way, client.trouble, client)  # a new one is connected sooner than one that waits longer
        refused = set() if way is Order.SINGLE else self._failures.REFUSED_REQUEST.intersection(codes.values())
        if refused:
            self._log.refused(self._shown)
            refused |= self._failures.NOT_SENT
        again: list[int] = []
        again_keys: set[str | None] = set()
        for place in shipment.handed_over:
            record, key = batch.records[place], batch.messages[place].ordering_key
            if place in shipment.reports and place not in codes:
                client.note_delivered(record)
            elif codes.get(place) in refused or (key is not None and key in again_keys):
                again.append(place)
                again_keys.add(key)
            else:
                batch.failed(place, self._failure(shipment.reports.get(place), record, client))
        return again

    def _failure(self, error: KafkaError | None, record: Record, client: Client) -> Permanent | Retryable:
        return self._failures.failure_of(error, self._shown, record.topic, client.trouble, client.end_reason)

    def _client(self, way: Order, life: int) -> Client:
        """Return a producer that may be used, making it where there is none.

        Raises:
            Retryable: a secret cannot be read just now, or the publisher was closed since.
        """
        if life != self._lives:
            raise Retryable(f"{self._shown}: not sent: the publisher was closed")
        client = self._clients.get(way)
        if client is not None and client.end_reason:
            self._give_up(way, client.end_reason)
            client = None
        if client is None:
            config = self._settings.config(way)
            self._log.secrets = self._settings.secrets()
            client = self._client_module.Client(config, self._log, is_strict=way is Order.STRICT)
            self._clients[way] = client
        return client

    def _give_up(self, way: Order, reason: str, client: Client | None = None) -> None:
        """End a producer; the next publish makes a new one."""
        current = self._clients.get(way)
        client = client or current
        if client is None:
            return
        if client is current:
            del self._clients[way]
        client.give_up(reason)
        self._ending.add(client)
        client.ended.add_done_callback(lambda _: self._ending.discard(client))


class _Batch(Batch):
    """A batch on its way: what is sent for each message as well, and when it is taken back."""

    def __init__(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery], timeout: float, life: int
    ) -> None:
        super().__init__(messages, deliveries, timeout)
        self.life = life
        self.records: dict[int, Record] = {}
        """By place; what cannot be sent has none."""
        budget = self.deadline - time.monotonic()
        self.send_until = self.deadline - min(0.2, budget * PURGE_SHARE)
        """When its messages are taken back from the client; the reports of that are there by the deadline."""
        self.strict: Client | None = None
        """The client that several of a key may go through at once, as it was when this round was chosen."""
        self._counts = Counter(message.ordering_key for message in messages)

    def key_is_in(self, shipment: Shipment, place: int) -> bool:
        """Tell whether a message of the same key was handed over before in this shipment."""
        key = self.messages[place].ordering_key
        return key is not None and any(self.messages[each].ordering_key == key for each in shipment.handed_over)

    def next_ones(self, places: Sequence[int]) -> Iterator[tuple[Order | None, int]]:
        """Yield the way that each of these may go now, None where something of its key must be delivered first.

        Several of one key may go at once where they follow one another to one topic, and the client has delivered
        there before.
        """
        before: dict[str, Record] = {}
        blocked: set[str] = set()
        for place in places:
            key, record = self.messages[place].ordering_key, self.records[place]
            if key is None or self._counts[key] == 1:
                yield Order.FREE, place
            elif key not in before or (key not in blocked and self._may_follow(before[key], record)):
                before[key] = record
                yield Order.STRICT, place
            else:
                blocked.add(key)
                yield None, place

    def _may_follow(self, previous: Record, record: Record) -> bool:
        if self.strict is None:
            return False
        return previous.topic == record.topic and self.strict.has_delivered(record)
