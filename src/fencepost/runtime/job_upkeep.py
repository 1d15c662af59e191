"""What nobody else comes by for: jobs of lost workers are taken back, and old ones deleted, in small steps."""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import timedelta

from fencepost.config import WorkerSettings
from fencepost.core.error_text import describe
from fencepost.core.job_states import JobState
from fencepost.core.operation import Operation
from fencepost.runtime.job_results import JobCounters
from fencepost.runtime.link import Link
from fencepost.runtime.retention import Walk
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import jobs as store
from fencepost.store.catalog import Catalog
from fencepost.store.upkeep import Purged

log = logging.getLogger("fencepost.reclaim")

RECLAIM_STEP = 100


async def reclaim_forever(
    link: Link, catalog: Catalog, settings: WorkerSettings, counters: JobCounters, wakeup: Wakeup
) -> None:
    """Take back one step every poll interval, or at once again while steps come back full."""
    while True:
        taken = 0
        try:
            taken = await _reclaim_once(link, catalog, counters)
        except Exception as error:
            log.exception("reclaiming failed in a way that is not understood: %s", describe(error))
        if taken:
            wakeup.notice()
        if taken < RECLAIM_STEP:
            # Not in step with the other workers, which reclaim as well.
            pause = settings.poll_interval.total_seconds() * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
            await asyncio.sleep(pause)


async def _reclaim_once(link: Link, catalog: Catalog, counters: JobCounters) -> int:
    taken = await link.run(lambda: store.reclaim(catalog, limit=RECLAIM_STEP))
    counters.reclaimed += len(taken)
    for job in taken:
        if job.state is JobState.QUEUED:
            log.warning("job %d is queued again: the lease of worker %s expired", job.id, job.worker)
        else:
            log.warning("job %d has failed (%s): the lease of worker %s expired", job.id, job.outcome, job.worker)
    return len(taken)


async def purge_jobs_forever(link: Link, catalog: Catalog, retention: timedelta) -> None:
    """Delete what was done longer ago than ``retention``, in small steps, for ever."""
    walk = JobWalk(link, catalog, retention)
    while True:
        await asyncio.sleep(walk.pause * random.uniform(0.8, 1.2))  # noqa: S311 - not in step with the others
        await walk.step()


class JobWalk(Walk):
    """As the messages' walk, over jobs: each step begins with the oldest."""

    what = "jobs"

    def _purge(self) -> Operation[Purged]:
        deleted = yield from store.purge(self._catalog, older_than=self._retention, limit=self.limit)
        return Purged(deleted, after=1 if deleted >= self.limit else None)
