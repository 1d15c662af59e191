"""The simulator: the shipped dispatcher keeps its guarantees in many schedules; each sabotage of it is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lab.simulator import kinds, seams
from lab.simulator.campaign import explore
from lab.simulator.failover import failover_plan_of
from lab.simulator.plan import LOSSY, PUBLISH_FAULTS, STATEMENT_FAULTS, TIMED_FAULTS, Fault, Plan, plan_of
from lab.simulator.run import simulate
from lab.simulator.shrink import LeftOut, shrunk

from tests.lab.sabotages import SABOTAGES

SEED, SCHEDULES, FAILOVERS = 20_261_130, 1_000, 200


@pytest.mark.timeout(600)  # where other work leaves it a tenth of a processor; it takes 15 s alone
def test_schedules_keep_every_guarantee() -> None:
    totals = explore(range(SEED, SEED + SCHEDULES))
    assert totals.failed == {}
    assert totals.schedules == SCHEDULES
    # An empty run would keep them as well.
    wanted = {*STATEMENT_FAULTS, *PUBLISH_FAULTS, *TIMED_FAULTS}
    assert wanted <= totals.faults.keys()
    assert totals.counts["publishes"] > 3 * SCHEDULES
    assert totals.duplicates.total() > SCHEDULES / 20
    assert totals.duplicates["unexplained"] == 0


def test_a_failover_that_loses_commits_loses_nothing_else() -> None:
    totals = explore(range(SEED, SEED + FAILOVERS), make=failover_plan_of)
    assert totals.failed == {}
    assert totals.faults[LOSSY] > FAILOVERS / 2  # the others were over before it
    assert totals.duplicates["a failover that lost commits"] > FAILOVERS / 20


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda each: each.__name__)
def test_each_sabotage_is_found(sabotage: Callable[[], Any]) -> None:
    make, seeds, guarantees = SABOTAGES[sabotage]
    with sabotage():
        totals = explore(seeds, make=make, is_enough=lambda totals: bool(totals.failed))
    assert totals.failed, f"not found in {totals.schedules} schedules"
    assert next(iter(totals.failed.values())).split(":")[0] in guarantees, totals.failed


def test_a_seed_is_the_same_schedule_in_every_process() -> None:
    script = (
        "from lab.simulator import seams\n"
        "from lab.simulator.plan import plan_of\n"
        "from lab.simulator.run import simulate\n"
        "with seams.simulated():\n"
        "    print([simulate(plan_of(seed), keeps_trace=True).digest() for seed in range(7, 17)])\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(found) == 1
    with seams.simulated():
        here = [simulate(plan_of(seed), keeps_trace=True).digest() for seed in range(7, 17)]
    assert found == {f"{here}\n"}
    assert len(set(here)) == len(here)


def test_a_process_that_was_paused_past_its_lease_starts_no_further_publish() -> None:
    # Found by seed 395: its main loop went on with the run before its heartbeat could tell that it was over.
    pause = Fault("publish", "pause after", 0, 1, seconds=1.5)
    with seams.simulated():
        results = [simulate(Plan.plain(seed, faults=(pause,), keys=1)) for seed in range(10)]
    assert [each.violations for each in results if each.violations] == []
    assert [each.faults["pause after"] for each in results] == [1] * len(results)


def test_the_rest_of_a_batch_that_ignores_its_time_out_has_a_cause() -> None:
    # Found by seed 5000744, a fault of the watch: nobody heard of the messages behind the one that hung.
    plan = Plan.plain(0, faults=(Fault("publish", "stubborn", 0, 1),), keys=0, messages=3)
    together = tuple(replace(each, transaction=0) for each in plan.messages)
    with seams.simulated():
        result = simulate(replace(plan, processes=1, concurrency=3, takes_batches=True, messages=together))
    assert result.violations == []
    assert result.duplicates == {"reported: cut off": 3}


@pytest.mark.parametrize("seed", [60029586, 60033024, 60034468, 60012497, 60019543, 60134719, 60334148, 60927596])
def test_what_the_watch_was_wrong_about(seed: int) -> None:
    """Schedules of a campaign, each the shortest of its kind.

    A process that stood still in the midst of a batch went on with it; batches were told apart by ids that a lossy
    failover hands out again; whoever ignored its time-out, and was heard all the same, was taken for silent; what
    kills its process in each attempt, and those in its lane, had too little time; a job was locked in the claim of
    a process that had lost its connection; a publisher that was given a batch had begun with its first message; a
    row was locked by whoever froze in its transaction, until the server ended that.
    """
    with seams.simulated():
        assert kinds.simulate(kinds.in_turns(seed)).violations == []


def test_what_is_not_needed_for_a_failure_is_left_out() -> None:
    plan = next(plan for plan in map(plan_of, range(100)) if len(plan.faults) == 6)
    needed = plan.faults[5]
    left_out = shrunk(plan, lambda smaller: needed in smaller.faults)
    short = left_out.of(plan)
    assert short.faults == (needed,)
    assert len(short.messages) == 1
    assert short.processes == 1
    assert LeftOut.read(str(left_out)).of(plan) == short
