"""The worker: claims the jobs that it can start, runs their handlers outside any transaction, writes the results.

Async handlers run on the event loop, plain ones in threads. Heartbeats go over a connection and a thread of their
own, so that neither a blocked loop nor a busy thread can cost a lease.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fencepost.client.jobs import AsyncJobs, Jobs
from fencepost.client.tasks import Task
from fencepost.config import WorkerSettings
from fencepost.core.error_text import describe, storable
from fencepost.core.job import KNOWS_NO_TASK
from fencepost.core.lease import TrustWindow
from fencepost.core.operation import Operation
from fencepost.core.outcome import (
    Action,
    Cancelled,
    Disabled,
    Failed,
    Refused,
    Reschedule,
    Result,
    RetryPolicy,
    TimedOut,
    Unstarted,
    decide,
)
from fencepost.core.states import Event, Recovery
from fencepost.errors import ConfigError
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.heartbeat import Heartbeat
from fencepost.runtime.held import OVERDUE_SECONDS, Held, Stage
from fencepost.runtime.job_claimer import JobBatch, JobClaimer
from fencepost.runtime.job_results import JobCounters, JobResults
from fencepost.runtime.job_run import HeldJob, run_job
from fencepost.runtime.job_upkeep import purge_jobs_forever, reclaim_forever
from fencepost.runtime.lifecycle import LeaseHolder, UnexpectedFailure, tend
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.retention import purge_ledger_forever
from fencepost.runtime.schedules import Scheduler
from fencepost.runtime.threads import Threads
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import job_fenced
from fencepost.store.jobs import JobTerms

log = logging.getLogger("fencepost.worker")

UNKNOWN_TASK_LEASE = timedelta(seconds=30)
"""Of jobs whose task this worker does not know, and which it gives back at once."""

UNKNOWN_TASK_POLICY = RetryPolicy()

UNKNOWN_TASK_PAUSE = 10.0
"""Seconds, on average, until such a job is claimed again: by a worker that knows its task, if there is one."""

LINGER = 0.005
"""Seconds to wait for more room while jobs end quickly, so that a claim takes several."""

MOST_UNWRITTEN = 4
"""Results that may wait to be written, as a multiple of the concurrency, before nothing else is claimed."""

PROBATION = 30.0
"""Seconds that a job on which a worker may have crashed runs with nothing else beside it."""

FROZEN_AFTER = 300.0
"""Seconds that the event loop may be blocked before its leases are let go: it is taken for dead."""

LEAST_PATIENCE, MOST_PATIENCE = 0.2, 30.0
"""Seconds that a suspect waits for the jobs that run, before nothing else is started."""


class Worker(LeaseHolder[HeldJob]):
    """Runs jobs.

    Args:
        store: the database's address, ``postgresql://…`` or ``embedded:``.
        jobs: the tasks, and where the tables are.
        settings: everything else; or give single settings as keyword arguments.

    Raises:
        ConfigError: settings that cannot work, or no task that has a handler.
    """

    _kind = "worker"
    _single_step = "work_once"

    def __init__(
        self, store: str, jobs: Jobs | AsyncJobs, settings: WorkerSettings | None = None, **options: Any
    ) -> None:
        if settings is not None and options:
            raise ConfigError("give settings, or single settings as keyword arguments, not both")
        self.settings = settings or _settings(options)
        self._jobs = jobs
        self._tasks = {name: task for name, task in jobs.registry.tasks.items() if task.handler is not None}
        if not self._tasks:
            raise ConfigError("there is no task to work on: give functions a name with @jobs.task(…)")
        self._policies = {name: task.policy for name, task in self._tasks.items()}
        shortest = min(task.lease for task in self._tasks.values())
        self._shortest_lease = min(shortest, UNKNOWN_TASK_LEASE)
        super().__init__(store, jobs.catalog, self.settings.grace, Limits.below(self._shortest_lease))
        self.counters = JobCounters()
        self._unexpected: BaseException | None = None

    # --- set-up ------------------------------------------------------------------------------------------

    async def _set_up(self, stack: AsyncExitStack) -> None:
        self._held = Held()
        self._wakeup = Wakeup()
        self._flight: set[HeldJob] = set()
        self._ended = asyncio.Event()
        self._probation_until = 0.0
        self._usual_duration = 0.0
        self._is_cut_off = False
        self._unexpected = None
        self._threads = Threads(self._thread_ended, self._note_hung_thread, "fencepost job")
        url = await self._open_store(stack)
        self._claim_link = self._link(stack, url, "claim")
        await self._check_schema(self._claim_link)
        results = JobResults(self._catalog, self.counters, self._written)
        self._finalizer = Finalizer(self._link(stack, url, "finalize"), self._held, results)
        self._claimer = JobClaimer(
            self._claim_link,
            self._catalog,
            self._terms(),
            self.settings.queues,
            self._patience,
            self._note_exhausted,
        )
        heartbeat = Heartbeat(
            url,
            self._catalog,
            lambda: self._limits,
            self._held,
            renew=self._renew,
            kind="job",
            every=lambda: self._shortest_lease.total_seconds() / 3,
            frozen_after=FROZEN_AFTER,
            on_stall=self._count_stall,
            on_reconnect=self._count_reconnect,
        )
        heartbeat.start()
        stack.push_async_callback(heartbeat.stop, 0.2)
        self._run_beside(
            stack,
            self._wakeup,
            self._catalog.names.job_channel,
            (self.settings.listen_store or url) if self.settings.notify else None,
            finalize=self._finalizer.run(),
            upkeep=self._upkeep(self._link(stack, url, "upkeep")),
        )

    def _terms(self) -> JobTerms:
        tasks = {name: task.terms for name, task in self._tasks.items()}
        return JobTerms(self.settings.owner, tasks, UNKNOWN_TASK_LEASE)

    async def _upkeep(self, link: Link) -> None:
        work = [reclaim_forever(link, self._catalog, self.settings, self.counters, self._wakeup)]
        schedules = Scheduler(link, self._jobs, self.settings.poll_interval, self.counters, self._wakeup)
        if self._jobs.registry.schedules:
            work.append(schedules.run())
        if self.settings.retention is not None:
            work.append(purge_jobs_forever(link, self._catalog, self.settings.retention))
        if (kept := self.settings.ledger_retention) is not None and self._terms().needs_transaction:
            work.append(purge_ledger_forever(link, self._catalog, kept, lambda: True))
        await tend(work, self._give_up_on_overdue, OVERDUE_SECONDS / 4)

    # --- claiming ----------------------------------------------------------------------------------------

    async def work_once(self) -> int:
        """Claim what there is room for, from all queues, run it, write the results; return how many were claimed.

        Inside ``async with worker:`` connections stay open between calls.

        Raises:
            UnexpectedFailure: with ``on_unexpected="stop"``.
        """
        if self._stack is None:
            async with self:
                return await self.work_once()
        with self._busy():
            begun = 0
            while begun < self.settings.concurrency and not self._stop.asked.is_set():
                # A claim takes from one queue: the others must not wait for another call.
                batch = await self._claimer.next(self.settings.concurrency - begun, is_idle=not begun)
                self._start(batch)
                begun += len(batch.claimed)
                if not batch.claimed or batch.is_suspect:
                    break
            await self._all_ended()
            await self._finalizer.drained()
            self._raise_unexpected()
            return begun

    def _loops(self) -> Mapping[asyncio.Task[None], Link]:
        return {asyncio.create_task(self._claim_until_stopped(), name="claim"): self._claim_link}

    async def _claim_until_stopped(self) -> None:
        while not self._stop.asked.is_set():
            room = await self._room()
            if self._stop.asked.is_set():
                return
            batch = await self._claim(room)
            self._start(batch)
            if not batch.claimed and not self._stop.asked.is_set():
                await self._pause(batch)

    async def _room(self) -> int:
        """Wait until there is room, and a little longer where several jobs end at once; return for how many."""
        wanted = max(1, self.settings.concurrency // 4)
        waited = False
        while not self._stop.asked.is_set():
            self._ended.clear()
            free = self._free()
            if free >= wanted or (free and waited):
                return free
            if free:
                await _within(self._ended, LINGER)
                waited = True
            else:
                await _within(self._ended, self._left_of_probation())
        return 0

    def _free(self) -> int:
        if self._flight and time.monotonic() < self._probation_until:
            return 0
        if self._finalizer.backlog >= MOST_UNWRITTEN * self.settings.concurrency:
            return 0  # jobs end faster than their results can be written
        return self.settings.concurrency - len(self._flight) - self._threads.abandoned

    def _left_of_probation(self) -> float | None:
        left = self._probation_until - time.monotonic()
        return left if left > 0 else None

    async def _claim(self, room: int) -> JobBatch:
        try:
            return await self._claimer.next(room, is_idle=not self._flight)
        except Exception as error:
            log.exception("a claim failed in a way that is not understood: %s; trying again", describe(error))
            return JobBatch(retry_in=self.settings.poll_interval.total_seconds())

    async def _pause(self, batch: JobBatch) -> None:
        if batch.wants_alone:
            self._ended.clear()
            await _within(self._ended, self.settings.poll_interval.total_seconds())
            return
        at_most = self.settings.poll_interval.total_seconds()
        if batch.retry_in is not None:
            at_most = min(at_most, batch.retry_in)
        # Spread a little, so that many idle workers do not all poll in the same instant.
        await self._wakeup.wait(at_most * random.uniform(0.9, 1.0))  # noqa: S311 - jitter
        self._claimer.look_again()

    def _patience(self) -> float:
        return min(MOST_PATIENCE, max(LEAST_PATIENCE, 3 * self._usual_duration))

    # --- running -----------------------------------------------------------------------------------------

    def _start(self, batch: JobBatch) -> None:
        held = [
            HeldJob(
                TrustWindow(batch.sent_at, claimed.lease.total_seconds()),
                batch.sent_at,
                claimed,
                self._tasks.get(claimed.job.task),
            )
            for claimed in batch.claimed
        ]
        self.counters.claimed += len(held)
        self._held.add(held)
        if batch.is_suspect:
            self._probation_until = time.monotonic() + PROBATION
        for each in held:
            self._begin(each)

    def _begin(self, held: HeldJob) -> None:
        if held.task is None:
            self._give_back_unknown(held)
        elif self._stop.asked.is_set() or held.window.is_over(time.monotonic()):
            # (The answer to a claim may come so late that its leases are over.)
            self._finish(held, Unstarted())
        else:
            self._flight.add(held)
            held.runner = asyncio.create_task(self._run(held, held.task))

    def _give_back_unknown(self, held: HeldJob) -> None:
        name = storable(held.claimed.job.task, 200)
        log.error("job %d: this worker knows no task %r and gives it back to others", held.id, name)
        pause = timedelta(seconds=UNKNOWN_TASK_PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
        text = f"worker {self.settings.owner}{KNOWS_NO_TASK}{name!r}: given back to others"
        self._finalizer.submit(held, Reschedule(Event.DEFER, pause, text, refund_attempt=True))

    async def _run(self, held: HeldJob, task: Task) -> None:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        held.stage = Stage.PUBLISHING
        timer: asyncio.TimerHandle | None = None
        if task.soft_limit is not None:
            held.soft_at = began + task.soft_limit.total_seconds()
        if task.hard_limit is not None:
            held.deadline = began + task.hard_limit.total_seconds()
            timer = loop.call_later(task.hard_limit.total_seconds(), self._time_out, held)
        held.lost.call(lambda: _from_any_thread(loop, held))
        result: Result = Unstarted()
        try:
            # A task that is cancelled before its first step never runs: it looks here.
            if not (self._is_cut_off or held.lost):
                context = held.context(self._stop.asked.is_set)
                result = await run_job(held, task, context, self._threads, self._note_unexpected)
        except asyncio.CancelledError:
            result = self._cancelled(held, task)
        except Exception as error:
            # It may have run: given back as unstarted it would run again for nothing, and so for ever.
            log.exception("the run of job %d ended in a way that is not understood", held.id)
            result = TimedOut(describe(error))
        finally:
            if timer is not None:
                timer.cancel()
            self._land(held, result, time.monotonic() - began)

    def _land(self, held: HeldJob, result: Result, seconds: float) -> None:
        self._flight.discard(held)
        self._usual_duration += (seconds - self._usual_duration) / 8
        if not self._flight:
            self._probation_until = 0.0
        if held.claimed.reclaim_count > 0:
            self._claimer.survived()
        if held.stage is not Stage.FINALIZING:  # else it was given up on
            self._finish(held, result)
        self._ended.set()

    def _finish(self, held: HeldJob, result: Result) -> None:
        if isinstance(result, TimedOut):
            self.counters.timed_out += 1
        try:
            action = self._decide(held, result)
        except Exception as error:
            # Such as a delay that is no delay: the job must not be held for ever because of it.
            log.exception("the result of job %d makes no sense: treated as retryable", held.id)
            action = self._decide(held, TimedOut(describe(error)))
        self._finalizer.submit(held, action)

    def _decide(self, held: HeldJob, result: Result) -> Action:
        claimed = held.claimed
        if isinstance(result, Disabled):
            result = Refused(result.error)  # there is no destination to pause
        action = decide(
            result,
            _limited(self._policies.get(claimed.job.task, UNKNOWN_TASK_POLICY), claimed.max_attempts),
            attempt=claimed.attempt,
            recovery=claimed.recovery,
            age=claimed.age + timedelta(seconds=time.monotonic() - held.claimed_at),
            fraction=random.random(),  # noqa: S311 - jitter, not a secret
        )
        if isinstance(result, Cancelled) and self._is_cut_off and claimed.recovery is not Recovery.MANUAL:
            # Unlike a message's: a deploy must not use up the attempts of jobs that outlast its grace time. (But
            # not the first one of a job to be verified: the next has to ask about it. And not where the lease was
            # lost: a job whose handler keeps the heartbeats from their thread would run again for nothing.)
            refund = claimed.recovery is Recovery.AUTO or claimed.attempt > 1
            return Reschedule(Event.CANCELLED, timedelta(0), result.error, refund_attempt=refund, is_unknown=True)
        return action

    def _cancelled(self, held: HeldJob, task: Task) -> Result:
        """Tell what cancelled its task: its hard limit, we, or the handler itself."""
        if held.timed_out:
            return self._timed_out(task)
        if held.lost or self._is_cut_off:
            return Cancelled()
        return Failed("its handler cancelled its own task", unexpected=True)

    def _time_out(self, held: HeldJob) -> None:
        held.timed_out = True
        if held.runner is not None:
            held.runner.cancel()

    def _timed_out(self, task: Task) -> TimedOut:
        limit = task.hard_limit or timedelta(0)
        return TimedOut(f"it ran for longer than the hard time limit of {limit.total_seconds():g} s")

    def _give_up_on_overdue(self) -> None:
        """Finish the jobs whose handler goes on although it was cancelled at its hard limit."""
        now = time.monotonic()
        for held in [each for each in self._flight if each.is_overdue(now) and each.task is not None]:
            log.error("the handler of job %d ignores its hard limit; its slot stays taken until it ends", held.id)
            if held.task is not None and held.stage is not Stage.FINALIZING:
                held.lost.set()
                self._finish(held, self._timed_out(held.task))

    # --- results, heartbeats, and what else is told ------------------------------------------------------

    def _written(self) -> None:
        """Results stand in the database: lanes may have room again, and so may we."""
        self._wakeup.set()
        self._ended.set()

    def _renew(self, held: Sequence[HeldJob], lease: timedelta) -> Operation[frozenset[int]]:
        news = {each.id: each.progress for each in held if each.progress is not each.said}
        told = {row_id: text for row_id, text in news.items() if text is not None}
        lost = yield from job_fenced.heartbeat(self._catalog, [each.claimed for each in held], lease, told)
        for each in held:
            each.said = news.get(each.id, each.said)
        return lost

    def _thread_ended(self) -> None:
        self._ended.set()

    def _note_hung_thread(self, hung: int) -> None:
        self.counters.hung_threads += 1
        log.error(
            "a handler hangs in its thread although it was told to stop; such threads take %d of %d slots%s",
            hung,
            self.settings.concurrency,
            ": nothing is claimed any more, restart this process" if hung >= self.settings.concurrency else "",
        )

    def _note_exhausted(self, many: int) -> None:
        self.counters.failed += many
        log.warning("%d jobs have failed (exhausted): they were over their limit of attempts when claimed", many)

    def _note_unexpected(self, error: BaseException) -> None:
        self.counters.unexpected += 1
        if self.settings.on_unexpected == "stop" and self._unexpected is None:
            self._unexpected = error
            self._stop.asked.set()

    def _count_reconnect(self) -> None:
        self.counters.reconnects += 1

    def _count_stall(self) -> None:
        self.counters.stalls += 1

    # --- stopping ----------------------------------------------------------------------------------------

    def _stopping(self) -> None:
        self._ended.set()
        self._wakeup.set()

    async def _all_ended(self) -> None:
        while self._in_flight():
            self._ended.clear()
            await self._ended.wait()

    def _in_flight(self) -> list[HeldJob]:
        return [each for each in self._flight if each.stage is not Stage.FINALIZING]

    async def _landed(self) -> None:
        await self._all_ended()

    async def _cut_off(self, patience: float) -> None:
        self._is_cut_off = True
        running = [each.runner for each in self._flight if each.runner is not None]
        for each in self._in_flight():
            each.lost.set()  # for handlers in threads, which cannot be cancelled
        for runner in running:
            runner.cancel()
        if running and patience:
            await asyncio.wait(running, timeout=patience)
        for held in self._held.in_stage(Stage.PUBLISHING):
            self._finish(held, Cancelled())
        for held in self._held.in_stage(Stage.WAITING):
            self._finish(held, Unstarted())

    async def _settled(self) -> None:
        """There is nothing else to write."""

    def _raise_unexpected(self) -> None:
        if self._unexpected is not None:
            raise UnexpectedFailure(
                f"stopped, since a handler raised {describe(self._unexpected)}"
            ) from self._unexpected


@functools.lru_cache(maxsize=1_000)
def _limited(policy: RetryPolicy, max_attempts: int) -> RetryPolicy:
    """Return the limits of a job: its task's, but for its own limit of attempts."""
    return replace(policy, max_attempts=max_attempts)


def _from_any_thread(loop: asyncio.AbstractEventLoop, held: HeldJob) -> None:
    """Cancel a handler whose lease is lost; its loop may be closed already."""
    if held.runner is not None and not loop.is_closed():
        loop.call_soon_threadsafe(held.runner.cancel)


async def _within(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _settings(options: dict[str, Any]) -> WorkerSettings:
    try:
        return WorkerSettings(**options)
    except TypeError as error:
        known = ", ".join(WorkerSettings.__dataclass_fields__)
        raise ConfigError(f"{error}; the settings are: {known}") from None
