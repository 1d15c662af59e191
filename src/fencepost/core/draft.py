"""A message before it is enqueued: everything is checked here, before any database work.

The limits are bytes of UTF-8, as the indexes and the brokers count them; nothing is ever cut to fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from fencepost.core.states import Recovery
from fencepost.core.text import checked_text, plain, utf8
from fencepost.errors import InvalidMessage

MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
MAX_HEADERS_BYTES = 64 * 1024
MAX_EVENT_TYPE_BYTES = 255
MAX_QUEUE_BYTES = 100
MAX_AGGREGATE_TYPE_BYTES = 255
MAX_AGGREGATE_ID_BYTES = 1024
MAX_DEDUPE_KEY_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 2048
MAX_CONTENT_TYPE_BYTES = 255
MAX_DEPTH = 500
"""Nested lists and objects. PostgreSQL's parser and many receivers' give up at some thousands or less, and
Python's own depends on how deep the caller's stack is: a fixed limit is the same on every day."""

MAX_DELAY = timedelta(days=365_000)
LAST_INSTANT = datetime(9000, 1, 1, tzinfo=UTC)
FIRST_INSTANT = datetime(1900, 1, 1, tzinfo=UTC)

JSON_CONTENT_TYPE = "application/json"
BYTES_CONTENT_TYPE = "application/octet-stream"

_QUEUE = re.compile(r"[A-Za-z0-9_.:-]+")
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"')
_BRACKET = re.compile(r"[\[\]{}]")
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class JsonText(str):
    """A payload that is JSON text already: it is stored and delivered exactly as it stands."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A checked message, ready to be inserted."""

    message_id: UUID
    queue: str
    event_type: str
    aggregate_type: str | None
    aggregate_id: str | None
    ordering_key: str | None
    payload: str | None
    payload_bytes: bytes | None
    content_type: str | None
    headers: str
    dedupe_key: str | None
    recovery: Recovery
    available_at: str | None
    """ISO 8601 with its offset, or None."""
    delay: float
    """Seconds from the database's own "now"; used where ``available_at`` is None."""
    routed: bool = False
    """It was made for the destination whose queue it is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """What a producer wants to say; `draft` checks it.

    Args:
        event_type: what happened, such as ``"order.created"``; routes match on it.
        payload: anything that JSON can hold, `JsonText`, or bytes (with ``content_type``).
        aggregate: (type, id) of the thing that it happened to.
        ordered: publish it in turn with the other messages of its aggregate; needs ``aggregate``.
        ordering_key: publish it in turn with the other messages of this key and queue, whatever its aggregate.
        queue: the queue, which stands for a destination.
        headers: text to text; travels with the message.
        delay: time until it is due, counted by the database; or ``available_at``, an aware instant.
        dedupe_key: at most one message of a queue has it while its row exists.
        message_id: the stable id that receivers deduplicate on; drawn at random where left out.
        content_type: of a payload given as bytes, or another JSON type for JSON.
        recovery: what becomes of a publish whose outcome is unknown: ``"auto"`` repeats it, ``"manual"`` leaves
            it to a person, ``"verify"`` asks the publisher's ``verify`` before it repeats it.
    """

    event_type: str
    payload: Any
    aggregate: tuple[str, str] | None = None
    ordered: bool = False
    queue: str = "default"
    headers: Mapping[str, str] | None = None
    delay: timedelta | None = None
    available_at: datetime | None = None
    dedupe_key: str | None = None
    ordering_key: str | None = None
    message_id: UUID | None = None
    content_type: str | None = None
    recovery: str = "auto"


class MessageOptions(TypedDict, total=False):
    """The optional arguments of `NewMessage`, as keyword arguments of ``enqueue``."""

    aggregate: tuple[str, str] | None
    ordered: bool
    queue: str
    headers: Mapping[str, str] | None
    delay: timedelta | None
    available_at: datetime | None
    dedupe_key: str | None
    ordering_key: str | None
    message_id: UUID | None
    content_type: str | None
    recovery: str


def draft(message: NewMessage, message_id: UUID, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> Draft:
    """Check one message and encode its payload and headers.

    Raises:
        InvalidMessage: what is wrong, with the argument and the limit named.
    """
    if not isinstance(message_id, UUID):
        raise InvalidMessage(f"message_id must be a uuid.UUID, not {type(message_id).__name__}")
    payload, payload_bytes, content_type = _payload(message.payload, message.content_type, max_payload_bytes)
    aggregate_type, aggregate_id = _aggregate(message.aggregate)
    key = message.dedupe_key
    return Draft(
        message_id=message_id,
        queue=checked_queue(message.queue),
        event_type=checked_text("event_type", message.event_type, MAX_EVENT_TYPE_BYTES),
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        ordering_key=_ordering_key(message, aggregate_type, aggregate_id),
        payload=payload,
        payload_bytes=payload_bytes,
        content_type=content_type,
        headers=checked_headers(message.headers),
        dedupe_key=None if key is None else checked_text("dedupe_key", key, MAX_DEDUPE_KEY_BYTES),
        recovery=checked_recovery(message.recovery),
        available_at=checked_available_at(message.available_at, message.delay),
        delay=checked_delay(message.delay),
    )


def checked_queue(value: object) -> str:
    """Return the name of a queue.

    Raises:
        InvalidMessage: no message or job can have it.
    """
    queue = checked_text("queue", value, MAX_QUEUE_BYTES)
    if not _QUEUE.fullmatch(queue):
        raise InvalidMessage(f"queue {queue!r} may hold only letters, digits and _ . : -")
    return queue


def _aggregate(aggregate: object) -> tuple[str | None, str | None]:
    if aggregate is None:
        return None, None
    if not isinstance(aggregate, tuple) or len(aggregate) != 2:
        raise InvalidMessage('aggregate must be a pair of texts (type, id), such as ("order", "42")')
    return (
        checked_text("aggregate type", aggregate[0], MAX_AGGREGATE_TYPE_BYTES),
        checked_text("aggregate id", aggregate[1], MAX_AGGREGATE_ID_BYTES),
    )


def _ordering_key(message: NewMessage, aggregate_type: str | None, aggregate_id: str | None) -> str | None:
    if not isinstance(message.ordered, bool):
        raise InvalidMessage(f"ordered must be True or False, not {message.ordered!r}")
    if message.ordering_key is not None:
        return checked_text("ordering_key", message.ordering_key, MAX_ORDERING_KEY_BYTES)
    if not message.ordered:
        return None
    if aggregate_type is None or aggregate_id is None:
        raise InvalidMessage("ordered=True needs aggregate=(type, id), or an ordering_key instead")
    # An array, so that no two pairs make one key: ("a", "b:c") and ("a:b", "c") would as joined text.
    return checked_text("ordering_key", _dump([aggregate_type, aggregate_id]), MAX_ORDERING_KEY_BYTES)


def checked_recovery(value: str) -> Recovery:
    """Return a policy for unknown outcomes.

    Raises:
        InvalidMessage: there is none of this name.
    """
    try:
        return Recovery(value)
    except ValueError:
        choices = ", ".join(repr(str(policy)) for policy in Recovery)
        raise InvalidMessage(f"recovery must be one of {choices}, not {value!r}") from None


def _payload(payload: Any, content_type: str | None, limit: int) -> tuple[str | None, bytes | None, str | None]:
    if isinstance(payload, bytes | bytearray | memoryview):
        data = bytes(payload)
        _check_size("payload", len(data), limit)
        return None, data, _content_type(BYTES_CONTENT_TYPE if content_type is None else content_type)
    text = json_text(payload)
    _check_size("payload", len(utf8("payload", text)), limit)
    return text, None, None if content_type is None else _content_type(content_type)


def _content_type(value: str) -> str:
    text = checked_text("content_type", value, MAX_CONTENT_TYPE_BYTES)
    if not text.isascii() or not text.isprintable():
        raise InvalidMessage("content_type must be printable ASCII, since it travels as a header")
    return text


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidMessage(
            f"{name} has {size} bytes, more than the limit of {limit} (max_payload_bytes): "
            "store the body elsewhere and send a reference"
        )


def json_text(payload: Any, name: str = "payload") -> str:
    """Return a value as JSON text that any store can hold.

    Raises:
        InvalidMessage: JSON cannot hold it; ``name`` says what it is.
    """
    if isinstance(payload, JsonText):
        _check_json_text(payload, name)
        return plain(payload)
    text = _dump(payload, name)
    _check_depth(text, name)
    if "\\u0000" in text and _ESCAPED_NUL.search(text):
        raise InvalidMessage(f"{name} holds a NUL character, which no store can keep: remove or encode it")
    return text


def _dump(payload: Any, name: str = "payload") -> str:
    try:
        return json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise _too_deep(name) from error
    except (TypeError, ValueError) as error:
        raise InvalidMessage(f"{name} cannot be written as JSON: {error}") from error


def _check_json_text(text: str, name: str) -> None:
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _too_deep(name) from error
    except ValueError as error:
        raise InvalidMessage(f"{name} is not valid JSON text: {error}") from error
    _check_depth(text, name)
    # Escapes such as \ud800 or \u0000 are valid JSON text and still no text that a receiver can use.
    utf8(name, json.dumps(parsed, ensure_ascii=False))
    if _ESCAPED_NUL.search(text):
        raise InvalidMessage(f"{name} holds a NUL character, which no store can keep: remove or encode it")


def _check_depth(text: str, name: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise _too_deep(name)


def _too_deep(name: str) -> InvalidMessage:
    return InvalidMessage(f"{name} is nested more deeply than the limit of {MAX_DEPTH} levels")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def checked_headers(headers: Mapping[str, str] | None) -> str:
    """Return headers as JSON text.

    Raises:
        InvalidMessage: they are not text to text, or larger than 64 KiB.
    """
    if headers is None:
        return "{}"
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a mapping of text to text, not {type(headers).__name__}")
    checked = {}
    for name, value in headers.items():
        checked_text("a header name", name, MAX_HEADERS_BYTES)
        if not isinstance(value, str):
            raise InvalidMessage(f"header {name!r} must be text, not {type(value).__name__}")
        utf8(f"header {name!r}", value)
        checked[plain(name)] = plain(value)
    text = _dump(checked)
    size = len(text.encode("utf-8"))
    if size > MAX_HEADERS_BYTES:
        raise InvalidMessage(f"headers have {size} bytes as JSON, more than the limit of {MAX_HEADERS_BYTES}")
    return text


def checked_delay(delay: timedelta | None) -> float:
    """Return a delay in seconds.

    Raises:
        InvalidMessage: it is no duration, negative, or longer than the last instant.
    """
    if delay is None:
        return 0.0
    if not isinstance(delay, timedelta):
        raise InvalidMessage(f"delay must be a datetime.timedelta, not {type(delay).__name__}")
    if delay < timedelta(0) or delay > MAX_DELAY:
        raise InvalidMessage(f"delay must lie between 0 and {MAX_DELAY.days} days, not {delay}")
    return delay.total_seconds()


def checked_available_at(available_at: datetime | None, delay: timedelta | None) -> str | None:
    """Return an instant as ISO 8601 text.

    Raises:
        InvalidMessage: it is naive, out of range, or there is a delay as well.
    """
    if available_at is None:
        return None
    if delay is not None:
        raise InvalidMessage("give delay or available_at, not both")
    if not isinstance(available_at, datetime):
        raise InvalidMessage(f"available_at must be a datetime, not {type(available_at).__name__}")
    if available_at.utcoffset() is None:
        raise InvalidMessage("available_at has no time zone: use an aware datetime, such as datetime.now(UTC)")
    if not FIRST_INSTANT <= available_at < LAST_INSTANT:
        raise InvalidMessage(
            f"available_at must lie between {FIRST_INSTANT.year} and {LAST_INSTANT.year}, not {available_at}"
        )
    return available_at.astimezone(UTC).isoformat()
