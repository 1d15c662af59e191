"""The report's text, from figures made up here."""

from __future__ import annotations

import re
from dataclasses import replace

from fencepost.bench.figures import Chart, Report, Section, Series, Table, at_least, at_most
from fencepost.bench.markdown import number, render

THROUGHPUT = Section(
    "throughput",
    "Throughput",
    method=("Every run is fresh.",),
    tables=(Table(("who", "messages/s"), (("a | b", "18,509"),)),),
    charts=(Chart("throughput", "Rates", "who", "messages/s", ("a",), (Series("rate", (1.0,)),), "bar"),),
    targets=(at_least("one process", 0.57, 0.9), at_most("WAL", 403.4, 450, "bytes")),
    seconds=12.4,
)
REPORT = Report((("CPU", "one"), ("cores", "2")), "fencepost bench report", 1.0, (THROUGHPUT,))


def test_every_figure_that_must_hold_is_a_row_with_its_verdict() -> None:
    text = render(REPORT)
    assert "| one process | 0.57 | ≥ 0.9 | **MISSED** |" in text
    assert "| WAL | 403 bytes | ≤ 450 bytes | held |" in text


def test_the_machine_and_the_command_are_named() -> None:
    text = render(REPORT)
    assert "| CPU | one |" in text
    assert "`fencepost bench report`" in text
    assert "trial" not in text
    assert "A trial at 0.01 of the full sizes" in render(replace(REPORT, scale=0.01))


def test_each_section_has_its_place_in_the_contents() -> None:
    text = render(REPORT)
    assert "1. [Throughput](#throughput): `fencepost bench report --only throughput`" in text
    targets = set(re.findall(r"\]\(#([\w-]+)\)", text))
    assert targets == set(re.findall(r'<a id="([\w-]+)"></a>', text))


def test_a_section_shows_tables_charts_and_method() -> None:
    text = render(REPORT)
    assert "| who | messages/s |\n| --- | ---: |\n| a \\| b | 18,509 |" in text
    assert "![Rates](throughput.svg)" in text
    assert "- Every run is fresh." in text
    assert "Took 12 s." in text


def test_a_section_that_failed_says_so_and_the_report_does_not_hold() -> None:
    held = replace(REPORT, sections=(replace(THROUGHPUT, targets=(at_most("WAL", 1, 2),)),))
    assert held.held
    broken = replace(held, sections=(*held.sections, Section("cost", "Cost", failure="FencepostError: no")))
    assert not broken.held
    assert "FencepostError: no" in render(broken)


def test_a_report_without_targets() -> None:
    text = render(replace(REPORT, sections=(replace(THROUGHPUT, targets=()),)))
    assert "None of the sections" in text


def test_numbers() -> None:
    assert [number(each) for each in (0.5678, 99.94, 403.4, 12_345.6)] == ["0.568", "99.9", "403", "12,346"]
