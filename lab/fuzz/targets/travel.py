"""What is sent to each destination and read back by its consumer is what was enqueued."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import mqtt5

from fencepost.consumers import http, kafka, mqtt, nats, rabbitmq, redis, sqs
from fencepost.consumers.received import Received
from fencepost.core.records import Message
from fencepost.errors import Permanent
from fencepost.publishers.address import parse_address
from fencepost.publishers.aws.sqs import SqsPublisher
from fencepost.publishers.base import Delivery
from fencepost.publishers.envelope import ENVELOPE_OPTIONS, Envelope
from fencepost.publishers.headers import is_reserved
from fencepost.publishers.kafka.publisher import KafkaPublisher
from fencepost.publishers.mqtt import packets
from fencepost.publishers.mqtt.publisher import MqttPublisher
from fencepost.publishers.nats.publisher import NatsPublisher
from fencepost.publishers.rabbitmq.publisher import RabbitPublisher
from fencepost.publishers.redis.stream import OPTIONS as REDIS_OPTIONS
from fencepost.publishers.redis.stream import Writer
from fencepost.testing import sample_delivery, sample_message
from lab.fuzz import messages, values
from lab.fuzz.target import ACCEPTED, Case, OneByOne, Result, against_case, failed, refused

TRACE_NAMES = ("traceparent", "tracestate", "baggage")
RENAMED = (
    "content-length",
    "Host",
    "fencepost-token",
    "ce-id",
    "ce_id",
    "cloudEvents:id",
    "id",
    "type",
    "payload",
    "status",
)


@dataclass(frozen=True)
class Wire:
    """A way to a destination and back.

    Args:
        sent: makes what travels of a message.
        read: what a consumer makes of it.
        folds: its headers have no case.
    """

    sent: Callable[[Message, Delivery], Any]
    read: Callable[[Any], Received]
    folds: bool = False


def _http(envelope: str) -> Wire:
    wrapper = Envelope(parse_address(f"http://x/{_query(envelope)}", options=ENVELOPE_OPTIONS), prefix="ce-")

    def sent(message: Message, delivery: Delivery) -> Any:
        outgoing = wrapper.wrap(message, delivery)
        added = {"host": "x", "content-length": str(len(outgoing.payload)), "accept-encoding": "identity"}
        return {**added, **{name.lower(): value for name, value in outgoing.headers.items()}}, outgoing.payload

    return Wire(sent, lambda wire: http.received(*wire), folds=True)


def _nats(envelope: str) -> Wire:
    publisher = NatsPublisher(f"nats://x{_query(envelope)}")

    def sent(message: Message, delivery: Delivery) -> Any:
        request = publisher._request(message, delivery)  # noqa: SLF001 - what goes out, without a server
        return SimpleNamespace(headers=dict(request.headers), data=request.payload)

    return Wire(sent, nats.received)


def _kafka(envelope: str) -> Wire:
    publisher = KafkaPublisher(f"kafka://x{_query(envelope)}")

    def sent(message: Message, delivery: Delivery) -> Any:
        record = publisher._record(message, delivery)  # noqa: SLF001 - what goes out, without a server
        pairs = [(name, str(value).encode()) for name, value in record.headers]
        return SimpleNamespace(headers=lambda: pairs, value=lambda: record.value)

    return Wire(sent, kafka.received)


def _rabbitmq(envelope: str) -> Wire:
    publisher = RabbitPublisher(f"amqp://x{_query(envelope)}")

    def sent(message: Message, delivery: Delivery) -> Any:
        letter = publisher._letter(message, delivery)  # noqa: SLF001 - what goes out, without a server
        return SimpleNamespace(header=SimpleNamespace(properties=letter.properties), body=letter.body)

    return Wire(sent, rabbitmq.received)


def _mqtt(envelope: str) -> Wire:
    publisher = MqttPublisher(f"mqtt://x{_query(envelope)}")

    def sent(message: Message, delivery: Delivery) -> Any:
        letter = publisher._letter(message, delivery)  # noqa: SLF001 - what goes out, without a server
        packet = packets.publish(letter.topic, 1, letter.payload, letter.content_type, letter.headers)
        return mqtt5.read(memoryview(packet))[0]

    return Wire(sent, mqtt.received)


def _redis(envelope: str) -> Wire:
    writer = Writer(parse_address(f"redis://x{_query(envelope)}", options=REDIS_OPTIONS))

    def sent(message: Message, delivery: Delivery) -> Any:
        words = writer.entry(0, message, delivery).words
        words = words[words.index("*") + 1 :]
        pairs = zip(words[::2], words[1::2], strict=True)
        return {
            str(name).encode(): value if isinstance(value, bytes) else str(value).encode() for name, value in pairs
        }

    return Wire(sent, redis.received)


def _sqs(envelope: str, *, wrapped: bool) -> Wire:
    publisher = SqsPublisher(f"sqs://x/q{_query(envelope)}")

    def sent(message: Message, delivery: Delivery) -> Any:
        entry = publisher._entry(0, message, delivery)  # noqa: SLF001 - what goes out, without a server
        body, attributes = entry.parameters["MessageBody"], entry.parameters["MessageAttributes"]
        if not wrapped:
            return {"Body": body, "MessageAttributes": attributes}
        given = {name: {"Type": "String", "Value": one["StringValue"]} for name, one in attributes.items()}
        return {"Body": json.dumps({"Type": "Notification", "Message": body, "MessageAttributes": given})}

    return Wire(sent, sqs.received)


def _query(envelope: str) -> str:
    return f"?envelope={envelope}" if envelope != "none" else ""


_ALL = ("none", "cloudevents", "cloudevents-structured")
_NO_BINDING = ("none", "cloudevents-structured")


def wires() -> Mapping[str, Wire]:
    """Return every way, by name."""
    makers: dict[str, tuple[Callable[[str], Wire], tuple[str, ...]]] = {
        "http": (_http, _ALL),
        "nats": (_nats, _ALL),
        "kafka": (_kafka, _ALL),
        "rabbitmq": (_rabbitmq, _ALL),
        "mqtt": (_mqtt, _ALL),
        "redis": (_redis, _NO_BINDING),
        "sqs": (lambda envelope: _sqs(envelope, wrapped=False), _NO_BINDING),
        "sns": (lambda envelope: _sqs(envelope, wrapped=True), _NO_BINDING),
    }
    return {f"{name} {kind}": make(kind) for name, (make, kinds) in makers.items() for kind in kinds}


def some_message(chance: Random) -> dict[str, Any]:
    """Return the fields of a message that an enqueue would take."""
    is_bytes = values.often(chance, 0.4)
    payload = (
        values.data(chance) if is_bytes else json.dumps(values.json_value(chance), ensure_ascii=False).encode()
    )
    if not is_bytes and values.often(chance, 0.3):
        payload = messages.json_text(chance).encode()
    kinds = (
        "text/plain",
        "application/json",
        "application/json; charset=utf-8",
        "application/cloudevents+json",
        "a;b c",
        "~%41",
    )
    return {
        "event_type": values.some_text(chance),
        "payload": payload,
        "id": chance.choice((1, 2**63 - 1, chance.randrange(1, 10**9))),
        "message_id": UUID(int=chance.getrandbits(128)),
        "aggregate_id": values.some_text(chance) if values.often(chance, 0.5) else None,
        "ordering_key": values.some_text(chance) if values.often(chance, 0.5) else None,
        "content_type": chance.choice(kinds) if is_bytes or values.often(chance, 0.3) else "application/json",
        "headers": _headers(chance),
        "key_sequence": chance.choice((None, 1, 2**63 - 1)),
    }


def _headers(chance: Random) -> dict[str, str]:
    found = {}
    for _ in range(chance.randrange(4)):
        kind = chance.randrange(6)
        if kind == 0:
            found[chance.choice(TRACE_NAMES)] = chance.choice(
                (values.TRACE, "a=%20b", "k=v,x=y", values.text(chance))
            )
        elif kind == 1:
            found[chance.choice(RENAMED)] = values.text(chance)
        elif kind == 2 and values.often(chance, 0.2):
            found[values.some_text(chance)] = values.text(chance)
        elif kind == 3 and values.often(chance, 0.2):
            found["long"] = chance.choice("xé%") * chance.choice((5_000, 16_384, 16_385, 60_000))
        else:
            found[f"x-{chance.choice('abcXYZ')}{chance.randrange(9)}"] = values.text(chance)
    if values.often(chance, 0.1):
        found["replay-of"] = str(UUID(int=chance.getrandbits(128)))
    return found


class Travel(OneByOne):
    name = "travel"
    share = 26
    batch = 500

    def __init__(self) -> None:
        self._wires = wires()

    def case(self, chance: Random) -> Case:
        given = {"token": chance.choice((1, 2**62)), "attempt": chance.randrange(1, 9)}
        return {"wire": chance.choice(list(self._wires)), "message": some_message(chance), "delivery": given}

    def one(self, case: Case) -> Result:
        name = case.get("wire", "http none")
        wire = self._wires[name]
        message, delivery = sample_message(**case.get("message", {})), sample_delivery(**case.get("delivery", {}))
        try:
            sent = wire.sent(message, delivery)
        except Permanent as error:
            if _is_plain(message):
                return against_case("a plain message was refused", error)
            return refused(error)
        return _judged(message, delivery, wire, wire.read(sent))


def _judged(message: Message, delivery: Delivery, wire: Wire, found: Received) -> Result:
    key = message.ordering_key if message.ordering_key is not None else message.aggregate_id
    expected = {
        "message_id": str(message.message_id),
        "body": message.payload,
        "token": delivery.token,
        "attempt": delivery.attempt,
        "event_type": message.event_type,
        "key": key,
        "key_sequence": message.key_sequence,
        "sequence": message.id,
        "replay_of": message.headers.get("replay-of"),
        "content_type": message.content_type,
    }
    for name, wanted in expected.items():
        if getattr(found, name) != wanted:
            return failed(f"another {name}", f"{getattr(found, name)!r:.300} instead of {wanted!r:.300}")
    return _judged_headers(message.headers, found.headers, wire)


def _judged_headers(given: Mapping[str, str], found: Mapping[str, str], wire: Wire) -> Result:
    fold: Callable[[str], str] = str.lower if wire.folds else str
    wanted = {fold(name): text for name, text in given.items() if name.lower() != "replay-of"}
    got = {fold(name): text for name, text in found.items()}
    if len(wanted) < sum(name.lower() != "replay-of" for name in given):
        return ACCEPTED  # two names that differ by case only, where there is no case
    for name, text in wanted.items():
        if name.lower() in TRACE_NAMES and not _travels_as_it_is(text):
            wanted[name] = got.get(name, "lost")  # what is promised of them is their place, not their text
    return ACCEPTED if got == wanted else failed("other headers", f"{got!r:.500} instead of {wanted!r:.500}")


def _travels_as_it_is(text: str) -> bool:
    return text.isascii() and text.isprintable() and text == text.strip(" ")


def _is_plain(message: Message) -> bool:
    """Tell whether nothing about a message could be a reason to refuse it."""
    texts = [message.event_type, message.aggregate_id or "", message.ordering_key or "", message.content_type]
    texts += [text for name, text in message.headers.items() if name in TRACE_NAMES]
    names = [*message.headers]
    is_short = sum(map(len, [*names, *message.headers.values()])) < 1_000 and len(message.payload) < 10_000
    return (
        is_short and all(map(_is_readable, texts)) and all(_is_readable(name) and _is_name(name) for name in names)
    )


def _is_readable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_name(name: str) -> bool:
    return bool(name) and not is_reserved(name) and all(char.isalnum() or char == "-" for char in name)
