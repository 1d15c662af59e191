"""Full jitter, for any attempt number."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.backoff import Backoff

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [(0, 1), (1, 2), (2, 4), (8, 256), (-1, 1), (-5_000, 1)]
    + [(many, 300) for many in (9, 12, 63, 64, 1_023, 1_024, 5_000, 10**9)],
)
def test_the_window_doubles_up_to_its_cap(attempts: int, seconds: int) -> None:
    """Also past 1,024, where ``2.0**attempts`` overflows, and below 0."""
    assert Backoff().window(attempts) == timedelta(seconds=seconds)


def test_a_base_of_zero_means_no_delay() -> None:
    assert Backoff(base=timedelta(0)).window(5_000) == Backoff().cap
    assert Backoff(base=timedelta(0)).window(12) == timedelta(0)


def test_a_base_above_the_cap_is_cut() -> None:
    assert Backoff(base=timedelta(hours=1), cap=SECOND).window(0) == SECOND


@pytest.mark.parametrize(("fraction", "seconds"), [(0.0, 0), (0.25, 1), (0.5, 2), (1.0, 4), (-3.0, 0), (7.5, 4)])
def test_the_delay_is_a_fraction_of_the_window_and_never_outside_of_it(fraction: float, seconds: float) -> None:
    assert Backoff().delay(2, fraction) == timedelta(seconds=seconds)


def test_what_is_not_a_number_is_no_delay() -> None:
    assert Backoff().delay(2, float("nan")) == timedelta(0)
    assert Backoff().delay(2, float("inf")) == timedelta(seconds=4)


@given(
    base=st.timedeltas(timedelta(0), timedelta(days=1)),
    cap=st.timedeltas(timedelta(0), timedelta.max),
    attempts=st.integers(-(10**6), 10**6),
    fraction=st.floats(0, 1),
)
def test_any_delay_lies_within_the_cap_and_longer_attempts_never_shorten_the_window(
    base: timedelta, cap: timedelta, attempts: int, fraction: float
) -> None:
    backoff = Backoff(base, cap)
    assert timedelta(0) <= backoff.delay(attempts, fraction) <= backoff.window(attempts) <= cap
    if base > timedelta(0):
        assert backoff.window(attempts) <= backoff.window(attempts + 1)
