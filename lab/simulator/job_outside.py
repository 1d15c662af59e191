"""Those who stand outside the workers and are never hurt: who enqueues jobs, and an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fencepost.client.jobs import AsyncJobs
from fencepost.core.job import JobOptions
from fencepost.core.operation import Operation, arun
from fencepost.errors import DedupeConflict
from fencepost.store import job_operators
from lab.simulator.job_plan import PlannedJob
from lab.simulator.outside import BEGIN, COMMIT, ROLLBACK, Operator, Producers
from lab.simulator.plan import Fault
from lab.simulator.server import ServerSession

if TYPE_CHECKING:
    from lab.simulator.job_run import JobRun


def job_id_of(number: int) -> UUID:
    """Return the id of a planned job."""
    return UUID(int=number + 1)


def args_of(planned: PlannedJob) -> dict[str, object]:
    """Return the arguments of a planned job: those of one unique key have the same, where its number is even."""
    if planned.unique_key is not None and planned.number % 2 == 0:
        return {"unique": planned.unique_key}
    return {"n": planned.number}


class JobProducers(Producers[PlannedJob]):
    """Enqueue jobs."""

    run: JobRun

    async def _written(self, session: ServerSession, together: Sequence[PlannedJob]) -> None:
        run = self.run
        await session.at_once(BEGIN)
        for planned in together:
            try:
                await arun(_enqueue(run.jobs, planned), session.at_once)
            except DedupeConflict:
                run.trace("producer", "is refused", planned.number)
        await asyncio.sleep(6 * run.latency())
        if together[0].is_rolled_back:
            run.rolled_back.update(each.number for each in together)
            await session.at_once(ROLLBACK)
        else:
            await session.at_once(COMMIT)


def _enqueue(jobs: AsyncJobs, planned: PlannedJob) -> Operation[Any]:
    options: JobOptions = {"job_id": job_id_of(planned.number)}
    if planned.key is not None:
        options["key"] = planned.key
    if planned.unique_key is not None:
        options["unique_key"] = planned.unique_key
    if planned.delay:
        options["delay"] = timedelta(seconds=planned.delay)
    return jobs._enqueue(planned.task, args_of(planned), options)  # noqa: SLF001 - what `enqueue` runs, on connections that we simulate


class JobOperator(Operator):
    """Cancels, fails and retries jobs."""

    run: JobRun

    def _act(self, fault: Fault) -> None:
        row_id = self.run.watch.row_of(fault.target)
        if row_id is not None:
            self._change(fault.kind, [row_id])

    def resolve(self, how: str) -> None:
        ids = sorted(self.run.watch.failed)
        if ids:
            self._change("retry", ids)

    def _change(self, kind: str, ids: Sequence[int]) -> None:
        catalog, notify = self.run.catalog, self.run.plan.notify
        match kind:
            case "retry":
                self._do(lambda: job_operators.retry(catalog, ids, actor="operator", reason=None, notify=notify))
            case "cancel":
                self._do(lambda: job_operators.cancel(catalog, ids, actor="operator", reason=None))
            case _:
                self._do(lambda: job_operators.fail(catalog, ids, actor="operator", reason="by hand"))
