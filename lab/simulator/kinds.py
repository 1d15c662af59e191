"""What can be simulated: the dispatcher, with a failover that loses commits or without, and the worker of jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lab.simulator.failover import FailoverRun, failover_plan_of
from lab.simulator.job_plan import JobPlan, job_plan_of
from lab.simulator.job_run import JobRun
from lab.simulator.plan import LOSSY, Plan, plan_of
from lab.simulator.run import MessageRun, Result, judged
from lab.simulator.schedule import Schedule

FAILOVER_EVERY = 16


def in_turns(seed: int) -> Schedule:
    """Draw the plan of one schedule: of jobs where the seed is odd, else of messages, some with a failover."""
    if seed % 2:
        return job_plan_of(seed)
    return plan_of(seed) if seed % FAILOVER_EVERY else failover_plan_of(seed)


MAKERS: Mapping[str, Callable[[int], Schedule]] = {
    "messages": plan_of,
    "jobs": job_plan_of,
    "both": in_turns,
    "failovers": failover_plan_of,
}


def name_of(plan: Schedule) -> str:
    """Return what kind of plan it is."""
    if isinstance(plan, JobPlan):
        return "jobs"
    return "failovers" if _fails_over(plan) else "messages"


def _fails_over(plan: Schedule) -> bool:
    return any(fault.kind == LOSSY for fault in plan.faults)


def simulate(plan: Schedule, *, keeps_trace: bool = False) -> Result:
    """Run one schedule; inside `seams.simulated`."""
    if isinstance(plan, JobPlan):
        return judged(JobRun(plan, keeps_trace=keeps_trace))
    assert isinstance(plan, Plan)  # noqa: S101 - for the type checker: there are no others
    return judged((FailoverRun if _fails_over(plan) else MessageRun)(plan, keeps_trace=keeps_trace))
