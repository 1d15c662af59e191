"""A report as Markdown; its charts are files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencepost.bench.figures import Report, Section, Table, Target

_GAP = ""


def render(report: Report) -> str:
    """Return the whole report as the text of a Markdown file."""
    lines = [
        *_title(report),
        *_targets(report),
        *_contents(report.sections),
        *(line for section in report.sections for line in _section(section)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def number(value: float) -> str:
    """Return a figure as the table of targets shows it."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _title(report: Report) -> Iterator[str]:
    yield from ("# fencepost, measured", _GAP)
    yield from (
        f"Written by `{report.command}`, which starts a PostgreSQL server of its own and measures anew.",
        _GAP,
    )
    if report.scale != 1:
        yield from (
            f"**A trial at {report.scale:g} of the full sizes**: everything runs, and its figures mean little.",
            _GAP,
        )
    yield from _table(Table(("machine", ""), report.machine), align=False)


def _targets(report: Report) -> Iterator[str]:
    yield from ("## What must hold", _GAP)
    if not report.targets:
        yield from ("None of the sections that were run has a figure that must hold.", _GAP)
        return
    rows = tuple(
        (
            target.name,
            _with_unit(target.measured, target),
            f"{_sign(target)} {_with_unit(target.limit, target)}",
            verdict,
        )
        for target in report.targets
        for verdict in ["held" if target.held else "**MISSED**"]
    )
    yield from _table(Table(("what", "measured", "limit", "verdict"), rows))


def _sign(target: Target) -> str:
    return "≥" if target.at_least else "≤"


def _with_unit(value: float, target: Target) -> str:
    return f"{number(value)} {target.unit}".strip()


def _contents(sections: Sequence[Section]) -> Iterator[str]:
    yield from ("## Contents", _GAP)
    yield from (
        f"{place}. [{section.title}](#{section.name}): `fencepost bench report --only {section.name}`"
        for place, section in enumerate(sections, 1)
    )
    yield _GAP


def _section(section: Section) -> Iterator[str]:
    yield from (f'<a id="{section.name}"></a>', _GAP, f"## {section.title}", _GAP)
    if section.failure:
        yield from ("**This section failed, and has no figures:**", _GAP, "```", section.failure, "```", _GAP)
    for note in section.notes:
        yield from (note, _GAP)
    for table in section.tables:
        yield from _table(table)
    for chart in section.charts:
        yield from (f"![{chart.title}]({chart.name}.svg)", _GAP)
    if section.method:
        yield from ("How it is measured:", _GAP)
        yield from (f"- {sentence}" for sentence in section.method)
        yield _GAP
    yield from (f"Took {section.seconds:.0f} s.", _GAP)


def _table(table: Table, *, align: bool = True) -> Iterator[str]:
    """Yield a table, its figures to the right."""
    yield _row(table.headers)
    figures = len(table.headers) - 1
    yield _row(("---", *(["---:" if align else "---"] * figures)))
    yield from (_row(row) for row in table.rows)
    yield _GAP


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
