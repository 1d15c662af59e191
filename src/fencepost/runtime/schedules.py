"""Looks after the schedules: any number of workers does, and each tick is enqueued once.

Nothing of it depends on a worker's clock: the database's decides what is due, and the row of a schedule, held in
the transaction that enqueues its ticks, decides who enqueues them (`fencepost.store.schedules.step`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from datetime import datetime, timedelta

from fencepost.client.jobs import AsyncJobs, Jobs
from fencepost.client.schedules import Schedule
from fencepost.core.error_text import describe
from fencepost.core.ticks import due
from fencepost.runtime.job_results import JobCounters
from fencepost.runtime.link import Link
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import schedules as store
from fencepost.store.schedules import StoredSchedule, Ticked

log = logging.getLogger("fencepost.schedules")

SPREAD = 0.02
"""Seconds within which the workers come by at a tick, rather than all at once."""

AHEAD = timedelta(minutes=1)
"""A schedule that stands further ahead than this waits for a clock that was stepped back."""


class Scheduler:
    """Enqueues what is due of the schedules of these jobs, every poll interval and at each tick.

    Args:
        poll: seconds between two looks at most.
    """

    def __init__(
        self, link: Link, jobs: Jobs | AsyncJobs, poll: timedelta, counters: JobCounters, wakeup: Wakeup
    ) -> None:
        self._link, self._jobs, self._catalog = link, jobs, jobs.catalog
        self._schedules = dict(jobs.registry.schedules)
        self._poll = min(poll, store.SEEN_EVERY).total_seconds()
        self._counters, self._wakeup = counters, wakeup
        self._unadopted = set(self._schedules)
        """Those whose definition this worker has not yet compared with its own."""
        self._told: set[str] = set()
        self._next: dict[str, tuple[datetime, datetime | None]] = {}
        """The tick behind the last one, by name: some are far away, and long to find."""

    async def run(self) -> None:
        """Look after them until cancelled."""
        while self._schedules:
            pause = self._poll
            try:
                pause = await self._step()
            except Exception as error:
                log.exception("the schedules failed in a way that is not understood: %s", describe(error))
            # Not in step with the other workers, which look after them as well.
            await asyncio.sleep(pause * random.uniform(0.8, 1.0) if pause == self._poll else pause)  # noqa: S311 - jitter

    async def _step(self) -> float:
        """Enqueue what is due; return the seconds until the next look."""
        rows = await self._link.run(lambda: store.look(self._catalog, list(self._schedules)))
        stored = {row.name: row for row in rows}
        missing = [each for name, each in self._schedules.items() if name not in stored]
        for schedule in missing:
            await self._register(schedule)
        pauses = [0.0 if missing else self._poll]
        for name, row in stored.items():
            try:
                pauses.append(await self._look_after(self._schedules[name], row))
            except Exception as error:
                # One odd schedule must not stop the others.
                log.exception("schedule %s failed in a way that is not understood: %s", name, describe(error))
        await self._sign(rows)
        return min(pauses)

    async def _register(self, schedule: Schedule) -> None:
        await self._link.run(lambda: store.register(self._catalog, schedule.name, schedule.definition))

    async def _look_after(self, schedule: Schedule, row: StoredSchedule) -> float:
        if row.definition != schedule.definition:
            if schedule.name not in self._unadopted and not row.is_unseen:
                self._tell_once(schedule, "a worker that started later declares it otherwise: left to that")
                return self._poll
        else:
            self._unadopted.discard(schedule.name)
            wait = self._until_next(schedule, row)
            if wait > 0:
                return wait
        ticked = await self._enqueue(schedule)
        if ticked is None:
            return self._poll  # somebody else is at it
        self._unadopted.discard(schedule.name)
        self._told.discard(schedule.name)
        return 0.0 if ticked.has_more else self._until_next(schedule, ticked.stored)

    async def _enqueue(self, schedule: Schedule) -> Ticked | None:
        step = functools.partial(
            store.step,
            self._catalog,
            schedule.name,
            schedule.definition,
            adopts=schedule.name in self._unadopted,
            due=lambda last_tick, now: due(schedule.cron.after, last_tick, now, schedule.catch_up),
            draft=functools.partial(self._jobs.job_at, schedule),
            notify=self._jobs.notify,
        )
        ticked = await self._link.run(step, atomic=True)
        if ticked is not None and ticked.enqueued:
            self._counters.scheduled += ticked.enqueued
            self._wakeup.notice()
        if ticked is not None and ticked.held_back:
            log.info("schedule %s: %d ticks without a job, as one is open", schedule.name, ticked.held_back)
        return ticked

    def _until_next(self, schedule: Schedule, row: StoredSchedule) -> float:
        """Return the seconds until its next tick, 0 where one is due, and a poll interval at most."""
        if row.last_tick > row.now + AHEAD:
            self._tell_once(
                schedule,
                f"it stands at {row.last_tick.isoformat()}, ahead of the database's clock, and rests until then: "
                "was that clock stepped back?",
            )
            return self._poll
        known = self._next.get(schedule.name)
        if known is None or known[0] != row.last_tick:
            known = row.last_tick, next(schedule.cron.after(row.last_tick), None)
            self._next[schedule.name] = known
        if known[1] is None:
            return self._poll
        left = (known[1] - row.now).total_seconds()
        if left <= 0:
            return 0.0
        return min(self._poll, left + random.uniform(0, SPREAD))  # noqa: S311 - jitter

    async def _sign(self, rows: list[StoredSchedule]) -> None:
        silent = [
            row.name for row in rows if row.seems_unseen and row.definition == self._schedules[row.name].definition
        ]
        if silent:
            await self._link.run(lambda: store.sign(self._catalog, silent))

    def _tell_once(self, schedule: Schedule, text: str) -> None:
        if schedule.name not in self._told:
            self._told.add(schedule.name)
            log.warning("schedule %s: %s", schedule.name, text)
