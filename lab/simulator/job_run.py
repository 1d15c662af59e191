"""One schedule of jobs, from its plan to its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from fencepost.client.jobs import AsyncJobs
from fencepost.config import WorkerSettings
from fencepost.core.operation import Row
from lab.fake_store.statements import STATEMENTS
from lab.fake_store.turn import Params, Turn
from lab.simulator.job_outside import JobOperator, JobProducers
from lab.simulator.job_plan import JobPlan
from lab.simulator.job_process import SCHEDULE, Handlers, WorkerProcess
from lab.simulator.job_starts import EFFECT, EffectRow
from lab.simulator.job_watch import JobWatch
from lab.simulator.plan import POISON, Fault
from lab.simulator.run import Run


class JobRun(Run):
    """A schedule of the worker."""

    plan: JobPlan
    watch: JobWatch
    processes: Sequence[WorkerProcess]

    def __init__(self, plan: JobPlan, *, keeps_trace: bool) -> None:
        super().__init__(plan, keeps_trace=keeps_trace, statements={**STATEMENTS, "effect": effect})
        self.database.committed[EFFECT] = {}
        self._handler_faults = {(each.place, each.target, each.nth): each for each in plan.faults}
        self.jobs = AsyncJobs(notify=plan.notify, trace=False)
        handlers = Handlers(self)
        for task in plan.tasks:
            handlers.register(self.jobs, task)
        if plan.schedule is not None:
            self._add_schedule()
        self.settings = [_settings(plan, number) for number in range(plan.processes)]
        self.watch = JobWatch(self)
        self.producers = JobProducers(self, plan.jobs)
        self.operator = JobOperator(self)
        self.processes = [WorkerProcess(self, number) for number in range(plan.processes)]

    def _add_schedule(self) -> None:
        schedule = self.plan.schedule
        assert schedule is not None  # noqa: S101 - for the type checker: there is one
        options: dict[str, Any] = {"unique_key": "tick"} if schedule.is_unique else {}
        if self.plan.task(schedule.task).max_running_per_key is not None:
            options["key"] = "k0"
        self.jobs.schedule(
            SCHEDULE, f"*/{schedule.every} * * * * *", schedule.task, {"tick": True}, catch_up="all", **options
        )

    def handler_fault(self, place: str, number: int, nth: int) -> Fault | None:
        """Return what happens at a run of a handler, or as a verifier is asked."""
        poison = self._handler_faults.get((place, number, 0))
        if poison is not None and poison.kind == POISON:
            return poison
        return None if self.are_faults_over else self._handler_faults.get((place, number, nth))

    def counts(self) -> Mapping[str, int]:
        return self.watch.counts()


async def effect(turn: Turn, params: Params) -> list[Row]:
    """Answer the statement of a handler that has its effect in the database."""
    start = params["start"]
    turn.put(EFFECT, EffectRow(str(start.job_id), start.fence, start.nth))
    return []


def _settings(plan: JobPlan, number: int) -> WorkerSettings:
    return WorkerSettings(
        owner=f"w{number}",
        queues=plan.queues,
        concurrency=plan.concurrency,
        poll_interval=timedelta(seconds=plan.poll),
        notify=plan.notify,
        grace=timedelta(seconds=plan.grace),
        retention=None if plan.retention is None else timedelta(seconds=plan.retention),
        ledger_retention=None,
    )
