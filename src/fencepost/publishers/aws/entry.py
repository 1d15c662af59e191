"""How a message becomes an entry of an SQS or SNS batch: its text, its attributes, its size, its group."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fencepost.errors import Permanent
from fencepost.publishers import headers as names
from fencepost.publishers.envelope import Outgoing
from fencepost.publishers.template import shortened

HEADERS = "Fencepost-Headers"
ENCODING = "Fencepost-Encoding"
EMPTY_BODY = "-"
"""Stands for an empty payload: a body cannot be empty."""

ATTRIBUTES = (names.MESSAGE_ID, names.EVENT_TYPE, names.CONTENT_TYPE, "traceparent", "tracestate")
"""The headers that are attributes of their own as well, to filter on or for tracing tools. With `HEADERS` and
`ENCODING` that is 7; SQS takes 10, and SNS silently drops for its raw SQS subscribers what has more."""

MAX_ENTRIES = 10
"""Of one SendMessageBatch or PublishBatch."""
MAX_GROUP_CHARS = 128

# What SQS takes in a body: the characters of XML 1.0 (documentation of SendMessageBatch).
_NO_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NO_GROUP = re.compile(r"[^!-~]|%")
_DATA_TYPE = "String"


@dataclass(slots=True, eq=False)
class Entry:
    """One message of a batch request, and how its publish ended."""

    place: int
    parameters: Mapping[str, Any]
    size: int
    """Bytes as AWS counts them: the body, and of each attribute its name, type and value."""
    outcome: Exception | None = None


def make_entry(
    place: int, outgoing: Outgoing, *, body_name: str, max_bytes: int, fifo: Mapping[str, str]
) -> Entry:
    """Return the entry for a message.

    Args:
        place: of the message in the batch; the entry's id.
        outgoing: what to send.
        body_name: the body's parameter.
        max_bytes: the size limit.
        fifo: the parameters for a FIFO queue or topic, else nothing.

    Raises:
        Permanent: it is too large.
    """
    body, encoding = encoded_body(outgoing.payload)
    found = {name.lower(): value for name, value in outgoing.headers.items()}
    attributes = {name: found.get(name.lower(), "") for name in ATTRIBUTES}
    attributes[HEADERS] = json.dumps(dict(outgoing.headers), separators=(",", ":"))
    attributes[ENCODING] = encoding
    given = {name: value for name, value in attributes.items() if value}  # an attribute cannot be empty
    size = len(body.encode()) + sum(
        len(name) + len(_DATA_TYPE) + len(value.encode()) for name, value in given.items()
    )
    if size > max_bytes:
        raise Permanent(f"{size} bytes with its attributes; the limit is {max_bytes} (?max_bytes=)")
    parameters = {
        "Id": str(place),
        body_name: body,
        "MessageAttributes": {
            name: {"DataType": _DATA_TYPE, "StringValue": value} for name, value in given.items()
        },
        **fifo,
    }
    return Entry(place, parameters, size)


def encoded_body(payload: bytes) -> tuple[str, str]:
    """Return a payload as text that SQS and SNS take, and how it is encoded: empty where it is the text itself."""
    if not payload:
        return EMPTY_BODY, "empty"
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        text = "\x00"
    if _NO_TEXT.search(text):
        return base64.b64encode(payload).decode("ascii"), "base64"
    return text, ""


def decode_body(body: str, encoding: str) -> bytes:
    """Return the payload of a body; ``encoding`` is the attribute `ENCODING`, empty where there is none."""
    if encoding == "empty":
        return b""
    return base64.b64decode(body, validate=True) if encoding == "base64" else body.encode("utf-8")


def group_id(key: str) -> str:
    """Return the message group of an ordering key: at most 128 characters of printable ASCII without blanks.

    Everything else and ``%`` is percent-encoded as UTF-8, an empty key is ``_``, a long one is cut (`shortened`).
    """
    return shortened(_NO_GROUP.sub(_percent, key) or "_", MAX_GROUP_CHARS)


def packed(entries: Iterable[Entry], max_bytes: int) -> Iterator[list[Entry]]:
    """Yield requests of at most 10 entries and ``max_bytes`` together."""
    request: list[Entry] = []
    size = 0
    for entry in entries:
        if request and (len(request) == MAX_ENTRIES or size + entry.size > max_bytes):
            yield request
            request, size = [], 0
        request.append(entry)
        size += entry.size
    if request:
        yield request


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))
