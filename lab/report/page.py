"""The part of ``docs/reliability.md`` that is made from the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.report.parts import PARTS, Figures, Part
from lab.report.runs import ROOT, Run

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- figures: made by make reliability-report -->", "<!-- end of figures -->"

STANDING = ("kinds of fault", "kinds of input")
"""Figures that do not add up: the greatest of the runs is told."""


class NoPlace(Exception):
    """The page has no two markers between which the figures belong."""


def written(page: str, runs: Sequence[Run]) -> str:
    """Return a page with its figures made anew.

    Raises:
        NoPlace: it lacks a marker.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NoPlace(f"the page needs the lines {BEGIN!r} and {END!r}, in this order")
    return f"{before}{BEGIN}\n\n{figures(runs)}\n{END}{after}"


def figures(runs: Sequence[Run]) -> str:
    """Return both tables: what all runs of a part came to, and the runs one by one."""
    lines = ["| part | bound | seen, in runs that found nothing | runs |", "|---|---:|---|---:|"]
    lines += [_row(part, [run for run in runs if run.part == name]) for name, part in PARTS.items()]
    lines += ["", *_one_by_one(runs)]
    return "\n".join(lines) + "\n"


def totals(runs: Sequence[Run]) -> Figures:
    """Add up what runs counted."""
    found: Counter[str] = Counter()
    for run in runs:
        for name, count in run.figures.items():
            found[name] = max(found[name], count) if name in STANDING else found[name] + count
    return dict(found)


def _row(part: Part, runs: Sequence[Run]) -> str:
    sound = [run for run in runs if run.held]
    counted = ", ".join(_counted(totals(sound))) if sound else "no run yet"
    bound = f"{part.bound:,} {part.counts}" if part.bound else f"all {part.counts}"
    number = (
        f"{len(runs)}" if len(sound) == len(runs) else f"{len(runs)}, {len(runs) - len(sound)} found something"
    )
    return f"| {part.name}: {part.does} | {bound} | {counted} | {number} |"


def _counted(found: Mapping[str, int]) -> Iterator[str]:
    for name, count in found.items():
        yield f"{count:,} {name}"


def _one_by_one(runs: Sequence[Run]) -> Iterator[str]:
    machines = dict.fromkeys(run.machine for run in runs)
    marks = {name: chr(ord("A") + place) for place, name in enumerate(machines)}
    yield "| part | date | commit | machine | command | seed | took | found |"
    yield "|---|---|---|---|---|---:|---:|---|"
    for run in runs:
        found = run.remark or ("nothing" if run.held else "violations")
        seed = "" if run.seed is None else str(run.seed)
        yield (
            f"| {run.part} | {run.date} | {run.commit} | {marks[run.machine]} | `{run.command}` | {seed} | "
            f"{_lasted(run.seconds)} | {found} |"
        )
    yield ""
    yield from (f"{mark}: {name}." for name, mark in marks.items())


def _lasted(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def write(runs: Sequence[Run], page: Path = PAGE) -> None:
    """Make the figures of the page anew."""
    page.write_text(written(page.read_text(encoding="utf-8"), runs), encoding="utf-8")
