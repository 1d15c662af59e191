"""The checker finds nothing in a correct run of the real library, and each planted violation by its name."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import lab.checker
import pytest
from lab.checker.__main__ import main
from lab.checker.evidence import Evidence
from lab.checker.history import read_lines
from lab.checker.tables import read_tables
from lab.checker.verdict import RULES, Verdict

import tests.lab.plants_delivery
import tests.lab.plants_fence
import tests.lab.plants_rest  # noqa: F401 - these put their plants on the list
from fencepost.embedded import PostgresServer
from tests.lab.case import PLANTS, Case, Plant, Told, keep
from tests.lab.small_run import SmallRun, play
from tests.postgres import fresh_database

GUARANTEES = {"table", "ledger", *(f"I{n}" for n in range(1, 17)), *(f"J{n}" for n in range(1, 9))}


@pytest.fixture(scope="module")
def told(postgres18: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """A correct run, over, and its tables kept, so that each test finds them as they were."""
    with fresh_database(postgres18) as url:
        run = SmallRun(url, tmp_path_factory.mktemp("run"))
        play(run)
        keep(run.db)
        yield Told(run, read_lines(run.folder), read_tables(run.db))
        run.close()


@pytest.fixture
def case(told: Told, tmp_path: Path) -> Iterator[Case]:
    """The run, to be spoilt."""
    made = Case(told, tmp_path)
    yield made
    made.close()


def test_a_correct_run_is_clean_and_every_guarantee_was_seen(case: Case) -> None:
    verdict = case.judge()
    assert verdict.is_clean, verdict.as_text()
    assert {finding.name: finding.verdict for finding in verdict.findings} == dict.fromkeys(
        (finding.name for finding in verdict.findings), "held"
    )
    assert {finding.name for finding in verdict.findings} == GUARANTEES


@pytest.mark.parametrize(
    ("guarantee", "also", "plant"), [pytest.param(*each, id=f"{each[0]}-{each[2].__name__}") for each in PLANTS]
)
def test_a_violation_is_found_under_its_own_guarantee(
    case: Case, guarantee: str, also: frozenset[str], plant: Plant
) -> None:
    plant(case)
    verdict = case.judge()
    assert guarantee in verdict.violated(), f"not found:\n{verdict.as_text()}"
    assert verdict.violated() <= {guarantee} | also, verdict.as_text()


def test_every_guarantee_has_a_planted_violation() -> None:
    assert {guarantee for guarantee, _, _ in PLANTS} == GUARANTEES
    assert len(RULES) == len(GUARANTEES)


def test_the_checker_imports_nothing_that_it_judges() -> None:
    folder = Path(lab.checker.__file__).parent
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                known = name.partition(".")[0] in sys.stdlib_module_names | {"psycopg"}
                assert known or name.startswith("lab.checker"), f"{file.name} imports {name}"


def test_the_command_tells_a_clean_run_from_a_violated_one(
    told: Told, case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(told.run.folder), "--database", case.url]
    assert main(arguments) == 0
    assert "no violation" in capsys.readouterr().out
    case.sql("DELETE FROM lab.effect")
    assert main(arguments) == 1
    assert "I8     violated" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["clean"] is False


def test_the_command_does_not_call_a_run_clean_of_which_it_saw_nothing(
    postgres18: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh_database(postgres18) as url:
        run = SmallRun(url, tmp_path)
        run.begin()
        run.close()
        assert main([str(tmp_path), "--database", url]) == 2
    told = capsys.readouterr()
    assert "nothing was judged" in told.out
    assert "cannot judge: nothing that could have been a violation was seen" in told.err


def test_the_command_tells_of_a_rule_that_fails_apart_from_a_violation(
    told: Told, case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(evidence: Evidence) -> Verdict:
        raise TypeError(f"{len(evidence.history)} lines and no idea")

    monkeypatch.setattr("lab.checker.__main__.judge", fails)
    assert main([str(told.run.folder), "--database", case.url]) == 2
    assert "cannot judge: test_checker.py, line" in capsys.readouterr().err
