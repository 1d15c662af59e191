"""Chaos: a short run of it that must be clean, and a run and a writer without a fence that must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.chaos import sabotaged, stale, stale_jobs
from lab.chaos.schedule import KINDS, RARE, WEIGHTS, plan

from fencepost.store import catalog

ROOT = Path(__file__).parents[2]
SLOW = "1.5"
"""Other tests run beside it."""


def _run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit code and its result."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "CHAOS_SLOW": SLOW}
    finished = subprocess.run(
        [sys.executable, "-m", "lab.chaos", "--json", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stdout, finished.stderr
    result: dict[str, Any] = json.loads(finished.stdout)
    return finished.returncode, result


def _violated(result: dict[str, Any]) -> dict[str, Any]:
    found = result["checker"]["guarantees"]
    return {each["name"]: each["violations"][:5] for each in found if each["violations"]}


def test_the_same_seed_means_the_same_plan_and_another_one_another() -> None:
    assert plan(7, 60, 3, KINDS) == plan(7, 60, 3, KINDS) != plan(8, 60, 3, KINDS)


def test_a_plan_that_covers_everything_has_every_rare_kind() -> None:
    planned = {each.kind for each in plan(7, 10, 1, KINDS, covering=True)}
    assert planned >= {kind for kind in KINDS if WEIGHTS[kind] < RARE}


@pytest.mark.timeout(300)  # a dozen processes start and end in it
def test_a_short_run_on_real_servers_is_found_clean() -> None:
    code, result = _run("--seed", "7", "--minutes", "0.12", "--rate", "4", "--crew", "2,1,1,1,1")
    assert not result["problems"], result["problems"]
    assert not _violated(result), _violated(result)
    assert code == 0
    assert result["drained_in"] is not None
    assert len(result["faults"]) >= 6, result["faults"]


@pytest.mark.timeout(300)
def test_a_dispatcher_without_a_fence_is_found() -> None:
    options = ("--seed", "1", "--minutes", "0.04", "--rate", "2", "--crew", "2,0,1,0,0", "--patience", "2")
    code, result = _run("--sabotage", "--only", "cut", *options)
    assert code == 1
    assert {"I2", "I12", "table"} & set(_violated(result)), _violated(result)


def test_stale_finalizes_change_nothing_and_are_all_reported(database18: str) -> None:
    tally = stale.force(database18, seed=1, count=3_000, batch=50)
    tally += stale_jobs.force(database18, seed=1, count=2_000, batch=50)
    assert sum(tally.writes.values()) >= 5_000
    assert (tally.changed, tally.believed, tally.stopped) == (0, 0, 0)


def test_writes_without_a_fence_are_seen_to_change_rows(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_fragment", sabotaged.without_fence)
    catalog._load.cache_clear()
    try:
        messages = stale.force(database18, seed=1, count=500, batch=20)
        jobs = stale_jobs.force(database18, seed=1, count=300, batch=10)
    finally:
        monkeypatch.undo()
        catalog._load.cache_clear()
    assert min(messages.changed, jobs.changed) > 20
    assert min(messages.believed, jobs.believed) > 20
