"""The worker: claims the jobs that it can start, runs their handlers outside any transaction, writes the results.

Async handlers run on the event loop, plain ones in threads. Heartbeats go over a connection and a thread of their
own, so that neither a blocked loop nor a busy thread can cost a lease.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from fencepost.client.jobs import AsyncJobs, Jobs
from fencepost.config import WorkerSettings
from fencepost.core.error_text import describe
from fencepost.core.operation import Operation
from fencepost.errors import ConfigError
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.heartbeat import Heartbeat
from fencepost.runtime.held import OVERDUE_SECONDS, Held
from fencepost.runtime.job_claimer import JobBatch, JobClaimer
from fencepost.runtime.job_flight import JobFlight
from fencepost.runtime.job_results import JobCounters, JobResults
from fencepost.runtime.job_run import HeldJob
from fencepost.runtime.job_upkeep import purge_jobs_forever, reclaim_forever
from fencepost.runtime.lifecycle import LeaseHolder, UnexpectedFailure, tend
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.retention import purge_ledger_forever
from fencepost.runtime.schedules import Scheduler
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import job_fenced
from fencepost.store.jobs import JobTerms

log = logging.getLogger("fencepost.worker")

UNKNOWN_TASK_LEASE = timedelta(seconds=30)
"""Of jobs whose task this worker does not know, and which it gives back at once."""

LINGER = 0.005
"""Seconds to wait for more room while jobs end quickly, so that a claim takes several."""

FROZEN_AFTER = 300.0
"""Seconds that the event loop may be blocked before its leases are let go: it is taken for dead."""


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
        shortest = min(task.lease for task in self._tasks.values())
        self._shortest_lease = min(shortest, UNKNOWN_TASK_LEASE)
        super().__init__(store, jobs.catalog, self.settings.grace, Limits.below(self._shortest_lease))
        self.counters = JobCounters()

    # --- set-up ------------------------------------------------------------------------------------------

    async def _set_up(self, stack: AsyncExitStack) -> None:
        self._held = Held()
        self._wakeup = Wakeup()
        url = await self._open_store(stack)
        self._claim_link = self._link(stack, url, "claim")
        await self._check_schema(self._claim_link)
        results = JobResults(self._catalog, self.counters, self._written)
        self._finalizer = Finalizer(self._link(stack, url, "finalize"), self._held, results)
        self._flight = JobFlight(
            self.settings,
            self._tasks,
            self._held,
            self._finalizer,
            self.counters,
            self._stop,
            self._note_survived,
        )
        self._claimer = JobClaimer(
            self._claim_link,
            self._catalog,
            self._terms(),
            self.settings.queues,
            self._flight.patience,
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
        await tend(work, self._flight.give_up_on_overdue, OVERDUE_SECONDS / 4)

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
                self._flight.start(batch)
                begun += len(batch.claimed)
                if not batch.claimed or batch.is_suspect:
                    break
            await self._flight.landed()
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
            self._flight.start(batch)
            if not batch.claimed and not self._stop.asked.is_set():
                await self._pause(batch)

    async def _room(self) -> int:
        """Wait until there is room, and a little longer where several jobs end at once; return for how many."""
        wanted = max(1, self.settings.concurrency // 4)
        waited = False
        while not self._stop.asked.is_set():
            self._flight.ended.clear()
            free = self._flight.free()
            if free >= wanted or (free and waited):
                return free
            if free:
                await _within(self._flight.ended, LINGER)
                waited = True
            else:
                await _within(self._flight.ended, self._flight.left_of_probation())
        return 0

    async def _claim(self, room: int) -> JobBatch:
        try:
            return await self._claimer.next(room, is_idle=self._flight.is_empty)
        except Exception as error:
            log.exception("a claim failed in a way that is not understood: %s; trying again", describe(error))
            return JobBatch(retry_in=self.settings.poll_interval.total_seconds())

    async def _pause(self, batch: JobBatch) -> None:
        if batch.wants_alone:
            self._flight.ended.clear()
            await _within(self._flight.ended, self.settings.poll_interval.total_seconds())
            return
        at_most = self.settings.poll_interval.total_seconds()
        if batch.retry_in is not None:
            at_most = min(at_most, batch.retry_in)
        # Spread a little, so that many idle workers do not all poll in the same instant.
        await self._wakeup.wait(at_most * random.uniform(0.9, 1.0))  # noqa: S311 - jitter
        self._claimer.look_again()

    # --- results, heartbeats, and what else is told ------------------------------------------------------

    def _written(self) -> None:
        """Results stand in the database: lanes may have room again, and so may we."""
        self._wakeup.set()
        self._flight.ended.set()

    def _renew(self, held: Sequence[HeldJob], lease: timedelta) -> Operation[frozenset[int]]:
        news = {each.id: each.progress for each in held if each.progress is not each.said}
        told = {row_id: text for row_id, text in news.items() if text is not None}
        lost = yield from job_fenced.heartbeat(self._catalog, [each.claimed for each in held], lease, told)
        for each in held:
            each.said = news.get(each.id, each.said)
        return lost

    def _note_survived(self) -> None:
        self._claimer.survived()

    def _note_exhausted(self, many: int) -> None:
        self.counters.failed += many
        log.warning("%d jobs have failed (exhausted): they were over their limit of attempts when claimed", many)

    def _count_reconnect(self) -> None:
        self.counters.reconnects += 1

    def _count_stall(self) -> None:
        self.counters.stalls += 1

    # --- stopping ----------------------------------------------------------------------------------------

    def _stopping(self) -> None:
        self._flight.ended.set()
        self._wakeup.set()

    async def _landed(self) -> None:
        await self._flight.landed()

    async def _cut_off(self, patience: float) -> None:
        await self._flight.cut_off(patience)

    async def _settled(self) -> None:
        """There is nothing else to write."""

    def _raise_unexpected(self) -> None:
        unexpected = self._flight.unexpected
        if unexpected is not None:
            raise UnexpectedFailure(f"stopped, since a handler raised {describe(unexpected)}") from unexpected


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
