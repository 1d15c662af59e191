"""Whatever a broker hands a consumer is read, or refused with the one error that is promised."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from fencepost.consumers import faststream, http, kafka, mqtt, nats, rabbitmq, redis, sqs
from fencepost.consumers.cloudevent import read_document
from fencepost.consumers.received import Received
from fencepost.errors import InvalidMessage
from lab.fuzz import values
from lab.fuzz.target import ACCEPTED, Case, OneByOne, Result, failed, refused

NAMES = (
    *(
        "Fencepost-Message-Id",
        "fencepost-message-id",
        "Fencepost-Token",
        "Fencepost-Attempt",
        "Fencepost-Sequence",
    ),
    *(
        "Fencepost-Key-Sequence",
        "Fencepost-Event-Type",
        "Fencepost-Key",
        "Fencepost-Replay-Of",
        "Fencepost-Header-x",
    ),
    *(
        "Content-Type",
        "content-type",
        "ce-id",
        "ce-specversion",
        "ce-type",
        "ce_id",
        "ce_specversion",
        "cloudEvents:id",
    ),
    *(
        "cloudEvents_id",
        "cloudEvents:specversion",
        "specversion",
        "id",
        "type",
        "sequence",
        "traceparent",
        "x",
        "payload",
    ),
)
TEXTS = (
    *(
        "1.0",
        "1",
        "0",
        "-1",
        "9223372036854775807",
        "9223372036854775808",
        "9" * 19,
        "9" * 5000,
        "+1",
        "１",
        "1e3",
        "١",
    ),
    *(
        "%",
        "%ff",
        "%ed%a0%80",
        "%00",
        "a%20b",
        "x" * 512,
        "x" * 513,
        "application/cloudevents+json",
        "application/json",
    ),
)
DOCUMENT = {
    "specversion": "1.0", "id": "m", "source": "/s", "type": "t", "partitionkey": "k",
    "sequence": "0000000000000000001", "fencepostattempt": "1", "fenceposttoken": "3",
    "datacontenttype": "application/json", "data": {"a": [1, 1.5, None]},
}  # fmt: skip


def _value(chance: Random) -> Any:
    kind = chance.randrange(9)
    if kind < 5:
        return chance.choice(TEXTS)
    if kind == 5:
        return values.text(chance)
    if kind == 6:
        return values.data(chance, 30)
    return chance.choice((*values.NEVER, None, 7, 1.5, {"a": "b"}, ["a"], True, b"\xff"))


def _headers(chance: Random) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    if values.often(chance, 0.7):
        found.append(("Fencepost-Message-Id", "11111111-1111-1111-1111-111111111111"))
    for _ in range(chance.randrange(6)):
        name = (
            chance.choice(NAMES)
            if values.often(chance, 0.9)
            else chance.choice((_value(chance), values.text(chance)))
        )
        found.append(
            (
                name.encode() if isinstance(name, str) and _encodes(name) and values.often(chance, 0.1) else name,
                _value(chance),
            )
        )
    return found


def _encodes(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _body(chance: Random) -> Any:
    kind = chance.randrange(5)
    if kind == 0:
        return values.data(chance)
    if kind == 1:
        return json.dumps(DOCUMENT).encode()
    if kind == 2:
        return values.damaged(chance, json.dumps(DOCUMENT, ensure_ascii=False).encode())
    if kind == 3:
        odd = {**DOCUMENT, chance.choice(list(DOCUMENT)): values.json_value(chance), "data_base64": "YQ=="}
        odd.pop(chance.choice(list(odd)))
        return json.dumps(odd).encode()
    return chance.choice(
        (
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b'{"id":"a","id":"b"}',
            "text",
            None,
            bytearray(b"{}"),
            memoryview(b"x"),
        )
    )


def _http(case: Case) -> Received:
    return http.received(_hashable(case), case["body"])


def _pairs(case: Case) -> Received:
    return http.received(case["headers"], case["body"])


def _kafka(case: Case) -> Received:
    return kafka.received(SimpleNamespace(headers=lambda: case["headers"], value=lambda: case["body"]))  # type: ignore[arg-type] # what it looks at


def _nats(case: Case) -> Received:
    return nats.received(SimpleNamespace(headers=_hashable(case), data=case["body"]))  # type: ignore[arg-type] # the same


def _rabbitmq(case: Case) -> Received:
    properties = SimpleNamespace(headers=_hashable(case), content_type=case["type"])
    return rabbitmq.received(SimpleNamespace(header=SimpleNamespace(properties=properties), body=case["body"]))


def _aio_pika(case: Case) -> Received:
    return rabbitmq.received(
        SimpleNamespace(ack=None, headers=_hashable(case), content_type=case["type"], body=case["body"])
    )


def _mqtt(case: Case) -> Received:
    properties = SimpleNamespace(UserProperty=case["headers"], ContentType=case["type"])
    return mqtt.received(SimpleNamespace(properties=properties, payload=case["body"]))


def _redis(case: Case) -> Received:
    return redis.received({**_hashable(case), "payload": case["body"]})


def _sqs(case: Case) -> Received:
    body = case["body"].decode("latin-1") if isinstance(case["body"], bytes) else case["body"]
    attributes = {str(name): {"StringValue": value} for name, value in case["headers"]}
    travelled = case["travelled"]
    given = {
        "Fencepost-Headers": {"StringValue": travelled},
        "Fencepost-Encoding": {"StringValue": case["encoding"]},
    }
    return sqs.received({"Body": body, "MessageAttributes": {**attributes, **given}})


def _sns(case: Case) -> Received:
    return sqs.received({"Body": case["travelled"], "MessageAttributes": case["odd"]})


def _faststream(case: Case) -> Received:
    given = {"headers": _hashable(case), "body": case["body"], "content_type": case["type"]}
    return faststream.received(SimpleNamespace(raw_message=case["odd"], **given))


def _document(case: Case) -> Received:
    event = read_document(case["body"] if isinstance(case["body"], bytes) else b"")
    return Received("m", event.body, 1, 1, None, None, None, None, None, event.content_type, event.attributes)


def _hashable(case: Case) -> dict[Any, Any]:
    return {name: value for name, value in case["headers"] if not isinstance(name, dict | list)}


READERS: dict[str, Callable[[Case], Received]] = {
    "http": _http, "pairs": _pairs, "kafka": _kafka, "nats": _nats, "rabbitmq": _rabbitmq, "aio-pika": _aio_pika,
    "mqtt": _mqtt, "redis": _redis, "sqs": _sqs, "sns": _sns, "faststream": _faststream, "document": _document,
}  # fmt: skip


class ReceivedMessages(OneByOne):
    name = "received"
    share = 24
    batch = 500

    def case(self, chance: Random) -> Case:
        good = json.dumps({"Fencepost-Message-Id": "m", "Fencepost-Token": "3", "x": "%41"})
        notice = json.dumps(
            {"Type": "Notification", "Message": "a", "MessageAttributes": {"Fencepost-Headers": {"Value": good}}}
        )
        return {
            "reader": chance.choice(list(READERS)),
            "headers": _headers(chance),
            "body": _body(chance),
            "type": chance.choice(
                (None, "application/json", "application/cloudevents+json", "%ff", _value(chance))
            ),
            "travelled": chance.choice(
                (good, notice, *(values.damaged_text(chance, each) for each in (good, notice)), "[1]", 7)
            ),
            "encoding": chance.choice(("", "base64", "empty", "x", None)),
            "odd": chance.choice(
                (None, [], {}, 7, {"a": 1}, {"Fencepost-Headers": 7}, {"Fencepost-Headers": {"StringValue": good}})
            ),
        }

    def one(self, case: Case) -> Result:
        blank: dict[str, Any] = {
            "headers": [],
            "body": b"",
            "type": None,
            "travelled": "{}",
            "encoding": "",
            "odd": None,
        }
        given = {**blank, **case}
        try:
            found = READERS[given.get("reader", "http")](given)
        except InvalidMessage as error:
            return refused(error) if len(str(error)) < 5_000 else failed("a very long error", len(str(error)))
        return _sound(found)


def _sound(found: Received) -> Result:
    """Check what the types promise: whoever gets this stores it."""
    texts: list[Any] = [found.message_id, found.event_type, found.key, found.replay_of]
    for text in texts:
        if text is not None and (not isinstance(text, str) or not _encodes(text) or "\x00" in text):
            return failed("text that no store can keep", repr(text))
    if not 1 <= len(found.message_id.encode()) <= 512:
        return failed("a message id of no such size", len(found.message_id))
    for number in (found.token, found.attempt, found.sequence, found.key_sequence):
        if number is not None and not (type(number) is int and 0 <= number < 2**63):
            return failed("a number out of range", number)
    if type(found.body) is not bytes:
        return failed("a body that is not bytes", type(found.body))
    if not all(isinstance(each, str) for pair in found.headers.items() for each in pair):
        return failed("a header that is no text", dict(found.headers))
    return ACCEPTED
