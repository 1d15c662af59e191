"""A message as a CloudEvent 1.0 (https://github.com/cloudevents/spec): attributes, headers, and the JSON format.

The official SDK reads what we write (our tests have it read every binding), but it does not write it: it parses
the payload to put it into the JSON format, and 1e400, a repeated key or a long number would come out as
something else than what was stored. A header and a JSON object are a few lines.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent
from fencepost.publishers.base import Delivery
from fencepost.publishers.headers import TRACE_HEADERS
from fencepost.publishers.json_text import is_strict_json
from fencepost.publishers.template import Template

JSON_FORMAT = "application/cloudevents+json"
DEFAULT_SOURCE = "/fencepost/{queue}"
SEQUENCE_DIGITS = 19
"""Of the largest row id; the sequence extension must sort as text."""

ATTRIBUTES: Final = frozenset(
    {
        "specversion",
        "id",
        "source",
        "type",
        "subject",
        "time",
        "datacontenttype",
        "dataschema",
        "partitionkey",
        "sequence",
        "traceparent",
        "tracestate",
        "fencepostkeysequence",
        "fencepostattempt",
        "fenceposttoken",
        "fencepostreplayof",
    }
)

# What a String attribute cannot hold (spec 1.0.2, "Type System"): control characters, surrogates, noncharacters.
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | end) for plane in range(17) for end in (0xFFFE, 0xFFFF))
    + "]"
)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?\Z")
# A media subtype json or …+json; its text can stand in UTF-8 JSON only if it is UTF-8 itself.
_JSON_TYPE = re.compile(r"""[^/;\s]+/([^/;\s]+\+)?json\s*(;\s*charset\s*=\s*"?utf-?8"?\s*)?\Z""", re.IGNORECASE)
# RFC 3986: what may stand in a URI reference, outside of percent-encodings.
_URI_REFERENCE = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+\Z")
_HEADER_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class Source:
    """The ``source`` attribute: a URI reference with the fields of a `Template`, each percent-encoded.

    Raises:
        ConfigError: not a template, or not a URI reference.
    """

    def __init__(self, text: str) -> None:
        self._template = Template(text, "?source=")
        if not _is_uri_reference("x".join(self._template.literals)):
            raise ConfigError(
                f"?source={text!r} must be a URI reference, such as /shop/orders or urn:shop:{{queue}}; "
                "percent-encode anything but ASCII letters, digits and -._~:/?#[]@!$&'()*+,;="
            )

    def of(self, message: Message) -> str:
        """Return the source of this message.

        Raises:
            Permanent: it would be empty.
        """
        source = self._template.render(message, lambda _, text: quote(text, safe="", errors="surrogatepass"))
        if not source:
            raise Permanent("the CloudEvents attribute 'source' would be empty: correct ?source=")
        return source


def _is_uri_reference(text: str) -> bool:
    try:
        urlsplit(text)
    except ValueError:
        return False
    return not text or _URI_REFERENCE.match(text) is not None


def attributes(message: Message, delivery: Delivery, source: Source) -> dict[str, str]:
    """Return the attributes of a message, each as text; all are of the types String, URI reference or Timestamp.

    Raises:
        Permanent: a text that no CloudEvent can hold; it names the attribute.
    """
    replay_of = delivery.replay_of if delivery.replay_of is not None else message.replay_of
    trace = {name.lower(): text for name, text in message.headers.items() if name.lower() in TRACE_HEADERS}
    traceparent = trace.get("traceparent")
    found: dict[str, str | None] = {
        "specversion": "1.0",
        "id": str(message.message_id),
        "source": source.of(message),
        "type": message.event_type,
        "subject": message.aggregate_id,
        "time": message.created_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "datacontenttype": message.content_type,
        "partitionkey": message.ordering_key,
        "sequence": f"{message.id:0{SEQUENCE_DIGITS}d}",
        "fencepostkeysequence": None if message.key_sequence is None else str(message.key_sequence),
        "fencepostattempt": str(delivery.attempt),
        "fenceposttoken": str(delivery.token),
        "fencepostreplayof": replay_of,
    }
    if isinstance(traceparent, str) and _TRACEPARENT.match(traceparent):
        found["traceparent"] = traceparent
        found["tracestate"] = trace.get("tracestate")
    if not message.event_type:
        raise Permanent("no CloudEvent: the event type is empty, and the attribute 'type' cannot be")
    # An attribute that is not required may be missing, and may not be empty.
    present = {name: text for name, text in found.items() if text}
    for name, text in present.items():
        bad = _FORBIDDEN.search(text)
        if bad is not None:
            raise Permanent(f"no CloudEvent: the attribute {name!r} cannot hold U+{ord(bad[0]):04X}")
    return present


def as_headers(found: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the headers of the binary mode; the content type, which stands for itself, is not among them.

    HTTP and NATS hold ASCII: anything else, blanks, ``"`` and ``%`` are percent-encoded (HTTP binding, section
    3.1.3.2). Kafka, AMQP and MQTT hold UTF-8: there a value is the text itself.
    """
    percent = prefix == "ce-"
    return {
        prefix + name: quote(text, safe=_HEADER_SAFE) if percent else text
        for name, text in found.items()
        if name != "datacontenttype"
    }


def as_json(found: Mapping[str, str], payload: bytes) -> bytes:
    """Return the JSON format: a JSON payload as ``data``, byte for byte; any other as ``data_base64``.

    So is one with blanks around it: around a member's value they would be the document's, and lost.
    """
    start = json.dumps(found)[:-1].encode("ascii")
    is_json = _JSON_TYPE.match(found.get("datacontenttype", "")) and is_strict_json(payload)
    if is_json and payload == payload.strip(b" \t\n\r"):
        return start + b', "data": ' + payload + b"}"
    return start + b', "data_base64": "' + base64.b64encode(payload) + b'"}'
