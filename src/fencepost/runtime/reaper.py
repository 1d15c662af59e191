"""Buries messages whose lease expired and that nobody may take over, in small steps beside the claims."""

from __future__ import annotations

import asyncio
import logging
import random

from fencepost.config import DispatcherSettings
from fencepost.core.error_text import describe
from fencepost.runtime.counters import Counters
from fencepost.runtime.link import Link
from fencepost.store import outbox as store
from fencepost.store.catalog import Catalog

log = logging.getLogger("fencepost.reaper")

STEP = 100


async def reap_forever(link: Link, catalog: Catalog, settings: DispatcherSettings, counters: Counters) -> None:
    """Reap one step every poll interval, or at once again while steps come back full."""
    queues = settings.queues or store.Rotation()
    while True:
        buried = 0
        try:
            buried = await _reap_once(link, catalog, queues, settings.max_attempts, counters)
        except Exception as error:
            log.exception("reaping failed in a way that is not understood: %s", describe(error))
        if buried < STEP:
            # Not in step with the other workers, which reap as well.
            pause = settings.poll_interval.total_seconds() * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
            await asyncio.sleep(pause)


async def _reap_once(
    link: Link, catalog: Catalog, queues: store.Queues, max_attempts: int, counters: Counters
) -> int:
    buried = await link.run(lambda: store.reap(catalog, queues=queues, max_attempts=max_attempts, limit=STEP))
    counters.reaped += len(buried)
    for row_id, outcome in buried:
        log.warning("message %d is dead (%s): the lease of its last worker expired", row_id, outcome)
    return len(buried)
