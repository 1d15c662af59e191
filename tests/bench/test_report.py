"""``bench report`` at a tiny scale: that each section measures and reports, not how fast anything is."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree as ET

import psycopg
import pytest

from fencepost.bench import contender, server, suite, tables
from fencepost.bench.bench import Bench
from fencepost.bench.claiming import Claimant
from fencepost.bench.contender import Assignment
from fencepost.bench.contents import SECTIONS, module_of
from fencepost.bench.figures import Report, Section, at_most
from fencepost.bench.sections import jobs, snapshot
from fencepost.bench.sections.memory import resident
from fencepost.bench.suite import REPORT_FILE, Plan
from fencepost.bench.tables import Load
from fencepost.bench.tally import Tally
from fencepost.cli.app import run
from fencepost.client.outbox import Outbox
from fencepost.errors import FencepostError

SCALE = "0.002"


@pytest.fixture
def outbox18(database18: str) -> str:
    """The address of a database with an empty outbox in it."""
    with psycopg.connect(database18) as connection:
        Outbox().migrate(connection)
    return database18


@pytest.mark.timeout(300)  # some forty processes, one after the other
def test_every_section_runs_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "RUN_SECONDS", 1.5)  # which no scale changes
    code = run(["bench", "report", "--scale", SCALE, "--out", str(tmp_path), "--json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [section["name"] for section in found["sections"]] == list(SECTIONS)
    assert [section["failure"] for section in found["sections"]] == [""] * len(SECTIONS)
    assert len([target for section in found["sections"] for target in section["targets"]]) == 20
    for section in found["sections"]:
        if section["name"] == "destinations":  # none was given
            assert section["notes"]
            continue
        assert section["method"]
        assert section["tables"]
        for table in section["tables"]:
            assert {len(row) for row in table["rows"]} == {len(table["headers"])}
    assert code == (0 if found["held"] else 1)
    assert "section memory" in printed.err
    text = (tmp_path / REPORT_FILE).read_text("utf-8")
    charts = re.findall(r"\]\(([\w-]+\.svg)\)", text)
    assert sorted(charts) == sorted(path.name for path in tmp_path.glob("*.svg"))
    for chart in charts:
        ET.parse(tmp_path / chart)  # noqa: S314 - our own file


def test_sections_are_run_in_their_order_whatever_the_flags(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Plan] = []

    def measured(plan: Plan, _say: object) -> Report:
        asked.append(plan)
        return Report((), plan.command, plan.scale, ())

    monkeypatch.setattr(suite, "measure", measured)
    out = ["--out", str(tmp_path)]
    assert run(["bench", "report", "--only", "memory", "--only", "cost", "--full", *out]) == 0
    assert run(["bench", "report", "--scale", "0.5", *out]) == 0
    assert [list(plan.sections) for plan in asked] == [["cost", "memory"], list(SECTIONS)]
    assert [plan.full for plan in asked] == [True, False]
    assert asked[0].command == "fencepost bench report --full --only cost --only memory"
    assert asked[1].command == "fencepost bench report --scale 0.5"


@pytest.mark.parametrize(
    "arguments",
    [("--only", "nothing"), ("--scale", "0"), ("--scale", "2"), ("--scale", "-1"), ("--out", __file__)],
)
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    assert run(["bench", "report", *arguments]) == 2


def test_a_section_that_fails_leaves_the_others_their_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_bench: Bench) -> Section:
        raise FencepostError("the disk is full")

    def working(_bench: Bench) -> Section:
        return Section("memory", "Memory", targets=(at_most("memory", 3, 10, "%"),))

    for name, measure in (("cost", failing), ("memory", working)):
        monkeypatch.setattr(importlib.import_module(module_of(name)), "measure", measure)
    monkeypatch.setattr(server, "running_server", lambda: nullcontext("address"))
    monkeypatch.setattr(server, "described", lambda _: [("PostgreSQL", "18")])
    assert run(["bench", "report", "--only", "cost", "--only", "memory", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: section cost: FencepostError: the disk is full" in printed
    assert "held: memory: 3, at most 10 %" in printed
    assert "the disk is full" in (tmp_path / REPORT_FILE).read_text("utf-8")


def test_the_last_claims_are_those_of_the_last_messages() -> None:
    claims = [(0.1, 100), (0.2, 100), (0.3, 50), (0.4, 60)]
    assert snapshot.last(claims, 100) == claims[2:]
    assert snapshot.last(claims, 111) == claims[1:]
    assert snapshot.last(claims, 1_000) == claims


@pytest.mark.parametrize(("claims", "slices"), [(12, 3), (13, 3), (2, 3), (1, 3)])
def test_slices_leave_no_claim_out(claims: int, slices: int) -> None:
    samples = [(0.1, number) for number in range(claims)]
    found = snapshot.slices(samples, slices)
    assert len(found) <= slices
    assert [each for part in found for each in part] == samples


def test_sizes_follow_the_scale() -> None:
    def quiet(_text: str) -> None: ...

    whole, trial = (Bench("", Path(), quiet, scale) for scale in (1.0, 0.01))
    assert [whole.count(1_000_000), trial.count(1_000_000)] == [1_000_000, 10_000]
    assert [trial.count(1_000), trial.count(50), trial.count(1_000, least=20)] == [100, 50, 20]
    assert [whole.rounds(3), trial.rounds(3)] == [3, 1]
    assert [list(whole.steps((1, 2, 4))), list(trial.steps((1, 2, 4)))] == [[1, 2, 4], [1, 4]]


def _parked(connection: tables.Connection) -> None:
    tables.add_dead_head(connection, "k")
    tables.add_parked(connection, 30, "k")


def _to_be_parked(connection: tables.Connection) -> None:
    tables.add_dead_head(connection, "k-0")
    tables.add(connection, Load(30, keys=1, prefix="k-"))


@pytest.mark.parametrize(
    ("fill", "claimable", "blocked"),
    [
        (lambda connection: tables.add(connection, Load(30)), 30, 0),
        (lambda connection: tables.add(connection, Load(30, keys=1)), 30, 0),
        (lambda connection: tables.add(connection, Load(30, keys=7)), 30, 0),
        (lambda connection: tables.add_done(connection, 30), 0, 0),
        (_parked, 0, 30),
        (_to_be_parked, 0, 30),
    ],
    ids=["unordered", "one key", "seven keys", "done", "parked", "to be parked"],
)
def test_what_is_filled_in_is_what_a_claim_takes_it_for(
    outbox18: str, fill: Callable[[tables.Connection], None], claimable: int, blocked: int
) -> None:
    with (
        psycopg.connect(outbox18, autocommit=True) as connection,
        psycopg.connect(outbox18, autocommit=True) as claims,
    ):
        fill(connection)
        claimant = Claimant(claims, batch=100, from_floor=True)
        seconds, claimed = claimant.claim()
        assert len(claimed) == claimable
        assert seconds > 0
        claimant.finalize(claimed)
        count = "SELECT count(*) FROM outbox WHERE "
        assert tables.value(connection, f"{count} status IN ('pending', 'processing')") == 0
        assert tables.value(connection, f"{count} status = 'blocked'") == blocked
        tables.empty(connection)
        assert tables.value(connection, f"{count} true") == 0


def test_a_contender_that_does_not_end_is_ended(outbox18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A dispatcher that waits for messages that never come.
    monkeypatch.setattr(contender, "LEAST_PATIENCE", 3)
    with pytest.raises(FencepostError, match=r"fencepost\.bench\.shipped had not ended after 3 s"):
        contender.run("fencepost.bench.shipped", Assignment(outbox18, messages=1))


def test_a_tally_adds_up_over_its_slots(tmp_path: Path) -> None:
    whole = Tally.create(tmp_path / "tally")
    for slot, delivered in enumerate((5, 0, 7)):
        Tally(str(tmp_path / "tally"), slot).set(delivered)
    assert whole.total() == 12


def test_resident_memory_is_that_of_the_process() -> None:
    assert 2**20 < resident(os.getpid()) < 2**36
