"""What can be simulated: the dispatcher of messages, the worker of jobs, or both in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lab.simulator.job_plan import JobPlan, job_plan_of
from lab.simulator.job_run import JobRun
from lab.simulator.plan import Plan, plan_of
from lab.simulator.run import MessageRun, Result, judged
from lab.simulator.schedule import Schedule


def in_turns(seed: int) -> Schedule:
    """Draw the plan of one schedule: of messages where the seed is even, of jobs where it is odd."""
    return job_plan_of(seed) if seed % 2 else plan_of(seed)


MAKERS: Mapping[str, Callable[[int], Schedule]] = {"messages": plan_of, "jobs": job_plan_of, "both": in_turns}


def name_of(plan: Schedule) -> str:
    """Return what kind of plan it is."""
    return "jobs" if isinstance(plan, JobPlan) else "messages"


def simulate(plan: Schedule, *, keeps_trace: bool = False) -> Result:
    """Run one schedule; inside `seams.simulated`."""
    if isinstance(plan, JobPlan):
        return judged(JobRun(plan, keeps_trace=keeps_trace))
    assert isinstance(plan, Plan)  # noqa: S101 - for the type checker: there are no others
    return judged(MessageRun(plan, keeps_trace=keeps_trace))
