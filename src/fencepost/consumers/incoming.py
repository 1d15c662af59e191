"""A received message, and how it is acknowledged or given back at its broker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from fencepost.consumers.received import Received


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a consumer is handed: made by ``incoming`` of the module of its broker, or by hand.

    Args:
        received: the message.
        ack: acknowledges it, for ever; async ones need an `AsyncConsumer`. None leaves that to the caller, who
            does it once the consumer returned (an HTTP answer).
        nack: gives it back so that it comes again. None where a broker repeats what nobody acknowledges.
    """

    received: Received
    ack: Callable[[], object] | None = None
    nack: Callable[[], object] | None = None

    @property
    def is_async(self) -> bool:
        """Whether the broker's client is surely an async one."""
        return any(inspect.iscoroutinefunction(each) for each in (self.ack, self.nack))


def as_incoming(message: Incoming | Received) -> Incoming:
    """Return a message as `Incoming`; of a plain `Received` the caller acknowledges."""
    return message if isinstance(message, Incoming) else Incoming(message)
