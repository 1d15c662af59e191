"""Charts: well-formed files that show every value, and nothing that a viewer would have to fetch or run."""

from __future__ import annotations

import math
from typing import Literal
from xml.etree import ElementTree as ET

import pytest

from fencepost.bench.figures import Chart, Series
from fencepost.bench.svg import WIDTH, draw, label, ticks

SVG = "{http://www.w3.org/2000/svg}"


def chart(
    *series: Series, kind: Literal["line", "bar"] = "line", places: tuple[str, ...] = ("10 k", "1 M")
) -> Chart:
    return Chart("name", "Claims <p50> & p99", "pending messages", "ms", places, series, kind)


def drawn(made: Chart) -> ET.Element:
    return ET.fromstring(draw(made))  # noqa: S314 - our own text


def texts(root: ET.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("kind", ["line", "bar"])
def test_a_chart_says_what_it_shows_in_which_unit(kind: Literal["line", "bar"]) -> None:
    shown = texts(drawn(chart(Series("p50", (3.0, 4.0)), Series("p99", (5.0, 9.0)), kind=kind)))
    assert "Claims <p50> & p99 (ms)" in shown
    assert {"10 k", "1 M", "p50", "p99", "0"} <= set(shown)


def test_a_line_chart_names_its_axis_and_marks_every_value() -> None:
    root = drawn(chart(Series("p50", (3.0, 4.0)), Series("p99", (5.0, None))))
    assert "pending messages" in texts(root)
    assert len(root.findall(f"{SVG}circle")) == 3
    assert len(root.findall(f"{SVG}polyline")) == 2


def test_higher_values_stand_higher() -> None:
    root = drawn(chart(Series("p50", (3.0, 4.0))))
    low, high = (float(each.attrib["cy"]) for each in root.findall(f"{SVG}circle"))
    assert high < low


def test_bars_are_as_long_as_their_values_and_say_them() -> None:
    root = drawn(chart(Series("rate", (1_000.0, 2_000.0)), kind="bar"))
    short_bar, long_bar = (float(each.attrib["width"]) for each in root.findall(f"{SVG}rect"))
    assert long_bar == pytest.approx(2 * short_bar, abs=0.2)
    assert {"1,000", "2,000"} <= set(texts(root))


def test_a_value_below_nothing_is_a_number_without_a_bar() -> None:
    root = drawn(chart(Series("p50", (-0.2, 2.0)), kind="bar"))
    assert float(root.findall(f"{SVG}rect")[0].attrib["width"]) == 0
    assert "-0.2" in texts(root)


@pytest.mark.parametrize("kind", ["line", "bar"])
@pytest.mark.parametrize("values", [(), (0.0,), (math.inf, 1.0), (None, None)])
def test_odd_values_make_no_odd_file(kind: Literal["line", "bar"], values: tuple[float | None, ...]) -> None:
    text = draw(chart(Series("x", values), kind=kind))
    assert "nan" not in text
    assert "inf" not in text.replace("info", "")
    ET.fromstring(text)  # noqa: S314 - our own text


@pytest.mark.parametrize("kind", ["line", "bar"])
def test_everything_stays_inside(kind: Literal["line", "bar"]) -> None:
    values = (123_456.0,) * 30
    places = tuple(f"a place with a name {number}" for number in range(30))
    root = drawn(chart(Series("one", values), Series("two", values), kind=kind, places=places))
    height = float(root.attrib["height"])
    for each in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(each.attrib.get(name, 0)) <= WIDTH
        for name in ("y", "y1", "y2", "cy"):
            assert 0 <= float(each.attrib.get(name, 0)) <= height


def test_names_on_the_axis_do_not_run_into_each_other() -> None:
    places = tuple(f"{number * 25} k" for number in range(100))
    shown = texts(drawn(chart(Series("x", (1.0,) * 100), places=places)))
    assert len([text for text in shown if text.endswith(" k")]) <= 20


def test_both_grounds_are_thought_of_and_nothing_is_fetched() -> None:
    text = draw(chart(Series("x", (1.0, 2.0))))
    assert "prefers-color-scheme: dark" in text
    assert "script" not in text
    assert text.count("http") == 1  # the namespace


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (0, [0, 1]),
        (math.inf, [0, 1]),
        (5, [0, 1, 2, 3, 4, 5]),
        (9.3, [0, 2, 4, 6, 8, 10]),
        (0.05, [0, 0.01, 0.02, 0.03, 0.04, 0.05]),
        (18_509, [0, 5_000, 10_000, 15_000, 20_000]),
    ],
)
def test_ticks_are_round_and_reach_far_enough(largest: float, expected: list[float]) -> None:
    assert ticks(largest) == pytest.approx(expected)


def test_labels() -> None:
    assert [label(each) for each in (0, 2.0, 0.25, 12.345, 18_509.4)] == ["0", "2", "0.25", "12.3", "18,509"]
