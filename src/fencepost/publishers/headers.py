"""The one mapping of a message and its delivery to outgoing headers; every destination uses it.

============================  =====================================================================
``Fencepost-Message-Id``      the stable id that receivers deduplicate on (a UUID)
``Fencepost-Event-Type``      the event type
``Fencepost-Key``             the ordering key, else the aggregate id; absent if there is neither
``Fencepost-Sequence``        the outbox row id: the order of enqueue
``Fencepost-Key-Sequence``    1, 2, 3 … within the ordering key; absent where the queue does not count
``Fencepost-Attempt``         1 for the first attempt
``Fencepost-Token``           the fencing token: refuse an attempt with a smaller one than you saw
``Fencepost-Replay-Of``       the message id that an operator replayed; absent otherwise
``Content-Type``              the message's content type
``traceparent`` and so on     every header of the message, under its own name
============================  =====================================================================

**Values** hold printable ASCII only. Every other character, and ``%`` itself, is percent-encoded as UTF-8
(RFC 3986, section 2.1), and so are leading and trailing blanks, which HTTP and NATS would strip. So
percent-decoding (`decode_value`) gives back exactly the stored text. The values of ``traceparent``,
``tracestate`` and ``baggage`` keep their ``%``: those formats have their own use for it (W3C Baggage,
section 3.3.1), so they arrive as they are stored whenever they are printable ASCII.

**Names** must be tokens (RFC 9110, section 5.6.2) of at most 128 characters; anything else is a permanent
failure of that message alone. A header of the message may not take over a meaning it has on the wire: the
reserved names below travel as ``Fencepost-Header-<name>``, so nothing is lost and nothing is obeyed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from urllib.parse import quote, unquote

from fencepost.core.records import REPLAY_OF_HEADER, Message
from fencepost.errors import Permanent
from fencepost.publishers.base import Delivery

MESSAGE_ID = "Fencepost-Message-Id"
EVENT_TYPE = "Fencepost-Event-Type"
KEY = "Fencepost-Key"
SEQUENCE = "Fencepost-Sequence"
KEY_SEQUENCE = "Fencepost-Key-Sequence"
ATTEMPT = "Fencepost-Attempt"
TOKEN = "Fencepost-Token"  # noqa: S105 - a fencing token is a number, not a secret
REPLAY_OF = "Fencepost-Replay-Of"
CONTENT_TYPE = "Content-Type"
RENAMED_PREFIX = "Fencepost-Header-"

TRACE_HEADERS = frozenset({"traceparent", "tracestate", "baggage"})

RESERVED_PREFIXES = ("fencepost-", "content-", "proxy-", "webhook-", "nats-")
RESERVED_NAMES = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "cookie",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)

MAX_NAME_CHARS = 128
MAX_VALUE_CHARS = 16_384
"""Of one encoded value. Receivers often accept less (8 KiB is common) and say so with status 431."""
MAX_TOTAL_CHARS = 60_000
"""Of all names and values together; JetStream refuses 64 KiB."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F))
_SAFE = _PRINTABLE.replace("%", "")
_PLAIN = re.compile(r"(?:[!-$&-~](?:[ -$&-~]*[!-$&-~])?)?\Z")
"""What is encoded as itself, which is nearly everything: looked at first, being ten times as quick."""


def outgoing_headers(
    message: Message, delivery: Delivery, *, also_reserved: Collection[str] = frozenset()
) -> dict[str, str]:
    """Return the headers to send, names as in this module's table, values printable ASCII.

    Args:
        message: the event.
        delivery: the attempt.
        also_reserved: lower-case names that mean something to this destination alone.

    Raises:
        Permanent: a header name is not a token, or something is too long; the text names the header.
    """
    headers = _own(message, delivery)
    if not message.headers:
        return headers  # no field of a message is so long that these could be too long
    for name, text in _texts(message.headers):
        lower = name.lower()
        if lower == REPLAY_OF_HEADER:
            continue  # travels as Fencepost-Replay-Of
        _check_name(name)
        reserved = is_reserved(lower) or lower in also_reserved
        value = encode_value(text, keep_percent=lower in TRACE_HEADERS)
        headers[f"{RENAMED_PREFIX}{name}" if reserved else name] = value
    check_sizes(headers)
    return headers


def is_reserved(name: str) -> bool:
    """Return whether a message's header of this name would travel as ``Fencepost-Header-<name>``."""
    lower = name.lower()
    return lower in RESERVED_NAMES or lower.startswith(RESERVED_PREFIXES)


def encode_value(text: str, *, keep_percent: bool = False) -> str:
    """Return ``text`` as printable ASCII: UTF-8, percent-encoded where needed, blanks at the ends as well."""
    if _PLAIN.match(text):
        return text
    encoded = quote(text, safe=_PRINTABLE if keep_percent else _SAFE, errors="surrogatepass")
    inner = encoded.strip(" ")
    if inner == encoded:
        return encoded
    if not inner:
        return "%20" * len(encoded)
    start = encoded.index(inner)
    return "%20" * start + inner + "%20" * (len(encoded) - start - len(inner))


def decode_value(value: str) -> str:
    """Return the text that `encode_value` encoded (not for the trace headers, which keep their ``%``)."""
    return unquote(value, errors="surrogatepass")


def _own(message: Message, delivery: Delivery) -> dict[str, str]:
    headers = {MESSAGE_ID: message.message_id_text, EVENT_TYPE: encode_value(message.event_type)}
    key = message.ordering_key if message.ordering_key is not None else message.aggregate_id
    if key is not None:
        headers[KEY] = encode_value(key)
    headers[SEQUENCE] = str(message.id)
    if message.key_sequence is not None:
        headers[KEY_SEQUENCE] = str(message.key_sequence)
    headers[ATTEMPT] = str(delivery.attempt)
    headers[TOKEN] = str(delivery.token)
    replay_of = delivery.replay_of if delivery.replay_of is not None else message.replay_of
    if replay_of is not None:
        headers[REPLAY_OF] = encode_value(replay_of)
    headers[CONTENT_TYPE] = encode_value(message.content_type)
    return headers


def _texts(headers: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield header names and texts. A producer's plain INSERT may have stored other JSON than strings."""
    for name, value in headers.items():
        yield name, value if isinstance(value, str) else json.dumps(value)


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_CHARS or not _TOKEN.match(name):
        raise Permanent(
            f"header name {name[:MAX_NAME_CHARS]!r} cannot be sent: "
            f"it must be 1 to {MAX_NAME_CHARS} letters, digits or any of !#$%&'*+-.^_`|~"
        )


def check_sizes(headers: Mapping[str, str]) -> None:
    """Refuse what hardly any receiver takes.

    Raises:
        Permanent: a value or all together are too long; the text names the header.
    """
    for name, value in headers.items():
        if len(value) > MAX_VALUE_CHARS:
            raise Permanent(f"header {name!r} is {len(value)} bytes encoded; the limit is {MAX_VALUE_CHARS}")
    total = sum(len(name) + len(value) for name, value in headers.items())
    if total > MAX_TOTAL_CHARS:
        raise Permanent(f"the headers are {total} bytes together; the limit is {MAX_TOTAL_CHARS}")
