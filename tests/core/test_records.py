"""What travels: messages, instants, figures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.records import Message, QueueStats, Stats, instant


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
