"""Full jitter, for any attempt number."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.backoff import Backoff

BACKOFF = Backoff(timedelta(seconds=1), timedelta(seconds=300))


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 1), (1, 2), (2, 4), (8, 256), (9, 300), (64, 300), (1_024, 300), (5_000, 300)]
)
def test_the_window_doubles_up_to_its_cap(attempts: int, seconds: int) -> None:
    assert BACKOFF.window(attempts) == timedelta(seconds=seconds)


def test_a_count_below_zero_is_taken_for_zero() -> None:
    assert BACKOFF.window(-7) == timedelta(seconds=1)


@given(
    attempts=st.integers(-(10**9), 10**9),
    fraction=st.floats(0, 1, exclude_max=True),
    base=st.timedeltas(timedelta(microseconds=1), timedelta(days=1)),
    cap=st.timedeltas(timedelta(days=1), timedelta(days=365)),
)
def test_a_delay_always_lies_between_zero_and_the_cap(
    attempts: int, fraction: float, base: timedelta, cap: timedelta
) -> None:
    assert timedelta(0) <= Backoff(base, cap).delay(attempts, fraction) <= cap


def test_the_fraction_is_the_place_in_the_window() -> None:
    assert BACKOFF.delay(3, 0.0) == timedelta(0)
    assert BACKOFF.delay(3, 0.25) == timedelta(seconds=2)
    assert BACKOFF.delay(3, 7.0) == timedelta(seconds=8)
