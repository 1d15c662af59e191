"""Which ticks are due: every plan of looks, crashes and steps of the clock enqueues each instant once at most."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.ticks import LARGEST_STEP, MISSED_AFTER, CatchUp, Due, due

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def every(seconds: int) -> object:
    """Ticks at whole multiples of so many seconds around noon."""

    def after(instant: datetime) -> Iterator[datetime]:
        number = (instant - NOON) // timedelta(seconds=seconds) + 1
        while True:
            yield at(number * seconds)
            number += 1

    return after


def of(*seconds: int) -> object:
    """These ticks and no other."""
    return lambda instant: (at(each) for each in sorted(set(seconds)) if at(each) > instant)


def asked(after: object, last: float, now: float, catch_up: str = "last") -> Due:
    return due(after, at(last), at(now), CatchUp(catch_up))  # type: ignore[arg-type] # made above


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_a_tick_is_due_from_its_instant_on_and_never_again(catch_up: str) -> None:
    after = of(10)
    assert asked(after, 0, 9.999, catch_up) == Due((), at(0))
    assert asked(after, 0, 10, catch_up).ticks == (at(10),)
    assert asked(after, 9.999, 10.5, catch_up) == Due((at(10),), at(10))
    assert asked(after, 10, 11, catch_up) == Due((), at(10))


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_a_clock_that_was_stepped_back_brings_nothing(catch_up: str) -> None:
    assert asked(every(1), 100, 40, catch_up) == Due((), at(100))


@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_what_is_late_by_less_than_a_minute_is_not_missed(catch_up: str) -> None:
    found = asked(every(1), 0, 59, catch_up)
    assert found.ticks == tuple(at(n) for n in range(1, 60))
    assert not found.has_more


def test_of_missed_ticks_the_last_one_is_enqueued() -> None:
    assert asked(of(10, 20, 30), 0, 500) == Due((at(30),), at(30))


def test_no_missed_one_is_where_a_younger_one_is_due() -> None:
    assert asked(of(10, 20, 480), 0, 500) == Due((at(480),), at(480))


def test_none_of_the_missed_ones_where_none_is_wanted_and_they_are_behind_us() -> None:
    assert asked(of(10, 20, 30), 0, 500, "none") == Due((), at(30))
    assert asked(of(10, 20, 480), 0, 500, "none") == Due((at(480),), at(480))


def test_all_of_them_a_bounded_step_at_a_time() -> None:
    first = asked(every(1), 0, 250, "all")
    assert (len(first.ticks), first.last_tick, first.has_more) == (LARGEST_STEP, at(100), True)
    last = asked(every(1), 200, 250, "all")
    assert (len(last.ticks), last.last_tick, last.has_more) == (50, at(250), False)


def test_a_schedule_without_any_tick() -> None:
    for catch_up in CatchUp:
        assert asked(of(), 0, 1e6, catch_up) == Due((), at(0))


ticks = st.sets(st.integers(-1_000, 100_000), max_size=40)
instants = st.integers(-1_000_000, 100_000_000).map(lambda milliseconds: milliseconds / 1_000)


@given(ticks, instants, instants)
def test_what_is_due_is_what_a_walk_through_all_of_them_finds(
    given_ticks: set[int], last: float, now: float
) -> None:
    after = of(*given_ticks)
    between = [at(each) for each in sorted(given_ticks) if at(last) < at(each) <= at(now)]
    late = [each for each in between if each > at(now) - MISSED_AFTER]
    assert list(asked(after, last, now, "all").ticks) == between
    assert list(asked(after, last, now, "none").ticks) == late
    assert list(asked(after, last, now, "last").ticks) == (late or between[-1:])
    for catch_up in CatchUp:
        assert asked(after, last, now, catch_up).last_tick == (between[-1] if between else at(last))


@given(ticks, st.lists(instants, max_size=30), st.sampled_from(CatchUp))
def test_no_instant_comes_twice_however_the_clock_jumps(
    given_ticks: set[int], looks: list[float], catch_up: CatchUp
) -> None:
    after, last_tick, enqueued = of(*given_ticks), at(0), list[datetime]()
    for now in looks:
        found = due(after, last_tick, at(now), catch_up)  # type: ignore[arg-type] # made above
        assert found.last_tick >= last_tick
        enqueued += found.ticks
        last_tick = found.last_tick
    assert enqueued == sorted(set(enqueued))
    assert all(NOON < each <= max(map(at, looks)) for each in enqueued)


@given(st.integers(1, 50), st.lists(st.integers(1, 59), max_size=30), st.sampled_from(CatchUp))
def test_none_is_left_out_while_somebody_comes_by_every_minute(
    seconds: int, pauses: list[int], catch_up: CatchUp
) -> None:
    after, last_tick, now, enqueued = every(seconds), NOON, NOON, list[datetime]()
    for pause in pauses:
        now += pause * SECOND
        found = due(after, last_tick, now, catch_up)  # type: ignore[arg-type] # made above
        enqueued += found.ticks
        last_tick = found.last_tick
    assert enqueued == [at(n) for n in range(seconds, sum(pauses) + 1, seconds)]
