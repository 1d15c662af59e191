"""Kafka, by confluent-kafka: ``handle(kafka.incoming(consumer, message))``, with ``enable.auto.commit`` off.

After the commit of the database the message's own offset is committed. That stands for all before it in its
partition: so handle the messages of a partition one after another. After an error the consumer is set back to the
message, and polls it again. Nothing behind it may be handled before that, or its offset would be passed: leave a
batch (``consume``) at the first error, as a `for` loop does by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fencepost.consumers.incoming import Incoming
from fencepost.consumers.received import Received, received_from

if TYPE_CHECKING:
    from confluent_kafka import Message

KAFKA_PREFIX = "ce_"


def received(message: Message) -> Received:
    """Read a record.

    Raises:
        InvalidMessage: see `received_from`.
    """
    headers: Any = message.headers()  # its type allows for more than a client hands out
    return received_from(headers or [], message.value() or b"", prefix=KAFKA_PREFIX)


def incoming(consumer: Any, message: Message) -> Incoming:
    """Return a record of a `confluent_kafka.Consumer`, or of its ``aio.AIOConsumer``.

    Args:
        consumer: which polled it.
        message: without an error (``message.error()`` is None).

    Raises:
        InvalidMessage: see `received_from`. ``consumer.commit(message=message)`` goes on behind it: first put it
            somewhere, or it is lost.
    """
    found = received(message)
    place = message.topic(), message.partition(), message.offset()
    if inspect.iscoroutinefunction(consumer.commit):

        async def acommit() -> None:
            _check(await consumer.commit(message=message, asynchronous=False))

        async def aback() -> None:
            await consumer.seek(_partition(*place))

        return Incoming(found, acommit, aback)
    return Incoming(
        found,
        lambda: _check(consumer.commit(message=message, asynchronous=False)),
        lambda: consumer.seek(_partition(*place)),
    )


def _check(partitions: Iterable[Any] | None) -> None:
    """Raise what the brokers said of the one partition."""
    from confluent_kafka import KafkaException

    for partition in partitions or ():
        if partition.error is not None:
            raise KafkaException(partition.error)


def _partition(topic: str | None, number: int | None, offset: int | None) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(str(topic), int(number or 0), int(offset or 0))
