"""How a message stands on the wire: as it is, with our headers beside it, or as a CloudEvent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fencepost.core.records import Message
from fencepost.errors import ConfigError
from fencepost.publishers.address import Address
from fencepost.publishers.base import Delivery
from fencepost.publishers.headers import outgoing_headers

ENVELOPE_OPTIONS = frozenset({"envelope", "source"})


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is sent: a body, and headers whose values are printable ASCII."""

    payload: bytes
    headers: Mapping[str, str]


class Envelope:
    """Wraps messages for one destination.

    Args:
        address: the destination, with its options ``envelope`` and ``source``.
        prefix: of CloudEvents attributes among this protocol's headers (``ce-`` in HTTP); None where CloudEvents
            has no binding for the protocol, so that only the structured form can be had.

    Raises:
        ConfigError: an envelope that this destination does not have.
    """

    def __init__(self, address: Address, *, prefix: str | None) -> None:
        self._prefix = prefix
        if address.options.get("envelope", "none") != "none":
            raise ConfigError(f"{address.display}: envelope must be none")

    def wrap(
        self, message: Message, delivery: Delivery, *, also_reserved: Collection[str] = frozenset()
    ) -> Outgoing:
        """Return what to send; see `outgoing_headers` for ``also_reserved`` and for what is raised."""
        return Outgoing(message.payload, outgoing_headers(message, delivery, also_reserved=also_reserved))
