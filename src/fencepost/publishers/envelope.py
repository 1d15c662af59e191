"""How a message stands on the wire: as it is, with our headers beside it, or as a CloudEvent.

The option ``envelope`` is ``none`` (the default), ``cloudevents`` (binary mode: the payload as it is, attributes
as headers) or ``cloudevents-structured`` (one JSON document). ``docs/envelopes.md`` has the mapping.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fencepost.core.records import Message
from fencepost.errors import ConfigError
from fencepost.publishers.address import Address
from fencepost.publishers.base import Delivery
from fencepost.publishers.cloudevents import (
    ATTRIBUTES,
    DEFAULT_SOURCE,
    JSON_FORMAT,
    Source,
    as_headers,
    as_json,
    attributes,
)
from fencepost.publishers.headers import CONTENT_TYPE, TRACE_HEADERS, check_sizes, outgoing_headers

ENVELOPE_OPTIONS = frozenset({"envelope", "source"})

NONE, BINARY, STRUCTURED = "none", "cloudevents", "cloudevents-structured"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is sent: a body, and headers whose values are printable ASCII.

    Only the CloudEvents attributes in Kafka, AMQP and MQTT may hold any text, as their bindings want it.
    """

    payload: bytes
    headers: Mapping[str, str]


class Envelope:
    """Wraps messages for one destination.

    Args:
        address: the destination, with its options ``envelope`` and ``source``.
        prefix: of CloudEvents attributes among this protocol's headers (``ce-`` in HTTP); None where CloudEvents
            has no binding for the protocol, so that only the structured form can be had.

    Raises:
        ConfigError: an envelope that this destination does not have, or a source that is no URI reference.
    """

    def __init__(self, address: Address, *, prefix: str | None) -> None:
        self._prefix = prefix
        self.kind = address.options.get("envelope", NONE)
        kinds = (NONE, STRUCTURED) if prefix is None else (NONE, BINARY, STRUCTURED)
        if self.kind not in kinds:
            raise ConfigError(f"{address.display}: envelope must be {', '.join(kinds[:-1])} or {kinds[-1]}")
        source = address.options.get("source")
        if source is not None and self.kind == NONE:
            raise ConfigError(f"{address.display}: source= needs envelope=, for it is the source of CloudEvents")
        try:
            self._source = Source(DEFAULT_SOURCE if source is None else source)
        except ConfigError as error:
            raise ConfigError(f"{address.display}: {error}") from None

    def wrap(
        self, message: Message, delivery: Delivery, *, also_reserved: Collection[str] = frozenset()
    ) -> Outgoing:
        """Return what to send; see `outgoing_headers` for ``also_reserved``.

        Raises:
            Permanent: as `outgoing_headers`, and text that no CloudEvent can hold.
        """
        if self.kind == NONE:
            return Outgoing(message.payload, outgoing_headers(message, delivery, also_reserved=also_reserved))
        found = attributes(message, delivery, self._source)
        # In the structured mode as well: the official SDK takes a message with any ce- header for the binary mode.
        taken = {*also_reserved, *(() if self._prefix is None else _taken(message, self._prefix))}
        headers = outgoing_headers(message, delivery, also_reserved=taken)
        if self.kind == STRUCTURED:
            headers[CONTENT_TYPE] = JSON_FORMAT
            return Outgoing(as_json(found, message.payload), headers)
        prefix = self._prefix or ""
        there = {name.lower() for name in headers}
        headers |= {name: value for name, value in as_headers(found, prefix).items() if name not in there}
        check_sizes(headers)
        return Outgoing(message.payload, headers)


def _taken(message: Message, prefix: str) -> Collection[str]:
    """Return the lower-case names of headers that would be taken for attributes of the CloudEvent."""
    if not prefix:
        # Without a prefix the trace headers are their own attributes.
        return ATTRIBUTES - TRACE_HEADERS
    # The binding of AMQP knows two spellings, and readers take either.
    prefixes = (prefix.lower(), "cloudevents_") if prefix == "cloudEvents:" else (prefix.lower(),)
    return [name.lower() for name in message.headers if name.lower().startswith(prefixes)]
