"""The simulator: the shipped worker keeps its guarantees in many schedules; each sabotage of it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab.simulator import seams
from lab.simulator.__main__ import main
from lab.simulator.campaign import explore
from lab.simulator.job_plan import HANDLER_FAULTS, OPERATIONS, JobPlan, job_plan_of
from lab.simulator.kinds import in_turns, simulate
from lab.simulator.plan import STATEMENT_FAULTS, TIMED_FAULTS
from lab.simulator.shrink import LeftOut, shrunk

from tests.lab.job_sabotages import SABOTAGES

SEED, SCHEDULES = 20_261_130, 400


def test_schedules_keep_every_guarantee() -> None:
    totals = explore(range(SEED, SEED + SCHEDULES), make=job_plan_of)
    assert totals.failed == {}
    assert totals.schedules == SCHEDULES
    # An empty run would keep them as well.
    wanted = {*STATEMENT_FAULTS, *HANDLER_FAULTS, *TIMED_FAULTS, *OPERATIONS}
    assert wanted <= totals.faults.keys()
    assert totals.counts["runs"] > 2 * SCHEDULES
    assert totals.counts["effects"] > 2 * SCHEDULES
    assert totals.counts["verified"] > SCHEDULES / 20
    assert totals.counts["ticks"] > SCHEDULES / 10
    assert totals.duplicates.total() > SCHEDULES / 40
    assert totals.duplicates["unexplained"] == 0


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda each: each.__name__)
def test_each_sabotage_is_found(sabotage: Callable[[], Any]) -> None:
    make, seeds, guarantees = SABOTAGES[sabotage]
    with sabotage():
        totals = explore(seeds, make=make, is_enough=lambda totals: bool(totals.failed))
    assert totals.failed, f"not found in {totals.schedules} schedules"
    assert next(iter(totals.failed.values())).split(":")[0] in guarantees, totals.failed


@pytest.mark.parametrize("make", dict.fromkeys(make for make, _, _ in SABOTAGES.values()))
def test_what_leads_to_a_sabotage_is_no_fault_by_itself(make: Callable[[int], JobPlan]) -> None:
    totals = explore(range(2), make=make)
    assert totals.failed == {}


def test_a_seed_is_the_same_schedule_each_time() -> None:
    with seams.simulated():
        traces = [[simulate(in_turns(seed), keeps_trace=True).digest() for seed in range(6)] for _ in range(2)]
    assert traces[0] == traces[1]
    assert len(set(traces[0])) == len(traces[0])


def test_a_schedule_that_fails_is_told_in_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lab.simulator.job_watch.JobWatch.is_drained", lambda self: False)
    assert main(["--of", "jobs", "--seed", "1", "--schedules", "1"]) == 1
    told = capsys.readouterr().out
    assert "python -m lab.simulator --of jobs --only 1 --without" in told
    assert "I1: not drained in time" in told


def test_what_is_not_needed_for_a_failure_is_left_out() -> None:
    plan = next(plan for plan in map(job_plan_of, range(100)) if len(plan.faults) == 8)
    needed = plan.faults[5]
    left_out = shrunk(plan, lambda smaller: needed in smaller.faults)
    short = left_out.of(plan)
    assert (short.faults, len(short.jobs), short.processes) == ((needed,), 1, 1)
    assert LeftOut.read(str(left_out)).of(plan) == short
