"""RabbitMQ, by aiormq or aio-pika: ``await handle(rabbitmq.incoming(message))``, with ``no_ack`` off.

After the commit the message is acknowledged. After an error it is given back to its queue and comes again at once,
before those behind it where that is possible; a quorum queue's ``delivery-limit`` says how often. With
``requeue=False`` it goes to the queue's dead-letter exchange instead, and is lost where there is none.
"""

from __future__ import annotations

from typing import Any

from fencepost.consumers.incoming import Incoming
from fencepost.consumers.received import Received, received_from

AMQP_PREFIX = "cloudEvents:"


def received(message: Any) -> Received:
    """Read a message of aiormq (`DeliveredMessage`) or aio-pika (`IncomingMessage`).

    Raises:
        InvalidMessage: see `received_from`.
    """
    properties: Any = message.header.properties if _is_plain(message) else message
    return received_from(
        properties.headers or {}, message.body, content_type=properties.content_type, prefix=AMQP_PREFIX
    )


def incoming(message: Any, *, requeue: bool = True) -> Incoming:
    """Return a message of a consumer with acknowledgements.

    Args:
        message: as aiormq or aio-pika hands it out.
        requeue: whether it goes back to its queue after an error.

    Raises:
        InvalidMessage: see `received_from`. Reject it without requeue, to the dead-letter exchange.
    """
    found = received(message)
    if not _is_plain(message):

        async def given_back() -> None:
            await message.nack(requeue=requeue)

        return Incoming(found, message.ack, given_back)
    channel, tag = message.channel, message.delivery_tag

    async def ack() -> None:
        await channel.basic_ack(tag)

    async def nack() -> None:
        await channel.basic_nack(tag, requeue=requeue)

    return Incoming(found, ack, nack)


def _is_plain(message: Any) -> bool:
    """Tell whether it is aiormq's, which aio-pika wraps."""
    return not hasattr(message, "ack")
