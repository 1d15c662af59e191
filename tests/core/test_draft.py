"""What is refused at enqueue, and what is kept byte for byte."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.draft import (
    MAX_AGGREGATE_ID_BYTES,
    MAX_HEADERS_BYTES,
    MAX_PAYLOAD_BYTES,
    Draft,
    JsonText,
    NewMessage,
    draft,
)
from fencepost.core.states import Recovery
from fencepost.errors import InvalidMessage

EMOJI = "\N{GRINNING FACE}"


def drafted(payload: Any = None, event_type: Any = "test", **options: Any) -> Draft:
    return draft(NewMessage(event_type=event_type, payload=payload, **options), uuid4())


circular: list[Any] = []
circular.append(circular)


def nested(levels: int) -> Any:
    value: Any = []
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return value


class Kind(str, Enum):  # noqa: UP042 - the kind of class whose str() is a trap
    """As callers name their events; ``str()`` of a member is its name, not its value."""

    ORDER = "order.created"


class Vague(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else\x00"


BAD_PAYLOADS: dict[str, tuple[Any, str]] = {
    "nul": ({"a": "x\x00y"}, "NUL"),
    "nul in a key": ({"a\x00": 1}, "NUL"),
    "nul deep inside": ([[{"a": ["\x00"]}]], "NUL"),
    "nul behind a backslash": ("\\\x00", "NUL"),
    "lone surrogate": ("\ud800", "surrogate"),
    "nan": (float("nan"), "JSON"),
    "infinity": ([float("inf")], "JSON"),
    "a set": ({1, 2}, "JSON"),
    "a datetime": (datetime(2030, 1, 1, tzinfo=UTC), "JSON"),
    "circular": (circular, "JSON"),
    "deep": (nested(100_000), "limit of 500 levels"),
    "just too deep": (nested(501), "limit of 500 levels"),
    "a tuple key": ({(1, 2): 3}, "JSON"),
    "a giant number": (10**5_000, "JSON"),
    "a giant number as text": (JsonText("1" * 5_000), "JSON"),
    "minus infinity as a key": ({float("-inf"): 1}, "JSON"),
    "bytes inside": ({"a": b"x"}, "JSON"),
    "a lone surrogate in a key": ([{"\udfff": 1}], "surrogate"),
    "halves in the wrong order": ("\ude00\ud83d", "surrogate"),
    "too large": ("x" * MAX_PAYLOAD_BYTES, "limit"),
    "too large in bytes": (b"x" * (MAX_PAYLOAD_BYTES + 1), "limit"),
    "text that is not JSON": (JsonText("{"), "JSON"),
    "text with NaN": (JsonText("NaN"), "JSON"),
    "text with an escaped nul": (JsonText('"\\u0000"'), "NUL"),
    "text with an escaped surrogate": (JsonText('"\\ud800"'), "surrogate"),
    "text with -Infinity": (JsonText('{"a":-Infinity}'), "JSON"),
    "text with an escaped nul in a key": (JsonText('{"a":[{"b\\u0000":1}]}'), "NUL"),
    "text with an escaped nul behind backslashes": (JsonText('"\\\\\\u0000"'), "NUL"),
    "text with a half in a key": (JsonText('{"\\udc00":1}'), "surrogate"),
    "text with a mark of byte order": (JsonText("\ufeff1"), "JSON"),
    "text with a raw line feed": (JsonText('"a\nb"'), "JSON"),
    "text with a comma too many": (JsonText("[1,]"), "JSON"),
    "text with a leading zero": (JsonText("01"), "JSON"),
    "two texts": (JsonText("1 2"), "JSON"),
    "empty text": (JsonText(""), "JSON"),
    "blank text": (JsonText(" \n"), "JSON"),
    "deep text": (JsonText("[" * 100_000 + "]" * 100_000), "limit of 500 levels"),
    "text just too deep": (JsonText("[" * 501 + "]" * 501), "limit of 500 levels"),
}


@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_payloads_that_cannot_be_kept_are_refused(name: str) -> None:
    payload, reason = BAD_PAYLOADS[name]
    with pytest.raises(InvalidMessage, match=reason):
        drafted(payload)


GOOD_PAYLOADS: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    ({}, "{}"),
    ("\\u0000", '"\\\\u0000"'),
    ("\\\\u0000", '"\\\\\\\\u0000"'),
    ({"b": 1, "a": [1.5, "é" + EMOJI]}, '{"b":1,"a":[1.5,"é' + EMOJI + '"]}'),
    (JsonText(' {"b": 1,  "a":1e400, "a": 2}\n'), ' {"b": 1,  "a":1e400, "a": 2}\n'),
    (10**4_000, "1" + "0" * 4_000),
    (0.1, "0.1"),
    (-0.0, "-0.0"),
    (["[" * 9_000], '["' + "[" * 9_000 + '"]'),
    ([['\\\\"' * 3, "{"]] * 600, "[" + ",".join(['["' + '\\\\\\\\\\"' * 3 + '","{"]'] * 600) + "]"),
    (nested(500), json.dumps(nested(500), separators=(",", ":"))),
    (JsonText("[" * 500 + "]" * 500), "[" * 500 + "]" * 500),
    (JsonText('"\\ud83d\\ude00 \\\\u0000"'), '"\\ud83d\\ude00 \\\\u0000"'),
    (Kind.ORDER, '"order.created"'),
    ("\x01\x1f\x7f\u2028", '"\\u0001\\u001f\x7f\u2028"'),
]


@pytest.mark.parametrize(("payload", "text"), GOOD_PAYLOADS, ids=lambda value: repr(value)[:40])
def test_payloads_become_the_text_that_is_stored(payload: Any, text: str) -> None:
    made = drafted(payload)
    assert made.payload == text
    assert made.payload_bytes is None
    assert json.loads(text.replace("1e400", "0")) is not None or text == "null"


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00\xff", bytearray(b"abc"), memoryview(b"abc")],
    ids=lambda value: type(value).__name__ + str(len(value)),
)
def test_bytes_are_kept_with_their_content_type(payload: Any) -> None:
    made = drafted(payload, content_type="application/x-protobuf")
    assert (made.payload, made.payload_bytes) == (None, bytes(payload))
    assert made.content_type == "application/x-protobuf"
    assert drafted(payload).content_type == "application/octet-stream"


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"event_type": ""}, "event_type must not be empty"),
    ({"event_type": None}, "event_type must be text"),
    ({"event_type": "a\x00"}, "event_type holds a NUL"),
    ({"event_type": "\ud800"}, "event_type holds a lone surrogate"),
    ({"event_type": "x" * 256}, "event_type has 256 bytes"),
    ({"event_type": EMOJI * 64}, "event_type has 256 bytes, more than the limit of 255"),
    ({"queue": ""}, "queue must not be empty"),
    ({"queue": "a b"}, "may hold only"),
    ({"queue": "x" * 101}, "queue has 101 bytes"),
    ({"aggregate": "order"}, "must be a pair"),
    ({"aggregate": ("order",)}, "must be a pair"),
    ({"aggregate": ("order", 42)}, "aggregate id must be text"),
    ({"aggregate": ("", "42")}, "aggregate type must not be empty"),
    ({"aggregate": ("order", "x" * 1_025)}, "aggregate id has 1025 bytes"),
    ({"aggregate": ("order", EMOJI * 800)}, "aggregate id has 3200 bytes"),
    ({"dedupe_key": ""}, "dedupe_key must not be empty"),
    ({"dedupe_key": 7}, "dedupe_key must be text"),
    ({"dedupe_key": "x" * 1_025}, "dedupe_key has 1025 bytes"),
    ({"headers": {"a": 1}}, "header 'a' must be text"),
    ({"headers": {1: "a"}}, "a header name must be text"),
    ({"headers": {"": "a"}}, "a header name must not be empty"),
    ({"headers": {"a": "\x00"}}, "NUL"),
    ({"headers": {"a": "\udfff"}}, "surrogate"),
    ({"headers": [("a", "b")]}, "must be a mapping"),
    ({"headers": []}, "must be a mapping"),
    ({"headers": ""}, "must be a mapping"),
    ({"headers": {"a": None}}, "header 'a' must be text"),
    ({"headers": {"a": b"b"}}, "header 'a' must be text"),
    ({"headers": {"a\x00": "b"}}, "a header name holds a NUL"),
    ({"headers": {EMOJI * 3: EMOJI * (MAX_HEADERS_BYTES // 4)}}, "headers have"),
    ({"headers": {"a": "x" * MAX_HEADERS_BYTES}}, "headers have"),
    ({"delay": 5}, "must be a datetime.timedelta"),
    ({"delay": -timedelta(microseconds=1)}, "between 0"),
    ({"delay": timedelta.max}, "between 0"),
    ({"available_at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - the very fault under test
    ({"available_at": "2030-01-01"}, "must be a datetime"),
    ({"available_at": datetime(9000, 1, 1, tzinfo=UTC)}, "between 1900 and 9000"),
    ({"available_at": datetime(1, 1, 1, tzinfo=UTC)}, "between 1900 and 9000"),
    ({"available_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": timedelta(1)}, "not both"),
    ({"recovery": "maybe"}, "recovery must be one of 'auto', 'manual', 'verify'"),
    ({"payload": b"", "content_type": "a\r\nb"}, "printable ASCII"),
    ({"payload": b"", "content_type": "caf\u00e9"}, "printable ASCII"),
    ({"payload": b"", "content_type": "x" * 256}, "content_type has 256 bytes"),
    ({"payload": b"", "content_type": ""}, "content_type must not be empty"),
    ({"content_type": ""}, "content_type must not be empty"),
    ({"content_type": 7}, "content_type must be text"),
    ({"ordered": 1}, r"ordered must be True or False, not 1"),
    ({"ordered": True}, r"ordered=True needs aggregate=(type, id\), or an ordering_key instead"),
    ({"ordering_key": ""}, "ordering_key must not be empty"),
    ({"ordering_key": "", "ordered": True, "aggregate": ("a", "b")}, "ordering_key must not be empty"),
    ({"ordering_key": 7}, "ordering_key must be text, not int"),
    ({"ordering_key": "a\x00"}, "ordering_key holds a NUL"),
    ({"ordering_key": "\ud800"}, "ordering_key holds a lone surrogate"),
    ({"ordering_key": EMOJI * 512 + "x"}, "ordering_key has 2049 bytes, more than the limit of 2048"),
    ({"ordered": True, "aggregate": ("t", "\x01" * 400)}, "ordering_key has 2408 bytes"),
    ({"recovery": None}, "recovery must be"),
    ({"queue": "a\n"}, "may hold only"),
    ({"queue": "\u00e9"}, "may hold only"),
    ({"aggregate": ["order", "42"]}, "must be a pair"),
    ({"aggregate": ("order", "\x00")}, "aggregate id holds a NUL"),
    ({"dedupe_key": EMOJI * 257}, "dedupe_key has 1028 bytes"),
    ({"delay": timedelta(days=365_000, microseconds=1)}, "between 0"),
    ({"available_at": datetime(8999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2)))}, "between 1900 and 9000"),
    ({"available_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))}, "between 1900 and 9000"),
    ({"available_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))}, "between 1900 and 9000"),
]


@pytest.mark.parametrize(("options", "reason"), BAD_FIELDS, ids=lambda value: str(value)[:60])
def test_fields_that_cannot_be_kept_are_refused_by_name_and_limit(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason.replace("(", r"\(")):
        drafted(**options)


def test_the_longest_of_everything_is_accepted() -> None:
    made = drafted(
        "x" * (MAX_PAYLOAD_BYTES - 2),
        event_type="x" * 255,
        queue="q" * 100,
        aggregate=("t" * 255, "i" * MAX_AGGREGATE_ID_BYTES),
        dedupe_key="d" * 1_024,
        delay=timedelta(days=365_000),
    )
    assert made.aggregate_id == "i" * MAX_AGGREGATE_ID_BYTES


@pytest.mark.parametrize("value", ["it's", 'a"b', "a\\b", "a\nb", EMOJI, "\u202e", "e\u0301", "\u00e9", "A", "a "])
def test_free_text_is_kept_as_it_is(value: str) -> None:
    made = drafted(event_type=value, aggregate=(value, value), dedupe_key=value, headers={value: value})
    assert (made.event_type, made.aggregate_type, made.aggregate_id, made.dedupe_key) == (value,) * 4
    assert json.loads(made.headers) == {value: value}


def test_text_of_a_callers_own_class_is_taken_for_its_characters() -> None:
    made = drafted(event_type=Kind.ORDER, headers={Kind.ORDER: Kind.ORDER}, dedupe_key=Vague("k"))
    assert (made.event_type, made.dedupe_key) == ("order.created", "k")
    assert type(made.event_type) is str
    assert made.headers == '{"order.created":"order.created"}'
    assert drafted(aggregate=(Kind.ORDER, Vague("42"))).aggregate_id == "42"
    assert drafted(recovery=Recovery.MANUAL).recovery is Recovery.MANUAL


def test_an_instant_travels_in_utc() -> None:
    made = drafted(available_at=datetime(2030, 1, 1, 3, tzinfo=timezone(timedelta(hours=5))))
    assert made.available_at == "2029-12-31T22:00:00+00:00"


def test_a_message_id_of_the_callers_own_is_kept_and_checked() -> None:
    own = UUID(int=7)
    assert draft(NewMessage(event_type="t", payload=1), own).message_id == own
    with pytest.raises(InvalidMessage, match="message_id"):
        draft(NewMessage(event_type="t", payload=1), "7")  # type: ignore[arg-type]  # the very fault under test


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)), inner),
    max_leaves=20,
)


@given(json_values)
def test_any_value_is_refused_or_becomes_text_that_every_store_can_hold(value: Any) -> None:
    try:
        made = drafted(value)
    except InvalidMessage:
        return
    assert made.payload is not None
    assert "\x00" not in made.payload
    assert json.loads(made.payload.encode("utf-8")) == value


# --- ordering keys ---------------------------------------------------------------------------------------


def test_the_default_key_is_the_json_array_of_type_and_id() -> None:
    assert drafted(aggregate=("order", "42"), ordered=True).ordering_key == '["order","42"]'
    assert drafted(aggregate=("a", 'é"\\'), ordered=True).ordering_key == '["a","é\\"\\\\"]'


def test_without_being_asked_nothing_is_ordered() -> None:
    assert drafted(aggregate=("order", "42")).ordering_key is None
    assert drafted().ordering_key is None


PAIRS = [
    ("a", "b:c"), ("a:b", "c"), ("a", "b"), ("b", "a"), ("A", "b"), ("a", "b "), ("a ", "b"), ("a", '","b'),
    ("a,b", "c"), ('a","b', "c"), ("a", 'b","c'), ("a\\", "b"), ("a", "\\b"),
]  # fmt: skip


def test_no_two_aggregates_share_a_key() -> None:
    keys = {drafted(aggregate=pair, ordered=True).ordering_key for pair in PAIRS}
    assert len(keys) == len(PAIRS)


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"ordered": True, "aggregate": ("order", "42")}])
def test_a_key_of_the_callers_own_comes_first_and_is_kept_as_it_is(options: dict[str, Any]) -> None:
    for key in ("k", " K ", "e\u0301", EMOJI * 512, "[1,2]"):
        assert drafted(ordering_key=key, **options).ordering_key == key
