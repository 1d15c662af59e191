"""The header mapping: what travels, what is renamed, what is refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import Permanent
from fencepost.publishers import headers as names
from fencepost.publishers.headers import decode_value, encode_value, outgoing_headers
from fencepost.testing import sample_delivery, sample_message

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def sent(stored: Any, **changes: Any) -> dict[str, str]:
    return outgoing_headers(sample_message(headers=stored, **changes), sample_delivery(attempt=2, token=9))


def test_our_own_headers_are_all_there() -> None:
    message = sample_message("order.paid", id=7, ordering_key=None, aggregate_id="42")
    assert outgoing_headers(message, sample_delivery(attempt=2, token=9, replay_of="abc")) == {
        "Fencepost-Message-Id": str(message.message_id),
        "Fencepost-Event-Type": "order.paid",
        "Fencepost-Key": "42",
        "Fencepost-Sequence": "7",
        "Fencepost-Attempt": "2",
        "Fencepost-Token": "9",
        "Fencepost-Replay-Of": "abc",
        "Content-Type": "application/json",
    }


def test_the_number_within_the_key_travels_where_there_is_one() -> None:
    assert sent({}, ordering_key="k", key_sequence=7)["Fencepost-Key-Sequence"] == "7"
    assert "Fencepost-Key-Sequence" not in sent({}, ordering_key="k")
    assert sent({"fencepost-key-sequence": "1"}, key_sequence=7)["Fencepost-Key-Sequence"] == "7"


@pytest.mark.parametrize(
    ("ordering_key", "aggregate_id", "expected"),
    [("k", "a", "k"), (None, "a", "a"), ("", "a", ""), (None, None, None)],
)
def test_the_key_is_the_ordering_key_else_the_aggregate_id(
    ordering_key: str | None, aggregate_id: str | None, expected: str | None
) -> None:
    assert sent({}, ordering_key=ordering_key, aggregate_id=aggregate_id).get(names.KEY) == expected


def test_the_stored_replay_header_travels_under_our_name_only() -> None:
    headers = sent({"replay-of": "abc"})
    assert headers[names.REPLAY_OF] == "abc"
    assert "replay-of" not in headers


@given(texts)
def test_a_value_is_printable_ascii_survives_trimming_and_decodes_to_the_same_text(text: str) -> None:
    value = encode_value(text)
    assert all(" " <= char <= "~" for char in value)
    assert value == value.strip()
    assert decode_value(value) == text
    assert unquote(value) == text, "the documented rule: plain percent-decoding"


@given(texts)
def test_no_text_breaks_out_of_its_header(text: str) -> None:
    headers = sent({"x": text}, event_type=text, ordering_key=text, content_type=text)
    assert all(value.isascii() and value.isprintable() for value in headers.values())


def test_readable_text_stays_readable() -> None:
    assert encode_value('order.created; a="b c"') == 'order.created; a="b c"'


@pytest.mark.parametrize("name", sorted(names.TRACE_HEADERS))
def test_trace_context_keeps_its_percent_signs(name: str) -> None:
    assert sent({name: "a=%20,b=1"})[name] == "a=%20,b=1"
    assert sent({name: "a\r\nb"})[name] == "a%0D%0Ab"


@pytest.mark.parametrize(
    "name",
    [
        "fencepost-token",
        "Fencepost-Message-Id",
        "Content-Length",
        "content-type",
        "Transfer-Encoding",
        "Host",
        "AUTHORIZATION",
        "connection",
        "Proxy-Authorization",
        "Expect",
        "webhook-id",
        "Nats-Rollup",
        "user-agent",
    ],
)
def test_a_reserved_name_is_renamed_never_lost_and_never_obeyed(name: str) -> None:
    plain = sent({})
    headers = sent({name: "evil"})
    assert {key: headers[key] for key in plain if key != names.MESSAGE_ID} == {
        key: value for key, value in plain.items() if key != names.MESSAGE_ID
    }
    assert headers[f"Fencepost-Header-{name}"] == "evil"
    assert name not in headers or name in plain


@pytest.mark.parametrize("name", ["", " ", "a b", "a:b", "a\r\nb", "a\x00", "ключ", "a\n", "x" * 129, "(x)"])
def test_a_bad_name_is_permanent_and_is_named(name: str) -> None:
    with pytest.raises(Permanent) as failure:
        sent({"good": "1", name: "x"})
    assert repr(name[:100])[1:-1] in str(failure.value)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "null"), (1, "1"), (True, "true"), (1.5, "1.5"), ({"a": [1]}, '{"a": [1]}')],
)
def test_other_json_than_text_travels_as_json(value: object, expected: str) -> None:
    assert sent({"x": value})["x"] == expected


def test_a_lone_surrogate_from_a_foreign_producer_does_not_raise() -> None:
    assert decode_value(sent({"x": "\ud800"})["x"]) == "\ud800"


def test_too_long_is_permanent_and_names_the_header() -> None:
    assert sent({"x": "x" * names.MAX_VALUE_CHARS})
    with pytest.raises(Permanent, match="'x' is 16385 bytes"):
        sent({"x": "x" * (names.MAX_VALUE_CHARS + 1)})
    with pytest.raises(Permanent, match="together"):
        sent({f"x{number}": "x" * 10_000 for number in range(7)})
