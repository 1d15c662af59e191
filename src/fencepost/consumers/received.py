"""A message as a consumer gets it, whatever brought it: read from the headers that every destination sends.

``Fencepost-…`` headers decide (`fencepost.publishers.headers` has the table); where there is no
``Fencepost-Message-Id``, the attributes of a CloudEvent do. What cannot be read is refused with `InvalidMessage`
before any database work: a message without an id must neither be acknowledged nor be taken for a new one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from fencepost.consumers.cloudevent import Event, read_document
from fencepost.core.inbox import MAX_MESSAGE_ID_BYTES
from fencepost.core.number import checked_number
from fencepost.core.text import checked_text, utf8
from fencepost.errors import InvalidMessage
from fencepost.publishers import headers as names
from fencepost.publishers.cloudevents import ATTRIBUTES, JSON_FORMAT


@runtime_checkable
class HasItems(Protocol):
    """A mapping, or what looks like one: `email.message.Message` of Python's own HTTP servers does."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return names and values; a name may come more than once."""


Headers = HasItems | Iterable[tuple[Any, Any]]
"""Names and values as a client hands them out, as text or as bytes of UTF-8. A name may come more than once."""

HTTP_PREFIX: Final = "ce-"
"""Of CloudEvents attributes in HTTP and NATS, where their values are percent-encoded."""
MQTT_PREFIX: Final = ""
"""In MQTT attributes have no prefix."""

_OWN: Final = names.MESSAGE_ID.partition("-")[0].lower() + "-"
_DIGITS = re.compile(r"[0-9]{1,19}\Z")

# What the same thing is called as our header and as an attribute of a CloudEvent.
_ATTRIBUTE_OF: Final = {
    names.MESSAGE_ID: "id",
    names.EVENT_TYPE: "type",
    names.KEY: "partitionkey",
    names.SEQUENCE: "sequence",
    names.KEY_SEQUENCE: "fencepostkeysequence",
    names.ATTEMPT: "fencepostattempt",
    names.TOKEN: "fenceposttoken",
    names.REPLAY_OF: "fencepostreplayof",
}


@dataclass(frozen=True, slots=True)
class Received:
    """One message as it was received. What it did not bring is None.

    Args:
        message_id: the stable id, of 1 to 512 bytes.
        body: the payload as it was enqueued, out of its envelope.
        token: the fencing token of this attempt.
        attempt: 1 for the sender's first attempt.
        event_type: the event type.
        key: the ordering key, else the aggregate id.
        key_sequence: the number within the ordering key, where the sender's queue counts.
        sequence: the sender's row id: it rises within a key, and has gaps.
        replay_of: the message id that an operator replayed.
        content_type: of the body.
        headers: the message's own, decoded; what the broker or its client added may be among them.
    """

    message_id: str
    body: bytes
    token: int | None
    attempt: int | None
    event_type: str | None
    key: str | None
    key_sequence: int | None
    sequence: int | None
    replay_of: str | None
    content_type: str | None
    headers: Mapping[str, str]

    def json(self) -> Any:
        """Return the body parsed as JSON.

        Raises:
            ValueError: the body is not JSON.
        """
        return json.loads(self.body)


def received_from(
    headers: Headers, body: bytes, *, content_type: str | None = None, prefix: str | None = None
) -> Received:
    """Read a message.

    Args:
        headers: as they arrived, names in any case.
        body: as it arrived.
        content_type: where the protocol has its own place for it; else it is the header ``Content-Type``.
        prefix: of CloudEvents attributes among the headers of this protocol; None where it has none of them.

    Raises:
        InvalidMessage: there is no message id or more than one, or a value that none of our senders sends.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidMessage(f"the body must be bytes, as they were received, not {type(body).__name__}")
    found = _sorted(headers)
    if content_type is not None and not isinstance(content_type, str):
        raise InvalidMessage(f"the content type is no text: {_shown(content_type)}")
    media = content_type if content_type is not None else found.own.get(names.CONTENT_TYPE.lower())
    media = None if media is None else _decoded(names.CONTENT_TYPE, media)
    fields = {name: _decoded(name, found.own[name.lower()]) for name in _ATTRIBUTE_OF if name.lower() in found.own}
    event = _document(media, bytes(body), fields.get(names.MESSAGE_ID))
    if event is not None:
        body, media = event.body, event.content_type
    if names.MESSAGE_ID not in fields:
        fields = _of_an_event(event.attributes if event is not None else _attributes(found.other, prefix))
    if names.MESSAGE_ID not in fields:
        raise InvalidMessage(
            f"there is no message id: neither the header {names.MESSAGE_ID} nor the id of a CloudEvent"
        )
    message_id = checked_text(names.MESSAGE_ID, fields[names.MESSAGE_ID], MAX_MESSAGE_ID_BYTES)
    return Received(
        message_id=message_id,
        body=bytes(body),
        token=_number(fields, names.TOKEN, least=0),
        attempt=_number(fields, names.ATTEMPT, least=1),
        event_type=_text(fields, names.EVENT_TYPE),
        key=_text(fields, names.KEY),
        key_sequence=_number(fields, names.KEY_SEQUENCE, least=1),
        sequence=_number(fields, names.SEQUENCE, least=0),
        replay_of=_text(fields, names.REPLAY_OF),
        content_type=media,
        headers=_of_the_message(found, _envelope_of(found.other, prefix, message_id)),
    )


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Headers by whose they are. Names of ours are in lower case; of the others, the last of a name counts."""

    own: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    """The message's headers of reserved names, which have their name again."""
    other: dict[str, str] = field(default_factory=dict)


def _sorted(headers: Headers) -> _Sorted:
    """Sort headers out.

    Raises:
        InvalidMessage: one of ours came twice, or is no text.
    """
    found = _Sorted()
    for raw_name, raw in headers.items() if isinstance(headers, HasItems) else headers:
        name, value = _as_text(raw_name), _as_text(raw)
        if name is None:
            raise InvalidMessage(f"the name of a header is no text: {_shown(raw_name)}")
        lower = name.lower()
        if not lower.startswith(_OWN) and lower != names.CONTENT_TYPE.lower():
            if value is not None:  # such as the x-death of RabbitMQ, which is a table
                found.other[name] = value
        elif value is None:
            raise InvalidMessage(f"the header {_shown(name)} is no text: {_shown(raw)}")
        elif lower in found.own:
            came = f"{_shown(found.own[lower])} and {_shown(value)}"
            raise InvalidMessage(f"the header {_shown(name)} came twice: {came}")
        else:
            found.own[lower] = value
            if lower.startswith(names.RENAMED_PREFIX.lower()):
                found.renamed[name[len(names.RENAMED_PREFIX) :]] = value
    return found


def _attributes(headers: Mapping[str, str], prefix: str | None) -> Mapping[str, str]:
    """Return the attributes of a CloudEvent in binary mode, none where it is none.

    Raises:
        InvalidMessage: its id came twice, or one of them cannot be read.
    """
    pairs = [(_attribute(name, prefix), value) for name, value in headers.items()]
    found = {name: value for name, value in pairs if name is not None}
    if "specversion" not in found:
        return {}
    if [name for name, _ in pairs].count("id") > 1:
        raise InvalidMessage("the id of the CloudEvent came twice")
    return found if prefix != HTTP_PREFIX else {name: _decoded(name, value) for name, value in found.items()}


def _attribute(name: str, prefix: str | None) -> str | None:
    """Return the CloudEvents attribute that a header is, None where it is none."""
    # The binding of AMQP knows two spellings.
    plain = name.lower().replace("cloudevents_", "cloudevents:", 1)
    if prefix is None or not plain.startswith(prefix.lower()):
        return None
    return plain[len(prefix) :]


def _of_an_event(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return what a CloudEvent says, under the names of our headers."""
    fields = {name: attributes[each] for name, each in _ATTRIBUTE_OF.items() if each in attributes}
    if names.KEY not in fields and "subject" in attributes:
        fields[names.KEY] = attributes["subject"]  # the aggregate id
    return fields


def _document(media: str | None, body: bytes, message_id: str | None) -> Event | None:
    """Return the CloudEvent that a body is, None where it is a payload.

    Raises:
        InvalidMessage: it says that it is one, has no id beside it, and cannot be read.
    """
    if media is None or media.partition(";")[0].strip().lower() != JSON_FORMAT:
        return None
    try:
        event = read_document(body)
    except InvalidMessage:
        if message_id is None:
            raise
        return None
    # Another id: what was enqueued is a CloudEvent of somebody else's, and goes on as it is.
    return event if message_id in (None, event.attributes.get("id")) else None


def _envelope_of(headers: Mapping[str, str], prefix: str | None, message_id: str) -> frozenset[str]:
    """Return the names of the headers that are attributes of this very message as a CloudEvent in binary mode.

    Of another id, or without ``specversion``, they are headers that were enqueued, such as a ``type`` in MQTT.
    """
    found = {name: _attribute(name, prefix) for name in headers}
    ids = [_decoded_or_as_is(headers[name]) for name, attribute in found.items() if attribute == "id"]
    if "specversion" not in found.values() or message_id not in ids:
        return frozenset()
    return frozenset(name for name, attribute in found.items() if attribute in ATTRIBUTES)


def _of_the_message(found: _Sorted, envelope: Collection[str]) -> dict[str, str]:
    """Return the message's own headers, decoded, without those of the transport and of the envelope."""
    decoded: dict[str, str] = {}
    for name, value in found.other.items():
        lower = name.lower()
        if lower in names.TRACE_HEADERS:
            decoded[name] = value
        elif not names.is_reserved(lower) and name not in envelope:
            decoded[name] = _decoded_or_as_is(value)
    return decoded | {name: _decoded_or_as_is(value) for name, value in found.renamed.items()}


def _decoded(name: str, value: str) -> str:
    try:
        return names.decode_value(value)
    except UnicodeDecodeError:
        raise InvalidMessage(f"{name} is not percent-encoded UTF-8: {_shown(value)}") from None


def _decoded_or_as_is(value: str) -> str:
    """Decode what may be the transport's and mean something else."""
    try:
        return names.decode_value(value)
    except UnicodeDecodeError:
        return value


def _as_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return None
    return None


def _text(fields: Mapping[str, str], name: str) -> str | None:
    value = fields.get(name)
    if value is not None:
        utf8(name, value)
    return value


def _number(fields: Mapping[str, str], name: str, *, least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not _DIGITS.match(value):
        raise InvalidMessage(f"{name} must be a whole number in decimal digits, not {_shown(value)}")
    return checked_number(name, int(value), least=least)


def _shown(value: object) -> str:
    """Show what came, which may be anything and of any length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
