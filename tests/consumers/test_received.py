"""What consumers read: everything that our destinations send, and nothing that only looks like it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from email.message import Message as EmailMessage
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost import InvalidMessage
from fencepost.consumers import Received, received_from
from fencepost.consumers.received import HTTP_PREFIX, MQTT_PREFIX
from fencepost.publishers.address import parse_address
from fencepost.publishers.envelope import ENVELOPE_OPTIONS, Envelope, Outgoing
from fencepost.testing import sample_delivery, sample_message
from fencepost.testing.conformance.texts import FREE_TEXTS, PAYLOADS, USER_HEADERS

ID = "019513ec-7c00-7a1f-8000-0123456789ab"
ORIGINAL = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
PREFIXES = {"http, nats": HTTP_PREFIX, "kafka": "ce_", "amqp": "cloudEvents:", "mqtt": MQTT_PREFIX}
DELIVERY = sample_delivery(attempt=3, token=17, replay_of=ORIGINAL)

prefixes = pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
kinds = pytest.mark.parametrize("kind", ["none", "cloudevents", "cloudevents-structured"])


def outgoing(kind: str, prefix: str, **fields: Any) -> Outgoing:
    values: dict[str, Any] = {
        "message_id": UUID(ID),
        "id": 42,
        "ordering_key": "ключ 100%",
        "key_sequence": 5,
        "headers": USER_HEADERS,
    }
    envelope = Envelope(parse_address(f"pigeon://loft?envelope={kind}", options=ENVELOPE_OPTIONS), prefix=prefix)
    return envelope.wrap(sample_message(**values | fields), DELIVERY)


def read(sent: Outgoing, prefix: str, *, without_ours: bool = False) -> Received:
    headers = {
        name: value
        for name, value in sent.headers.items()
        if not (without_ours and name.lower().startswith("fencepost-"))
    }
    return received_from(headers, sent.payload, prefix=prefix)


def hello(**headers: object) -> Mapping[str, object]:
    return {"Fencepost-Message-Id": ID, **{name.replace("_", "-"): value for name, value in headers.items()}}


EXPECTED = {
    "message_id": ID,
    "body": b'{"id": 42}',
    "token": 17,
    "attempt": 3,
    "event_type": "order.created",
    "key": "ключ 100%",
    "key_sequence": 5,
    "sequence": 42,
    "replay_of": ORIGINAL,
    "content_type": "application/json",
}


def fields_of(received: Received) -> dict[str, object]:
    return {name: getattr(received, name) for name in EXPECTED}


# --- what we send ---------------------------------------------------------------------------------------------


@prefixes
@kinds
def test_everything_that_was_sent_is_read(kind: str, prefix: str) -> None:
    received = read(outgoing(kind, prefix), prefix)
    assert fields_of(received) == EXPECTED
    assert received.headers == USER_HEADERS
    assert received.json() == {"id": 42}


@prefixes
@pytest.mark.parametrize("kind", ["cloudevents", "cloudevents-structured"])
def test_the_attributes_of_a_cloudevent_are_enough(kind: str, prefix: str) -> None:
    received = read(outgoing(kind, prefix), prefix, without_ours=True)
    assert fields_of(received) == EXPECTED


@prefixes
def test_the_key_of_a_cloudevent_is_the_aggregate_id_where_there_is_no_ordering_key(prefix: str) -> None:
    sent = outgoing("cloudevents", prefix, ordering_key=None, aggregate_id="42", key_sequence=None)
    assert read(sent, prefix, without_ours=True).key == "42" == read(sent, prefix).key


@prefixes
@kinds
@pytest.mark.parametrize(("payload", "content_type"), PAYLOADS)
def test_bodies_are_byte_identical(payload: bytes, content_type: str, kind: str, prefix: str) -> None:
    received = read(outgoing(kind, prefix, payload=payload, content_type=content_type), prefix)
    assert (received.body, received.content_type) == (payload, content_type)


@prefixes
@pytest.mark.parametrize("text", FREE_TEXTS.values(), ids=FREE_TEXTS)
def test_free_text_in_every_field_is_read_as_it_was(text: str, prefix: str) -> None:
    sent = outgoing("none", prefix, event_type=text, ordering_key=text, headers={"x": text, "Host": text})
    received = read(sent, prefix)
    assert (received.event_type, received.key) == (text, text)
    assert received.headers == {"x": text, "Host": text}, "a renamed header has its name again"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80))
def test_any_text_that_can_be_stored_is_read_as_it_was(text: str) -> None:
    for kind in ("none", "cloudevents-structured"):
        sent = outgoing(kind, HTTP_PREFIX, headers={"x": text}) if kind == "none" else None
        sent = sent or outgoing(kind, HTTP_PREFIX, payload=json.dumps(text).encode())
        received = read(sent, HTTP_PREFIX)
        assert text in (received.headers.get("x"), json.loads(received.body))


@kinds
@pytest.mark.parametrize("payload", [b" [1 , 2]\n", b"1\r\n", b"\t{}"])
def test_blanks_around_json_are_a_part_of_it(kind: str, payload: bytes) -> None:
    assert read(outgoing(kind, HTTP_PREFIX, payload=payload), HTTP_PREFIX).body == payload


@prefixes
@kinds
def test_headers_that_look_like_attributes_change_nothing(kind: str, prefix: str) -> None:
    theirs = prefix.replace(":", "_")  # a colon cannot stand in a header's name
    stored = {f"{theirs}id": "evil", f"{theirs}specversion": "1.0", "fencepost-token": "999"}
    received = read(outgoing(kind, prefix, headers=stored), prefix)
    assert (received.message_id, received.token) == (ID, 17)
    assert received.headers == stored


@prefixes
@kinds
def test_headers_that_are_called_like_attributes_are_read(kind: str, prefix: str) -> None:
    theirs = prefix.replace(":", "_")
    for stored in ({"type": "t", "source": "s", "id": "1"}, {f"{theirs}subject": "x", f"{theirs}time": "%"}):
        assert read(outgoing(kind, prefix, headers=stored), prefix).headers == stored


@kinds
def test_what_was_enqueued_as_a_cloudevent_stays_one(kind: str) -> None:
    theirs = b'{"specversion": "1.0", "id": "theirs", "source": "/x", "type": "t", "data": 1}'
    for payload in (theirs, b"not even JSON"):
        sent = outgoing(kind, HTTP_PREFIX, payload=payload, content_type="application/cloudevents+json")
        received = read(sent, HTTP_PREFIX)
        assert (received.message_id, received.body) == (ID, payload)


# --- how clients hand headers out -----------------------------------------------------------------------------


def test_names_come_in_any_case_and_values_as_text_or_bytes() -> None:
    for headers in (
        {"FENCEPOST-MESSAGE-ID": ID, "fencepost-token": "7"},
        {b"Fencepost-Message-Id": ID.encode(), b"fencepost-token": b"7"},
        [("fencepost-message-id", ID.encode()), ("Fencepost-Token", bytearray(b"7"))],
    ):
        received = received_from(headers, b"")
        assert (received.message_id, received.token) == (ID, 7)


def test_the_headers_of_pythons_own_http_server_are_read() -> None:
    headers = EmailMessage()
    headers["Fencepost-Message-Id"] = ID
    headers["X"] = "1"
    headers["x"] = "2"
    assert received_from(headers, b"").message_id == ID


def test_what_the_transport_added_is_left_out_or_as_it_came() -> None:
    headers = hello(Host="h", User_Agent="a", Content_Length="3", X_Path="/%FF", x_death=[{"count": 1}])
    received = received_from(headers, b"", prefix=HTTP_PREFIX)
    assert received.headers == {"X-Path": "/%FF"}


def test_what_is_not_there_is_none() -> None:
    received = received_from(hello(), b"")
    assert {name for name, value in fields_of(received).items() if value is None} == {
        *("token", "attempt", "event_type", "key", "key_sequence", "sequence", "replay_of", "content_type"),
    }


# --- what is refused ------------------------------------------------------------------------------------------


def refused(match: str, headers: Any, body: Any = b"", **options: Any) -> None:
    with pytest.raises(InvalidMessage, match=match) as refusal:
        received_from(headers, body, **options)
    assert len(str(refusal.value)) < 400


def test_no_id_is_named() -> None:
    for headers in ({}, {"ce-id": "x"}, {"message-id": "x"}, {"Content-Type": "application/json"}):
        refused("neither the header Fencepost-Message-Id nor the id of a CloudEvent", headers, prefix="ce-")


@pytest.mark.parametrize(
    "value", ["", "%00", "a\0b", "x" * 10_240, "\ud800", "%ED%A0%80", b"\xff", None, 7, ["x"], {"a": 1}]
)
def test_an_id_that_is_none_is_named(value: object) -> None:
    refused(r"(?i)fencepost-message-id", {"Fencepost-Message-Id": value})


def test_two_ids_are_refused() -> None:
    refused("came twice", {"Fencepost-Message-Id": "a", "fencepost-message-id": "b"})
    refused("came twice", [("Fencepost-Message-Id", "a"), ("Fencepost-Message-Id", "a")])
    refused("came twice", [("Fencepost-Message-Id", "a"), ("Fencepost-Token", "1"), ("fencepost-token", "2")])
    refused("id of the CloudEvent came twice", {"ce-specversion": "1.0", "ce-id": "a", "CE-ID": "b"}, prefix="ce-")
    amqp = {"cloudEvents:specversion": "1.0", "cloudEvents:id": "a", "cloudEvents_id": "b"}
    refused("id of the CloudEvent came twice", amqp, prefix="cloudEvents:")


@pytest.mark.parametrize("name", ["Token", "Attempt", "Sequence", "Key-Sequence"])
@pytest.mark.parametrize(
    "value", ["", "x", "1.0", "-1", "+1", " 1", "1_0", "0x1", "٣", "9" * 19, "9" * 5_000, "1\n"]
)
def test_a_number_that_is_none_is_named(name: str, value: str) -> None:
    refused(f"Fencepost-{name}", hello(**{f"Fencepost_{name}": value}))


def test_numbers_that_cannot_be_are_refused() -> None:
    assert received_from(hello(**{"Fencepost-Token": "0"}), b"").token == 0
    for name in ("Attempt", "Key-Sequence"):
        refused(f"Fencepost-{name} must be a whole number from 1", hello(**{f"Fencepost_{name}": "0"}))


@pytest.mark.parametrize("name", ["Fencepost-Event-Type", "Fencepost-Key", "Fencepost-Replay-Of"])
def test_texts_that_no_sender_sends_are_refused(name: str) -> None:
    refused(f"{name} holds a NUL", hello(**{name: "a%00b"}))
    refused(f"{name} is not percent-encoded UTF-8", hello(**{name: "%FF"}))
    refused(f"{name} holds a lone surrogate", hello(**{name: "%ED%A0%80"}))


@pytest.mark.parametrize("name", [b"\xff", 7, None, ("a",)])
def test_a_name_that_is_no_text_is_refused(name: object) -> None:
    refused("name of a header is no text", {name: "x"})


@pytest.mark.parametrize("content_type", [b"a/b", 7, True, ["a/b"]])
def test_a_content_type_that_is_no_text_is_refused(content_type: Any) -> None:
    refused("content type", hello(), content_type=content_type)


@pytest.mark.parametrize("body", ["text", None, {"id": 1}, 7])
def test_a_body_that_is_not_bytes_is_refused(body: object) -> None:
    refused("body must be bytes", hello(), body)


DOCUMENTS = {
    b"{": "cannot be read",
    b'{"id": "\xff"}': "cannot be read",
    b"[]": "'{' expected",
    b'{"id": "a"} {}': "more than one JSON value",
    b'{"id": "a", "data": NaN}': "NaN is not JSON",
    b'{"data": ' + b"[" * 200_000: "RecursionError",
    b'{"id": "a", "id": "b"}': "two members 'id'",
    b'{"id": "a", "data": 1, "data_base64": "AA=="}': "two payloads",
    b'{"id": "a", "data_base64": "!"}': "not base64",
    b'{"id": "a", "data_base64": 7}': "not base64",
    b'{"specversion": "1.0", "data": 1}': "no message id",
    b'{"id": null}': "no message id",
    b'{"id": ""}': "must not be empty",
    b'{"id": "\\u0000"}': "NUL",
    b'{"id": "a", "datacontenttype": "text/plain", "data": "\\ud800"}': "lone surrogate",
    b'{7: 1, "id": "a"}': "expected at character 1",
}


@pytest.mark.parametrize(("document", "match"), DOCUMENTS.items(), ids=DOCUMENTS.values())
def test_a_cloudevent_that_cannot_be_read_is_refused(document: bytes, match: str) -> None:
    refused(match, {"content-type": "application/cloudevents+json"}, document)


@pytest.mark.parametrize(
    ("members", "body"),
    [
        ({}, b""),
        ({"data": "text"}, b'"text"'),
        ({"data": "text", "datacontenttype": "text/plain"}, b"text"),
        ({"data": {"a": 1}, "datacontenttype": "text/plain"}, b'{"a": 1}'),
        ({"data": None}, b"null"),
        ({"data_base64": base64.b64encode(b"\xff").decode()}, b"\xff"),
    ],
)
def test_cloudevents_of_others_are_read_as_the_format_says(members: Mapping[str, object], body: bytes) -> None:
    document = json.dumps({"specversion": "1.0", "id": 7, "source": "/x", "type": "t"} | dict(members)).encode()
    received = received_from({}, document, content_type="application/cloudevents+json; charset=UTF-8")
    assert (received.message_id, received.body, received.token) == ("7", body, None)
