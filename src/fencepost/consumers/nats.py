"""NATS JetStream, by nats-py: ``await handle(nats.incoming(msg))``.

After the commit the message is acknowledged. After an error it is given back, to come again after a pause; the
consumer's ``max_deliver`` says how often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.consumers.incoming import Incoming
from fencepost.consumers.received import HTTP_PREFIX, Received, received_from

if TYPE_CHECKING:
    from nats.aio.msg import Msg


def received(message: Msg) -> Received:
    """Read a message.

    Raises:
        InvalidMessage: see `received_from`.
    """
    return received_from(message.headers or {}, message.data, prefix=HTTP_PREFIX)


def incoming(message: Msg, *, delay: float = 1.0) -> Incoming:
    """Return a message of a JetStream subscription with explicit acknowledgement.

    Args:
        message: as nats-py hands it out.
        delay: seconds until it comes again after an error.

    Raises:
        InvalidMessage: see `received_from`. ``await message.term()`` gives it up.
    """

    async def nack() -> None:
        await message.nak(delay=delay)

    return Incoming(received(message), message.ack, nack)
