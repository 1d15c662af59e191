"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cli.settings.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("5m", 300),
        ("1h30m", 5_400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("250ms", 0.25),
        ("1m30s500ms", 90.5),
        ("10", 10),
        ("0.5", 0.5),
        ("1.5h", 5_400),
        ("0", 0),
        (" 10s ", 10),
    ],
)
def test_reads(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "10 s",
        "-5s",
        "+5s",
        "5x",
        "30m1h",
        "5s5s",
        "1e3",
        "nan",
        "inf",
        "٣s",
        "5s;",
        "1h 30m",
        "1,5s",
    ],
)
def test_refuses_and_says_what_it_expects(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a duration such as 10s, 5m, 1h30m"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["999999999999d", "101" + "0" * 9, "9" * 12])
def test_refuses_what_no_database_could_hold(text: str) -> None:
    with pytest.raises(ValueError, match="below a hundred years"):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_000)))
def test_writes_what_it_reads(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


def test_writes_the_way_people_do() -> None:
    assert format_duration(timedelta(minutes=90)) == "1h30m"
    assert format_duration(timedelta(0)) == "0s"
    assert format_duration(timedelta(milliseconds=250)) == "250ms"
