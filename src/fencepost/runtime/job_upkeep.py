"""What nobody else comes by for: jobs of lost workers are taken back, and old ones deleted, in small steps."""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import timedelta

from fencepost.config import WorkerSettings
from fencepost.core.error_text import describe
from fencepost.core.job_states import JobState
from fencepost.runtime.job_results import JobCounters
from fencepost.runtime.link import Link
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import jobs as store
from fencepost.store.catalog import Catalog

log = logging.getLogger("fencepost.reclaim")

RECLAIM_STEP = 100
PURGE_STEP = 500
PURGE_PAUSE, PURGE_REST = 0.5, 60.0


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
    """Delete what was done longer ago than ``retention``, a small step at a time."""
    while True:
        gone = 0
        try:
            gone = await link.run(lambda: store.purge(catalog, older_than=retention, limit=PURGE_STEP), tries=1)
        except Exception as error:  # noqa: BLE001 - there is always a next time
            log.warning("a step of the clean-up failed: %s; it goes on in a while", describe(error))
        pause = PURGE_PAUSE if gone == PURGE_STEP else PURGE_REST
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - not in step with the others
