"""Charts as SVG, drawn by hand: no library, no script, readable on light and on dark ground."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from fencepost.bench.figures import Chart, Series

WIDTH = 760
_TOP, _RIGHT, _LEGEND = 40, 24, 22
_PLOT_HEIGHT = 240
_BAR, _GAP = 14, 12
_CHARACTER = 6.6
"""About the width of a character at 12 px, in the fonts that the style names."""

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #8c959f; stroke-opacity: .35 }
  .axis { stroke: #57606a }
  .s0 { stroke: #0969da; fill: #0969da }
  .s1 { stroke: #d4762c; fill: #d4762c }
  .s2 { stroke: #3fa35b; fill: #3fa35b }
  polyline { fill: none !important; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #d1d7e0 }
    .axis { stroke: #9198a1 }
    .s0 { stroke: #58a6ff; fill: #58a6ff }
  }
"""
_COLOURS = 3


def draw(chart: Chart) -> str:
    """Return a chart as the text of an SVG file."""
    return _bars(chart) if chart.kind == "bar" else _lines(chart)


def ticks(largest: float, wanted: int = 5) -> list[float]:
    """Return round numbers from 0 to at least ``largest``, about as many as wanted."""
    if not math.isfinite(largest) or largest <= 0:
        return [0.0, 1.0]
    rough = largest / wanted
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999_999)
    return [step * number for number in range(math.ceil(largest / step - 1e-9) + 1)]


def label(number: float) -> str:
    """Return a number as an axis or a bar shows it."""
    if number >= 100 or number == round(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"


def _lines(chart: Chart) -> str:
    scale = ticks(_largest(chart.series))
    left = 24 + max(len(label(tick)) for tick in scale) * _CHARACTER
    wide = WIDTH - left - _RIGHT
    bottom = _TOP + _LEGEND + _PLOT_HEIGHT
    step = wide / max(1, len(chart.places))

    def across(place: int) -> float:
        return left + (place + 0.5) * step

    def down(value: float) -> float:
        return bottom - value / scale[-1] * _PLOT_HEIGHT

    parts = [*_head(chart, left)]
    for tick in scale:
        parts += [
            _line("grid", left, WIDTH - _RIGHT, down(tick), down(tick)),
            _text(left - 6, down(tick) + 4, label(tick), "end"),
        ]
    parts.append(_line("axis", left, WIDTH - _RIGHT, bottom, bottom))
    every = _every(chart.places, step)
    parts += [
        _text(across(place), bottom + 18, name, "middle")
        for place, name in enumerate(chart.places)
        if place % every == 0
    ]
    parts.append(_text(left + wide / 2, bottom + 38, chart.axis, "middle"))
    for number, series in enumerate(chart.series):
        points = [(across(place), down(value)) for place, value in _known(series)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="s{number % _COLOURS}" points="{corners}"/>')
        parts += [f'<circle class="s{number % _COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
    return _framed(chart, parts, bottom + 50)


def _bars(chart: Chart) -> str:
    scale = ticks(_largest(chart.series))
    left = 24 + max((len(place) for place in chart.places), default=0) * _CHARACTER
    wide = WIDTH - left - _RIGHT - 48  # the figure at the end of the longest bar
    top = _TOP + _LEGEND
    group = _BAR * len(chart.series) + _GAP
    bottom = top + group * len(chart.places)

    def across(value: float) -> float:
        return left + value / scale[-1] * wide

    parts = [*_head(chart, left)]
    for tick in scale:
        parts += [
            _line("grid", across(tick), across(tick), top, bottom),
            _text(across(tick), bottom + 16, label(tick), "middle"),
        ]
    parts.append(_line("axis", left, left, top, bottom))
    for place, name in enumerate(chart.places):
        middle = top + place * group + group / 2
        parts.append(_text(left - 8, middle + 4, name, "end"))
    for number, series in enumerate(chart.series):
        for place, value in _known(series):
            y = top + place * group + _GAP / 2 + number * _BAR
            # A figure below nothing is shown as a number only.
            length = max(0.0, across(value) - left)
            parts += [
                f'<rect class="s{number % _COLOURS}" x="{left:.1f}" y="{y:.1f}" width="{length:.1f}" '
                f'height="{_BAR - 2}"/>',
                _text(left + length + 5, y + _BAR - 3, label(value), "start"),
            ]
    return _framed(chart, parts, bottom + 28)


def _head(chart: Chart, left: float) -> Iterator[str]:
    """Yield the title with the unit, and a legend where there is more than one series."""
    yield f'<text class="title" x="12" y="22">{escape(f"{chart.title} ({chart.unit})")}</text>'
    x = left
    for number, series in enumerate(chart.series if len(chart.series) > 1 else ()):
        yield f'<rect class="s{number % _COLOURS}" x="{x:.1f}" y="{_TOP - 4}" width="10" height="10"/>'
        yield _text(x + 15, _TOP + 5, series.name, "start")
        x += 40 + len(series.name) * _CHARACTER


def _framed(chart: Chart, parts: Sequence[str], height: float) -> str:
    title = escape(chart.title)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'height="{height:.0f}" role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            *parts,
            "</svg>\n",
        )
    )


def _line(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _every(places: Sequence[str], step: float) -> int:
    """Return of how many places one has room for its name."""
    widest = max((len(place) for place in places), default=0) * _CHARACTER + 10
    return max(1, math.ceil(widest / step))


def _largest(series: Sequence[Series]) -> float:
    return max((value for each in series for _, value in _known(each)), default=0.0)


def _known(series: Series) -> list[tuple[int, float]]:
    return [
        (place, value) for place, value in enumerate(series.values) if value is not None and math.isfinite(value)
    ]
