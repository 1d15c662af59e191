"""The page of figures says what the kept runs came to, and runs are kept as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab.report import page, runs
from lab.report.__main__ import NoResult, main
from lab.report.parts import PARTS
from lab.report.runs import Run

RUN = Run(
    part="stale",
    command="python -m lab.chaos stale --count 10",
    seed=7,
    commit="abc1234",
    date="2026-11-30",
    machine="a machine",
    seconds=3,
    held=True,
    figures={"stale writes": 1_500, "rows changed": 0},
)
EMPTY = f"before\n{page.BEGIN}\nwhat was\n{page.END}\nafter\n"


def test_the_page_is_written_from_the_runs_that_are_kept() -> None:
    now = page.PAGE.read_text(encoding="utf-8")
    assert page.written(now, runs.read()) == now, "run: python -m lab.report --write"


def test_runs_of_a_part_are_added_up_and_told_one_by_one() -> None:
    made = page.written(EMPTY, [RUN, replace(RUN, seed=8, commit="def5678")])
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert "what was" not in made
    assert "3,000 stale writes, 0 rows changed" in made
    for word in ("abc1234", "def5678", "`python -m lab.chaos stale --count 10`"):
        assert word in made


def test_a_run_that_found_something_stays_and_counts_for_nothing() -> None:
    made = page.written(EMPTY, [RUN, replace(RUN, held=False, remark="a row was changed")])
    assert "1,500 stale writes" in made
    assert "2, 1 found something" in made
    assert "a row was changed" in made


def test_figures_that_do_not_add_up_are_the_greatest() -> None:
    chaos = replace(RUN, part="chaos", figures={"faults": 10, "kinds of fault": 5})
    found = page.totals([chaos, replace(chaos, figures={"faults": 1, "kinds of fault": 7})])
    assert found == {"faults": 11, "kinds of fault": 7}


@pytest.mark.parametrize("text", ["", page.BEGIN, page.END + page.BEGIN])
def test_a_page_without_its_markers_is_refused(text: str) -> None:
    with pytest.raises(page.NoPlace, match="needs the lines"):
        page.written(text, [RUN])


def test_every_part_of_the_lab_that_can_be_run_is_in_the_report() -> None:
    commands = {path.parent.name for path in (runs.ROOT / "lab").glob("*/__main__.py")} - {"report", "checker"}
    assert commands == {part.module[0].removeprefix("lab.") for part in PARTS.values()}


def test_a_part_is_run_and_kept(tmp_path: Path) -> None:
    log, target = tmp_path / "runs.jsonl", tmp_path / "page.md"
    target.write_text(EMPTY, encoding="utf-8")
    where = ["--log", str(log), "--page", str(target)]
    assert main(["--part", "stale", *where, "--count", "100", "--seed", "3"]) == 0
    (kept,) = runs.read(log)
    assert (kept.part, kept.seed, kept.held) == ("stale", 3, True)
    assert kept.figures["stale writes"] >= 100
    assert kept.figures["rows changed"] == 0
    assert "python -m lab.chaos stale --count 100 --seed 3" in target.read_text(encoding="utf-8")


def test_a_run_that_is_over_is_taken(tmp_path: Path) -> None:
    log, target, result = tmp_path / "runs.jsonl", tmp_path / "page.md", tmp_path / "result.json"
    target.write_text(EMPTY, encoding="utf-8")
    result.write_text(
        '{"seed": 5, "holds": false, "cases": 9, "targets": [{"failures": ["one"]}]}', encoding="utf-8"
    )
    where = ["--log", str(log), "--page", str(target)]
    taken = ["--part", "fuzz", "--took", str(result), "--of-commit", "abc1234", "--seconds", "60", *where]
    assert main([*taken, "--cases", "9"]) == 1
    (kept,) = runs.read(log)
    assert (kept.held, kept.commit, kept.seconds, kept.figures["failures"]) == (False, "abc1234", 60, 1)
    result.write_text("no JSON", encoding="utf-8")
    with pytest.raises(NoResult, match="fuzz printed no JSON"):
        main([*taken, "--cases", "9"])
