"""What nobody else comes by for, in small steps beside the claims.

Messages whose lease expired and that nobody may take over are buried; parked ones go on where somebody removed
by hand what stood before them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random

from fencepost.config import DispatcherSettings
from fencepost.core.error_text import describe
from fencepost.core.operation import Operation
from fencepost.runtime.counters import Counters
from fencepost.runtime.link import Link
from fencepost.store import outbox as store
from fencepost.store.catalog import Catalog
from fencepost.store.keys import promote_stranded
from fencepost.store.order import Key

log = logging.getLogger("fencepost.reaper")

STEP = 100

STRANDED_PAUSE = 10.0
"""Seconds between looks for parked messages that have nothing before them."""


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


async def promote_stranded_forever(link: Link, catalog: Catalog) -> None:
    """Go through the ordering keys a step at a time, for ever, and let those go on that nobody would wake."""
    after: Key | None = None
    while True:
        await asyncio.sleep(STRANDED_PAUSE * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
        try:
            promoted, after = await link.run(functools.partial(_next_stranded, catalog, after), atomic=True)
        except Exception as error:
            log.exception("a look for parked messages failed in a way that is not understood: %s", describe(error))
            continue
        if promoted:
            log.warning("%d ordering keys were parked with nothing before them, and go on", promoted)


def _next_stranded(catalog: Catalog, after: Key | None) -> Operation[tuple[int, Key | None]]:
    return promote_stranded(catalog, after=after, limit=STEP)
