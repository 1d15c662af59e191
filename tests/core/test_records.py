"""What travels: messages, instants, figures."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.records import Claimed, Message, QueueStats, Stats, instant
from fencepost.core.states import Recovery


def message(payload: bytes = b"1", headers: dict[str, str] | None = None) -> Message:
    return Message(
        id=1,
        message_id=UUID(int=1),
        queue="default",
        event_type="e",
        aggregate_type=None,
        aggregate_id=None,
        ordering_key=None,
        payload=payload,
        content_type="application/json",
        headers=headers or {},
        created_at=instant(0),
    )


@given(st.datetimes(datetime(1900, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001 - bounds
def test_an_instant_survives_as_whole_microseconds(when: datetime) -> None:
    assert instant((when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)) == when


def test_a_payload_is_parsed_on_demand() -> None:
    assert message('{"a":"é🐘"}'.encode()).json() == {"a": "é🐘"}
    with pytest.raises(ValueError, match="Expecting value"):
        message(b"\x00\xff").json()


def test_a_replay_says_of_what() -> None:
    assert message(headers={"replay-of": "0196f5a4"}).replay_of == "0196f5a4"
    assert message().replay_of is None


def test_figures_are_summed_over_queues_and_the_oldest_is_the_oldest_of_all() -> None:
    minute = timedelta(minutes=1)
    stats = Stats(
        queues=(
            QueueStats("a", 1, 2, 0, 4, 1, minute),
            QueueStats("b", 10, 20, 0, 40, 3, 5 * minute),
            QueueStats("c", 0, 0, 0, 1, 0, None),
        ),
        dead_by_outcome={"permanent": 45},
        done=7,
        done_is_capped=False,
    )
    assert [stats.total(each) for each in ("pending", "processing", "dead", "expired")] == [11, 22, 45, 4]
    assert stats.oldest_age == 5 * minute
    assert Stats((), {}, 0, False).oldest_age is None


ROW = (1, str(UUID(int=1)), "default", "e", None, None, None, "1", None, None, "{}", 0, None)


def test_a_stored_message_is_the_same_as_one_that_was_made() -> None:
    stored = Message.stored(ROW)
    assert stored.message_id_text == message().message_id_text == str(UUID(int=1))
    assert (stored.replay_of, stored.message_id) == (None, UUID(int=1))
    for each in fields(Message):
        if each.init:
            assert getattr(stored, each.name) == getattr(message(), each.name), each.name
    assert stored == message()


def test_a_stored_message_of_bytes_and_headers() -> None:
    stored = Message.stored((*ROW[:7], None, memoryview(b"\xff\0"), None, '{"replay-of": "0196f5a4"}', *ROW[11:]))
    assert (stored.payload, stored.content_type) == (b"\xff\0", "application/octet-stream")
    assert (stored.replay_of, stored.headers) == ("0196f5a4", {"replay-of": "0196f5a4"})


@pytest.mark.parametrize("made", [message(), Message.stored(ROW)], ids=["made", "stored"])
def test_what_a_message_has_not_is_an_error(made: Message) -> None:
    with pytest.raises(AttributeError, match="a message has no 'nothing'"):
        getattr(made, "nothing")  # noqa: B009 - mypy knows that there is none


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({"attempt": 1}, False),  # nobody has published it, whatever the token
        ({"attempt": 2}, True),
        ({"attempt": 2, "recovery": Recovery.AUTO}, False),
        ({"attempt": 2, "recovery": Recovery.MANUAL}, False),
    ],
)
def test_a_publisher_is_asked_first_where_an_earlier_attempt_may_have_arrived(
    changes: dict[str, Any], asks: bool
) -> None:
    terms = {"token": 9, "max_attempts": 3, "recovery": Recovery.VERIFY, "lease": timedelta(seconds=60)}
    claimed = Claimed(**{"message": message(), "age_microseconds": 2_500_000, **terms, **changes})
    assert (claimed.is_to_verify, claimed.id, claimed.age) == (asks, 1, timedelta(seconds=2.5))
