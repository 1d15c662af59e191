"""What a report is made of, before anything is drawn or written. All frozen, nothing measured here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that must hold."""

    name: str
    measured: float
    limit: float
    at_least: bool
    unit: str = ""

    @property
    def held(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def verdict(self) -> str:
        return "held" if self.held else "MISSED"


def at_least(name: str, measured: float, limit: float, unit: str = "") -> Target:
    """A figure that must not be lower."""
    return Target(name, measured, limit, at_least=True, unit=unit)


def at_most(name: str, measured: float, limit: float, unit: str = "") -> Target:
    """A figure that must not be higher."""
    return Target(name, measured, limit, at_least=False, unit=unit)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under their headers; the first column is a name, the others are figures."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One line or one colour of bars; None leaves a gap."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Values over places on an axis, which stand at equal distances whatever they are called.

    Args:
        name: of the file, without its ending.
        axis, unit: what the two axes show.
    """

    name: str
    title: str
    axis: str
    unit: str
    places: tuple[str, ...]
    series: tuple[Series, ...]
    kind: Literal["line", "bar"] = "line"


@dataclass(frozen=True, slots=True)
class Section:
    """What one part of the report found.

    Args:
        method: how it was measured, a sentence or two each.
        failure: why it ended early; then there is nothing else.
        notes: what has to be read before the figures, or instead of them; a paragraph each.
    """

    name: str
    title: str
    method: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    targets: tuple[Target, ...] = ()
    failure: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run found.

    Args:
        machine: what it ran on, as names and values.
        command: how to repeat it.
        scale: the part of the full sizes that was run; 1 for all of it.
    """

    machine: tuple[tuple[str, str], ...]
    command: str
    scale: float
    sections: tuple[Section, ...]

    @property
    def targets(self) -> list[Target]:
        return [target for section in self.sections for target in section.targets]

    @property
    def held(self) -> bool:
        """Whether every section came to its end and every target held."""
        return all(target.held for target in self.targets) and not any(each.failure for each in self.sections)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest of the values that at least ``percent`` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def ratio(measured: float, reference: float) -> float:
    """Divide, also by a reference that was too small to be measured."""
    return measured / reference if reference else math.inf


def milliseconds(seconds: float) -> str:
    """Return a duration as a text in milliseconds."""
    return f"{seconds * 1_000:.2f}"


def short(number: int) -> str:
    """Return a round number as people say it: 10 k, 1 M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size and number % (size // 10) == 0:
            return f"{number / size:g} {unit}"
    return f"{number:,}"
