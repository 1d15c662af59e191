"""A process that runs the shipped worker, and what the handlers of its jobs do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fencepost.client.context import JobContext
from fencepost.client.jobs import AsyncJobs
from fencepost.core.inbox import entry
from fencepost.core.job import Job
from fencepost.core.operation import Statement, arun
from fencepost.core.outcome import Verdict
from fencepost.errors import LeaseLost, SoftLimitReached
from fencepost.runtime.worker import Worker
from fencepost.store import inbox
from lab.simulator.failing import fail
from lab.simulator.job_plan import PlannedTask
from lab.simulator.loop import VirtualLoop
from lab.simulator.outside import BEGIN, COMMIT
from lab.simulator.plan import POISON, Fault
from lab.simulator.process import Process

if TYPE_CHECKING:
    from lab.simulator.job_run import JobRun
    from lab.simulator.job_starts import Start

FASTEST = 0.001
"""Seconds that a handler takes at the least."""

CONSUMER = "jobs"

SCHEDULE = "ticks"

FAILS_FIRST = frozenset({"retry", "retry after", "raise", "exit", "permanent", "defer", "cancels itself"})
"""Kinds of runs that have no effect."""


class WorkerProcess(Process):
    """One worker, and those that take its place."""

    run: JobRun
    holder: Worker
    threads: VirtualLoop
    """Where handlers run that are plain functions."""

    is_stopping = False

    def _made_loops(self) -> tuple[VirtualLoop, ...]:
        self.threads = VirtualLoop(self.run.world, f"{self.name} threads", self)
        return (*super()._made_loops(), self.threads)

    def _made(self) -> Worker:
        self.is_stopping = False
        return Worker("postgresql://simulated", self.run.jobs, self.run.settings[self.number])

    def stop(self, hurries: bool = False) -> None:
        self.is_stopping = self.is_stopping or self.is_up
        super().stop(hurries)


class Handlers:
    """What the tasks of a schedule do; each run finds its process by the loop that it is on."""

    def __init__(self, run: JobRun) -> None:
        self._run = run

    def register(self, jobs: AsyncJobs, planned: PlannedTask) -> None:
        """Declare a task with its handler and its verifier."""
        jobs.task(
            planned.name,
            queue=planned.queue,
            recovery=planned.recovery,
            max_attempts=planned.max_attempts,
            lease=timedelta(seconds=planned.lease),
            backoff_base=timedelta(seconds=0.05),
            backoff_cap=timedelta(seconds=0.4),
            soft_limit=_span(planned.soft_limit),
            hard_limit=_span(planned.hard_limit),
            max_running=planned.max_running,
            max_running_per_key=planned.max_running_per_key,
            ledger=planned.ledger,
        )(self._placed(planned, self._handle))
        jobs.verify(planned.name)(self._placed(planned, self._verify))

    def _placed(
        self, planned: PlannedTask, does: Callable[[PlannedTask, Job, JobContext], Awaitable[Any]]
    ) -> Callable[[Job, JobContext], Any]:
        def plain(job: Job, context: JobContext) -> Any:
            return does(planned, job, context)

        async def on_the_loop(job: Job, context: JobContext) -> Any:
            return await does(planned, job, context)

        return plain if planned.in_thread else on_the_loop

    # --- handlers ---

    async def _handle(self, planned: PlannedTask, job: Job, context: JobContext) -> None:
        run, watch = self._run, self._run.watch
        start = watch.handler_starts(_process(), job, context)
        fault = run.handler_fault("handler", start.number, start.nth)
        if fault is not None:
            run.fault_happens(fault, start.process)
        try:
            await self._work(planned, start, fault, context)
        except asyncio.CancelledError:
            watch.told(start, "cancels itself" if _is(fault, "cancels itself") else "cut off")
            raise
        except LeaseLost:
            watch.told(start, "lease lost")
            raise
        except SoftLimitReached:
            watch.told(start, "soft limit")
            raise
        except BaseException as error:
            watch.told(start, _kind(fault) if _kind(fault) in KNOWN_FAILURES else type(error).__name__)
            raise
        watch.told(start, "done")

    async def _work(self, planned: PlannedTask, start: Start, fault: Fault | None, context: JobContext) -> None:
        kind, run = _kind(fault), self._run
        seconds = FASTEST + run.plan.pace * run.chance.random()
        await self._before(start, fault)
        if kind in FAILS_FIRST:
            await asyncio.sleep(seconds)
            if kind == "cancels itself":
                _cancel_itself(planned)
            fail(kind, 0.0 if fault is None else fault.seconds)
        if kind == "slow" and fault is not None:
            seconds += fault.seconds
        if kind == "hang" and fault is not None:
            await self._hang(planned, start, fault)
        await self._goes_on(planned, seconds / 2, context)
        if planned.into_inbox:
            await self._into_inbox(start, context)
        else:
            run.watch.effect(start)
        await self._goes_on(planned, seconds / 2, context)
        await self._after(planned, start, fault)

    async def _before(self, start: Start, fault: Fault | None) -> None:
        kind = _kind(fault)
        if kind in ("crash before", POISON):
            start.process.crash(f"{kind} a run")
            await asyncio.get_running_loop().create_future()
        if fault is not None and kind == "pause before":
            start.process.pause(fault.seconds)
            await asyncio.sleep(0)

    async def _after(self, planned: PlannedTask, start: Start, fault: Fault | None) -> None:
        kind = _kind(fault)
        if fault is None:
            return
        if kind == "crash after":
            start.process.crash("crash after a run")
            await asyncio.get_running_loop().create_future()
        elif kind == "pause after":
            start.process.pause(fault.seconds)
            await asyncio.sleep(0)
        elif kind == "block" and not planned.in_thread:
            start.process.block(fault.seconds)
            await asyncio.sleep(0)
        elif kind == "stubborn":
            start.is_stubborn = True
            await self._stubborn(fault.seconds + (planned.hard_limit or 0.0))
        elif kind == "false failure":
            fail(kind, fault.seconds)

    async def _goes_on(self, planned: PlannedTask, seconds: float, context: JobContext) -> None:
        """Work for so long, and look now and then whether it is to go on."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left, planned.lease / 3))
            if planned.cooperates:
                context.check_lease()
                context.progress({"left": round(left, 3)})

    async def _hang(self, planned: PlannedTask, start: Start, fault: Fault) -> None:
        """Hang: for ever where a hard limit ends that, and no thread is lost with it."""
        start.is_stubborn = planned.in_thread
        if planned.hard_limit is None or planned.in_thread:
            await asyncio.sleep(fault.seconds)
        else:
            await asyncio.get_running_loop().create_future()

    async def _stubborn(self, seconds: float) -> None:
        """Go on for so long, whoever cancels it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError:
                continue

    async def _into_inbox(self, start: Start, context: JobContext) -> None:
        """Have the effect in the database, once for each job, whoever else is at it."""
        run = self._run
        connection = await run.server.connect(start.process, "effect")
        try:
            async with asyncio.timeout(run.plan.lease):
                await connection.execute(BEGIN)
                message = entry(CONSUMER, str(start.job_id), context.token, b"")
                if await arun(inbox.accept(run.catalog, message), connection.execute):
                    await connection.execute(Statement("effect", "", {"start": start}))
                await connection.execute(COMMIT)
        finally:
            await connection.close()

    # --- verifiers ---

    async def _verify(self, planned: PlannedTask, job: Job, context: JobContext) -> Verdict:
        run, watch, process = self._run, self._run.watch, _process()
        asked = watch.asked(process, job, context)
        fault = run.handler_fault("verifier", asked.number, asked.nth)
        kind = _kind(fault)
        if fault is not None:
            run.fault_happens(fault, process)
            if kind == "crash before":
                process.crash("crash in a verifier")
                await asyncio.get_running_loop().create_future()
            if kind == "pause before":
                process.pause(fault.seconds)
        await asyncio.sleep(FASTEST + run.plan.pace * run.chance.random())
        if kind == "raise":
            raise ValueError("a bug in a verifier")
        verdict = Verdict.UNKNOWN if kind == "unknown" else watch.truth(asked)
        watch.answered(asked, verdict)
        return verdict


KNOWN_FAILURES = FAILS_FIRST | {"false failure"}


def _process() -> WorkerProcess:
    loop: Any = asyncio.get_running_loop()
    process: WorkerProcess = loop.process
    return process


def _kind(fault: Fault | None) -> str:
    return "" if fault is None else fault.kind


def _is(fault: Fault | None, kind: str) -> bool:
    return _kind(fault) == kind


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _cancel_itself(planned: PlannedTask) -> None:
    task = asyncio.current_task()
    if task is not None and not planned.in_thread:
        task.cancel()
    raise asyncio.CancelledError
