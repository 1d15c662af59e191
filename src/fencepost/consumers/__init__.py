"""Ready consumers: a broker's message, its effect once, and its acknowledgement after the commit.

`Consumer` and `AsyncConsumer` take what the modules of the brokers make of a message: ``nats``, ``kafka``,
``rabbitmq``, ``redis``, ``sqs``, ``mqtt``, ``http`` and ``faststream``.
"""

from __future__ import annotations

from fencepost.consumers.consumer import AsyncConsumer, Consumer, Taken
from fencepost.consumers.incoming import Incoming
from fencepost.consumers.received import Received, received_from

__all__ = ["AsyncConsumer", "Consumer", "Incoming", "Received", "Taken", "received_from"]
