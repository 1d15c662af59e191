"""What a repeat is, and what is refused before any database work."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost import (
    Acceptance,
    ConfigError,
    DispatcherSettings,
    Inbox,
    InvalidMessage,
    MessageConflict,
    SequenceGap,
)
from fencepost.core.inbox import Body, InboxEntry, checked_key, entry, judged_sequence
from fencepost.core.number import MAX_NUMBER, checked_number

HASH = hashlib.sha256(b"body").digest()


def repeat(fence: int | None = None, digest: bytes | None = None) -> InboxEntry:
    return InboxEntry("billing", "m1", fence, digest)


def test_only_what_is_accepted_is_true() -> None:
    assert [bool(each) for each in Acceptance] == [True, False, False]


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (None, None, Acceptance.REPEAT),
        (5, None, Acceptance.REPEAT),
        (None, 5, Acceptance.REPEAT),
        (5, 5, Acceptance.REPEAT),
        (5, 6, Acceptance.REPEAT),
        (5, 4, Acceptance.STALE),
        (1, 0, Acceptance.STALE),
    ],
)
def test_an_older_token_is_stale(before: int | None, now: int | None, found: Acceptance) -> None:
    assert repeat(now).judged(before, None) is found


def test_another_body_is_reported_where_both_are_known() -> None:
    assert repeat(digest=HASH).judged(None, HASH) is Acceptance.REPEAT
    assert repeat(digest=HASH).judged(None, None) is Acceptance.REPEAT
    assert repeat().judged(None, HASH) is Acceptance.REPEAT
    with pytest.raises(MessageConflict, match=r"'billing' has accepted message 'm1' with another body"):
        repeat(digest=b"x" * 32).judged(None, HASH)


@pytest.mark.parametrize(
    ("sequence", "last", "found"),
    [
        (1, None, Acceptance.ACCEPTED),
        (7, None, Acceptance.ACCEPTED),
        (8, 7, Acceptance.ACCEPTED),
        (7, 7, Acceptance.REPEAT),
        (1, 7, Acceptance.REPEAT),
    ],
)
@pytest.mark.parametrize("allow_gap", [False, True])
def test_numbers_come_one_after_another(
    sequence: int, last: int | None, found: Acceptance, allow_gap: bool
) -> None:
    assert judged_sequence("billing", "k", sequence, last, allow_gap=allow_gap) is found


def test_a_gap_is_reported_unless_it_is_allowed() -> None:
    with pytest.raises(SequenceGap, match=r"expected number 8 of key 'k' and got 11: 3 in between") as found:
        judged_sequence("billing", "k", 11, 7, allow_gap=False)
    assert (found.value.expected, found.value.received, found.value.key) == (8, 11, "k")
    assert judged_sequence("billing", "k", 11, 7, allow_gap=True) is Acceptance.ACCEPTED
    with pytest.raises(SequenceGap):
        judged_sequence("billing", "k", 9, 7, allow_gap=False)  # a single one is missing


def test_an_entry_holds_the_id_as_text_and_the_digest_of_the_body() -> None:
    made = entry("billing", UUID(int=1), 3, memoryview(b"body"))
    assert made == InboxEntry("billing", "00000000-0000-0000-0000-000000000001", 3, HASH)


@pytest.mark.parametrize(
    "body",
    [bytearray(b"body"), memoryview(b"xbodyx")[1:5], memoryview(b"b.o.d.y.")[::2], memoryview(b"ydob")[::-1]],
)
def test_any_view_of_the_same_bytes_has_their_digest(body: Body) -> None:
    assert entry("billing", "m", None, body).digest == HASH


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("", None, None), "message_id must not be empty"),
        ((7, None, None), "message_id must be text, not int"),
        (("a\0b", None, None), "message_id holds a NUL character"),
        (("\ud800", None, None), "message_id holds a lone surrogate"),
        (("é" * 257, None, None), "message_id has 514 bytes, more than the limit of 512"),
        (("m", -1, None), "fence must be a whole number from 0"),
        (("m", True, None), "fence must be a whole number"),
        (("m", 1.5, None), "fence must be a whole number"),
        (("m", MAX_NUMBER + 1, None), "fence must be a whole number"),
        (("m", None, "text"), "body must be bytes, as they were received, not str"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[Any, Any, Any], said: str) -> None:
    with pytest.raises(InvalidMessage, match=said):
        entry("billing", *arguments)


def test_sequence_numbers_begin_at_one() -> None:
    assert checked_number("sequence", 1, least=1) == 1
    with pytest.raises(InvalidMessage, match="sequence must be a whole number from 1"):
        checked_number("sequence", 0, least=1)


@pytest.mark.parametrize("consumer", ["", "a\0", "x" * 101, 5])
def test_a_consumer_has_a_name(consumer: Any) -> None:
    with pytest.raises(ConfigError, match="consumer"):
        Inbox(consumer)


def test_a_horizon_is_above_zero() -> None:
    with pytest.raises(ConfigError, match="horizon must be above 0"):
        Inbox("billing", horizon=timedelta(0))


def test_the_horizon_is_that_of_the_sender_s_settings() -> None:
    second = timedelta(seconds=1)
    settings = DispatcherSettings(
        owner="w",
        max_attempts=3,
        publish_timeout=2 * second,
        lease=10 * second,
        backoff_cap=100 * second,
        poll_interval=second,
        outage_budget=1_000 * second,
        breaker_cap=10_000 * second,
    )
    assert settings.redelivery_horizon(waiting=timedelta(0)) == (3 * 113 + 11_000) * second
    longer = settings.redelivery_horizon(waiting=100_000 * second, broker=1_000_000 * second)
    assert longer == (3 * 113 + 1_111_000) * second
    assert Inbox("billing").horizon == DispatcherSettings().redelivery_horizon() > timedelta(days=2)


def test_a_key_is_text_of_at_most_2_kib() -> None:
    assert checked_key("é" * 1024) == "é" * 1024
    for key in ("", "é" * 1025, 7, "a\0", "\ud800"):
        with pytest.raises(InvalidMessage, match="key"):
            checked_key(key)
