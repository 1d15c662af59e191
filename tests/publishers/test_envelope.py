"""CloudEvents as we write them, read by the official SDK."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

import cloudevents.v1.http
import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.amqp import AMQPMessage, from_amqp
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent
from fencepost.publishers.address import parse_address
from fencepost.publishers.envelope import ENVELOPE_OPTIONS, Envelope, Outgoing
from fencepost.testing.publisher_conformance import FREE_TEXTS, PAYLOADS, received_from
from fencepost.testing.samples import sample_delivery

ID = UUID("019513ec-7c00-7a1f-8000-0123456789ab")
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACESTATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
ODD = 'ключ 100% "quoted", and\N{ROCKET}~'


def envelope(kind: str, prefix: str | None = "ce-", **options: str) -> Envelope:
    query = "&".join(f"{name}={quote(value)}" for name, value in {"envelope": kind, **options}.items())
    return Envelope(parse_address(f"pigeon://loft?{query}", options=ENVELOPE_OPTIONS), prefix=prefix)


def message(**fields: Any) -> Message:
    values: dict[str, Any] = {
        "id": 42,
        "message_id": ID,
        "queue": "orders",
        "event_type": "order.created",
        "aggregate_type": "order",
        "aggregate_id": ODD,
        "ordering_key": ODD,
        "payload": b'{"id": 42}',
        "content_type": "application/json",
        "headers": {"traceparent": TRACEPARENT, "tracestate": TRACESTATE, "tenant": "acme"},
        "created_at": datetime(2026, 3, 4, 5, 6, 7, 8900, tzinfo=UTC),
        "key_sequence": 5,
    }
    return Message(**{**values, **fields})


DELIVERY = sample_delivery(attempt=3, token=17, replay_of="6f9619ff-8b86-d011-b42d-00cf4fc964ff")


def expected(data: Any) -> CloudEvent:
    return CloudEvent(
        {
            "specversion": "1.0",
            "id": str(ID),
            "source": "/fencepost/orders",
            "type": "order.created",
            "subject": ODD,
            "time": datetime(2026, 3, 4, 5, 6, 7, 8900, tzinfo=UTC),
            "datacontenttype": "application/json",
            "partitionkey": ODD,
            "sequence": "0000000000000000042",
            "traceparent": TRACEPARENT,
            "tracestate": TRACESTATE,
            "fencepostkeysequence": "5",
            "fencepostattempt": "3",
            "fenceposttoken": "17",
            "fencepostreplayof": "6f9619ff-8b86-d011-b42d-00cf4fc964ff",
        },
        data,
    )


def by_http(outgoing: Outgoing) -> BaseCloudEvent:
    assert all(value.isascii() and value.isprintable() for value in outgoing.headers.values())
    return from_http(HTTPMessage(dict(outgoing.headers), outgoing.payload), JSONFormat())


def by_kafka(outgoing: Outgoing) -> BaseCloudEvent:
    headers = {name.lower(): value.encode("utf-8") for name, value in outgoing.headers.items()}
    return from_kafka(KafkaMessage(headers, None, outgoing.payload), JSONFormat())


def by_amqp(outgoing: Outgoing) -> BaseCloudEvent:
    headers = dict(outgoing.headers)
    content_type = headers.pop("Content-Type")
    return from_amqp(AMQPMessage({"content-type": content_type}, headers, outgoing.payload), JSONFormat())


def by_mqtt(outgoing: Outgoing) -> BaseCloudEvent:
    """Read by the binding's one rule, for the SDK has no reader: user properties are attributes."""
    attributes: dict[str, Any] = {name: text for name, text in outgoing.headers.items() if name.isalnum()}
    attributes["time"] = datetime.fromisoformat(attributes["time"])
    attributes["datacontenttype"] = outgoing.headers["Content-Type"]
    return CloudEvent(attributes, json.loads(outgoing.payload))


Reader = Callable[[Outgoing], BaseCloudEvent]
BINDINGS: Mapping[str, tuple[str, Reader]] = {
    "http, nats": ("ce-", by_http),
    "kafka": ("ce_", by_kafka),
    "amqp": ("cloudEvents:", by_amqp),
    "mqtt": ("", by_mqtt),
}


@pytest.mark.parametrize(("prefix", "read"), BINDINGS.values(), ids=list(BINDINGS))
def test_the_sdk_reads_the_binary_mode_of_each_binding(prefix: str, read: Reader) -> None:
    found = read(envelope("cloudevents", prefix).wrap(message(headers=_headers(prefix)), DELIVERY))
    assert found.get_attributes() == expected(None).get_attributes()
    assert found.get_data() == {"id": 42}


def _headers(prefix: str) -> dict[str, str]:
    trace = {"traceparent": TRACEPARENT, "tracestate": TRACESTATE}
    return {**trace, f"{prefix}id": "999", f"{prefix}Source".capitalize(): "/evil"} if ":" not in prefix else trace


@pytest.mark.parametrize(
    ("prefix", "read"),
    [("ce-", by_http), ("ce_", by_kafka), ("cloudEvents:", by_amqp), (None, by_http)],
    ids=["http, nats", "kafka", "amqp", "none"],
)
def test_the_sdk_reads_the_structured_mode(prefix: str | None, read: Reader) -> None:
    outgoing = envelope("cloudevents-structured", prefix).wrap(message(), DELIVERY)
    assert outgoing.headers["Content-Type"] == "application/cloudevents+json"
    found = read(outgoing)
    assert found.get_attributes() == expected(None).get_attributes()
    assert found.get_data() == {"id": 42}


def test_the_older_sdk_reads_both_modes() -> None:
    for kind in ("cloudevents", "cloudevents-structured"):
        outgoing = envelope(kind).wrap(message(), DELIVERY)
        found = cloudevents.v1.http.from_http(dict(outgoing.headers), outgoing.payload)
        assert (found["id"], found["source"], found["type"]) == (str(ID), "/fencepost/orders", "order.created")
        assert (found["sequence"], found["fenceposttoken"]) == ("0000000000000000042", "17")
        assert found.data == {"id": 42}


def test_header_values_are_encoded_as_the_http_binding_says() -> None:
    text = "Euro \u20ac \U0001f600"  # the example of section 3.1.3.2
    outgoing = envelope("cloudevents").wrap(message(aggregate_id=text), DELIVERY)
    assert outgoing.headers["ce-subject"] == "Euro%20%E2%82%AC%20%F0%9F%98%80"
    outgoing = envelope("cloudevents").wrap(message(aggregate_id='a"b%c'), DELIVERY)
    assert outgoing.headers["ce-subject"] == "a%22b%25c"


@pytest.mark.parametrize("prefix", ["ce-", "ce_", "cloudEvents:", ""])
def test_our_headers_travel_beside_and_nothing_takes_over_an_attribute(prefix: str) -> None:
    own = {"ce-id": "1", "CE_type": "x", "id": "2", "source": "/evil", "tenant": "acme"}
    outgoing = envelope("cloudevents", prefix).wrap(message(headers=own), DELIVERY)
    arrived = received_from(outgoing.payload, outgoing.headers)
    assert (arrived.message_id, arrived.attempt, arrived.token) == (ID, 3, 17)
    assert outgoing.headers[f"{prefix}id"] == str(ID)
    assert outgoing.headers["tenant"] == "acme"
    kept = {name.removeprefix("Fencepost-Header-"): value for name, value in outgoing.headers.items()}
    assert {"ce-id", "CE_type", "source"} <= set(kept), "renamed where it is taken, and kept"


@pytest.mark.parametrize("kind", ["cloudevents", "cloudevents-structured"])
@pytest.mark.parametrize(
    ("prefix", "own", "read"),
    [("ce-", "ce-", by_http), ("ce_", "ce_", by_kafka), ("cloudEvents:", "cloudEvents_", by_amqp)],
)
def test_a_header_that_readers_take_for_an_attribute_changes_no_event(
    kind: str, prefix: str, own: str, read: Reader
) -> None:
    evil = {f"{own}id": "999", f"{own}type": "evil", f"{own}subject": "evil", f"{own}note": "mine"}
    outgoing = envelope(kind, prefix).wrap(
        message(headers={**evil, "traceparent": TRACEPARENT, "tracestate": TRACESTATE}), DELIVERY
    )
    assert read(outgoing).get_attributes() == expected(None).get_attributes()
    assert outgoing.headers[f"Fencepost-Header-{own}note"] == "mine", "renamed, and kept"


@pytest.mark.parametrize(("payload", "content_type"), PAYLOADS)
def test_the_payload_survives_the_structured_mode_byte_for_byte(payload: bytes, content_type: str) -> None:
    sent = envelope("cloudevents-structured").wrap(message(payload=payload, content_type=content_type), DELIVERY)
    start, found, rest = sent.payload.partition(b', "data": ')
    if content_type == "application/json":
        assert found
        assert rest == payload + b"}"
        json.loads(start + b"}")
    else:
        assert base64.b64decode(json.loads(sent.payload)["data_base64"]) == payload


@pytest.mark.parametrize(
    ("payload", "content_type", "as_data"),
    [
        (b"[1]", "application/json; charset=utf-8", True),
        (b"[1]", 'Application/JSON ; charset="UTF-8"', True),
        (b"[1]", "application/vnd.shop+json", True),
        (b"[ 1]", "text/json", True),
        (b" \n[1]\n", "text/json", False),
        (b'["\xe4"]', "application/json; charset=latin-1", False),
        (b"[1]", "application/json; charset=utf-16", False),
        (b"NaN", "application/json", False),
        (b"{", "application/json", False),
        (b"[1] 2", "application/json", False),
        (b'"\xff"', "application/json", False),
        (b"\xef\xbb\xbf[1]", "application/json", False),
        (b"", "application/json", False),
        (b"[" * 100_000, "application/json", False),
        (b"[1]", "application/jsonlines", False),
        (b"[1]", "application/x-ndjson", False),
        (b"text", "text/plain", False),
    ],
)
def test_only_strict_json_in_utf_8_becomes_data(payload: bytes, content_type: str, as_data: bool) -> None:
    sent = envelope("cloudevents-structured").wrap(message(payload=payload, content_type=content_type), DELIVERY)
    document = json.loads(sent.payload)
    assert ("data" in document, "data_base64" in document) == (as_data, not as_data)
    if not as_data:
        assert base64.b64decode(document["data_base64"]) == payload


@pytest.mark.parametrize("kind", ["cloudevents", "cloudevents-structured"])
def test_free_text_is_an_attribute_or_a_permanent_failure(kind: str) -> None:
    for text in FREE_TEXTS.values():
        odd = message(event_type=text, aggregate_id=text, ordering_key=text, headers={})
        if text and text.isprintable():
            found = by_http(envelope(kind).wrap(odd, DELIVERY))
            assert (found.get_type(), found.get_subject()) == (text, text)
            assert found.get_extension("partitionkey") == text
        else:
            with pytest.raises(Permanent, match="'type' cannot"):
                envelope(kind).wrap(odd, DELIVERY)


@pytest.mark.parametrize(
    "character", ["\x00", "\t", "\r", "\x1f", "\x7f", "\x85", "\ufdd0", "\ufffe", "\U0010ffff"]
)
def test_what_no_attribute_can_hold_is_named(character: str) -> None:
    for field, attribute in (
        ("event_type", "type"),
        ("aggregate_id", "subject"),
        ("ordering_key", "partitionkey"),
    ):
        with pytest.raises(Permanent, match=f"'{attribute}' cannot hold U\\+{ord(character):04X}"):
            envelope("cloudevents").wrap(message(**{field: f"a{character}"}), DELIVERY)


def test_what_is_empty_or_missing_is_left_out() -> None:
    trace = {"traceparent": "nonsense", "tracestate": "a=b"}
    bare = message(aggregate_id="", ordering_key=None, key_sequence=None, headers=trace)
    document = json.loads(envelope("cloudevents-structured").wrap(bare, sample_delivery()).payload)
    optional = {"subject", "partitionkey", "fencepostkeysequence", "fencepostreplayof", *trace}
    assert not optional & set(document)


def test_sequences_sort_as_text() -> None:
    numbers = [9, 10, 9_223_372_036_854_775_807, 1]
    documents = [
        json.loads(envelope("cloudevents-structured").wrap(message(id=number), DELIVERY).payload)
        for number in numbers
    ]
    assert [int(text) for text in sorted(one["sequence"] for one in documents)] == sorted(numbers)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("/shop", "/shop"),
        ("urn:shop:{queue}", "urn:shop:or%2Fders%20x"),
        ("https://shop.example/{aggregate_type}/{event_type}", "https://shop.example/order/order.created"),
        ("{queue}", "or%2Fders%20x"),
        ("/a%20b#c", "/a%20b#c"),
    ],
)
def test_a_source_is_a_uri_reference_and_its_fields_cannot_leave_their_place(source: str, found: str) -> None:
    wrapped = envelope("cloudevents-structured", source=source).wrap(message(queue="or/ders x"), DELIVERY)
    assert json.loads(wrapped.payload)["source"] == found


@pytest.mark.parametrize("source", ["a b", "/shop/\N{ROCKET}", "/%zz", "{nothing}", "{queue!r}", '/"', "//[x", ""])
def test_other_sources_are_refused(source: str) -> None:
    with pytest.raises(ConfigError, match=r"pigeon://loft.*source"):
        envelope("cloudevents", source=source)


def test_a_source_that_comes_out_empty_is_permanent() -> None:
    with pytest.raises(Permanent, match="source"):
        envelope("cloudevents", source="{aggregate_id}").wrap(message(aggregate_id=None), DELIVERY)


def test_an_envelope_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="envelope must be none, cloudevents or cloudevents-structured"):
        envelope("cloudevent")
    with pytest.raises(ConfigError, match="envelope must be none or cloudevents-structured"):
        envelope("cloudevents", prefix=None)
    with pytest.raises(ConfigError, match="source= needs envelope="):
        envelope("none", source="/shop")


def test_none_is_the_payload_and_our_headers() -> None:
    outgoing = envelope("none").wrap(message(), DELIVERY)
    assert outgoing.payload == b'{"id": 42}'
    assert not [name for name in outgoing.headers if name.lower().startswith("ce-")]
    assert outgoing.headers["Content-Type"] == "application/json"
