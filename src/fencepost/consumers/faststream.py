"""FastStream: ``await handle(faststream.incoming(message))`` in a subscriber with ``ack_policy=AckPolicy.MANUAL``.

Any other policy acknowledges by itself, some before the handler runs. What happens after an error is what
FastStream's own ``nack`` does at the broker; at Redis, which has none, the entry stays pending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fencepost.consumers import kafka, nats, rabbitmq, redis
from fencepost.consumers.incoming import Incoming
from fencepost.consumers.received import Received, received_from
from fencepost.errors import InvalidMessage

# By the package of what the broker's own client handed out.
_READERS: Mapping[str, Callable[[Any], Received]] = {
    "aio_pika": rabbitmq.received,
    "confluent_kafka": kafka.received,
    "nats": nats.received,
}


def received(message: Any) -> Received:
    """Read a message of FastStream's NATS, RabbitMQ, Confluent or Redis stream broker; one, not a batch.

    Raises:
        InvalidMessage: see `received_from`; it is a batch.
    """
    raw = message.raw_message
    if isinstance(raw, list | tuple):
        raise InvalidMessage("this is a batch: have FastStream hand out one message at a time (batch=False)")
    if isinstance(raw, dict) and raw.get("type") == "stream":
        return redis.received(raw["data"])
    read = _READERS.get(type(raw).__module__.partition(".")[0])
    if read is not None:
        return read(raw)
    return received_from(message.headers, message.body, content_type=message.content_type)


def incoming(message: Any) -> Incoming:
    """Return a message of a subscriber with manual acknowledgement.

    Args:
        message: a ``StreamMessage``, such as ``NatsMessage``.

    Raises:
        InvalidMessage: see `received`. ``await message.reject()`` gives it up.
    """
    return Incoming(received(message), message.ack, message.nack)
