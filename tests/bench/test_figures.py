"""The small arithmetic under a report."""

from __future__ import annotations

import math

import pytest

from fencepost.bench.figures import at_least, at_most, percentile, ratio, short


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (1, 1), (50, 5), (51, 6), (99, 10), (100, 10)])
def test_percentiles_are_values_that_were_measured(percent: float, expected: float) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == expected


def test_the_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.5], 50) == percentile([7.5], 99) == 7.5


def test_a_ratio_to_nothing_is_infinite_and_misses_its_limit() -> None:
    assert ratio(3, 2) == 1.5
    assert math.isinf(ratio(3, 0))
    assert not at_most("x", ratio(3, 0), 2).held


def test_verdicts() -> None:
    assert at_least("x", 0.9, 0.9).verdict == "held"
    assert at_least("x", 0.899, 0.9).verdict == "MISSED"
    assert at_most("x", 2.0, 2.0).verdict == "held"
    assert at_most("x", 2.001, 2.0).verdict == "MISSED"


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0"), (7, "7"), (1_000, "1 k"), (10_000, "10 k"), (2_500, "2.5 k"), (1_234, "1,234"), (2_000_000, "2 M")],
)
def test_round_numbers_are_short(number: int, expected: str) -> None:
    assert short(number) == expected
