"""Deletes messages whose retention is over, beside everything else: small steps with long pauses between them."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable
from datetime import timedelta

from fencepost.config import DispatcherSettings
from fencepost.core.error_text import describe
from fencepost.core.operation import Operation
from fencepost.drivers.faults import Fault, fault_of
from fencepost.runtime.link import Link
from fencepost.store import ledger, partitions, upkeep
from fencepost.store.catalog import Catalog

log = logging.getLogger("fencepost.retention")

LARGEST_STEP = 1_000

WANTED_SECONDS = 0.05
"""What a step should take: long ones become smaller, short ones larger."""

PAUSE_FACTOR = 9.0
"""Pauses between steps are so many times as long as the step: it works a tenth of the time."""

REST_SECONDS = 60.0
"""Between two walks over the outbox, and before the first one."""

_SHORTEST_PAUSE = 0.05


async def purge_forever(link: Link, catalog: Catalog, settings: DispatcherSettings) -> None:
    """Delete what was done longer ago than ``settings.retention``, until cancelled.

    Many dispatchers may do so: where two meet, one gives way and rests. Give it a link of its own, or
    claims wait for its steps.
    """
    if settings.retention is None:
        await asyncio.Event().wait()  # a background task that ends would end the dispatcher
        return
    walk = Walk(link, catalog, settings.retention)
    while True:
        await asyncio.sleep(walk.pause * random.uniform(0.8, 1.2))  # noqa: S311 - not in step with the others
        if walk.is_at_its_start:
            await tend_partitions(link, catalog, settings.retention)
        await walk.step()


async def purge_ledger_forever(
    link: Link, catalog: Catalog, retention: timedelta, keeps_ledger: Callable[[], bool]
) -> None:
    """Delete attempts that began longer ago than ``retention``, while any queue keeps a ledger, for ever."""
    walk = LedgerWalk(link, catalog, retention)
    while True:
        await asyncio.sleep(walk.pause * random.uniform(0.8, 1.2))  # noqa: S311 - not in step with the others
        if keeps_ledger():
            await walk.step()


async def tend_partitions(link: Link, catalog: Catalog, retention: timedelta) -> None:
    """Make partitions ahead and drop those that are over, if there are any; what fails has another turn."""
    try:
        if not await link.run(lambda: partitions.is_partitioned(catalog), tries=1):
            return
        # One at a time, each in a transaction of its own, until there is nothing more to do.
        while name := await link.run(lambda: partitions.add_partition(catalog), atomic=True, tries=1):
            log.info("made partition %s", name)
        drop = functools.partial(partitions.drop_partition, catalog, older_than=retention)
        while name := await link.run(drop, atomic=True, tries=1):
            log.info("dropped partition %s: everything in it was done and its retention over", name)
    except Exception as error:  # noqa: BLE001 - there is always a next time
        log.log(
            logging.DEBUG if fault_of(error) is Fault.TRANSIENT else logging.WARNING,
            "partitions could not be tended just now: %s",
            describe(error),
        )


class Walk:
    """Where it is, how large its steps are, and how long to pause before the next one (in seconds)."""

    what = "messages"

    def __init__(self, link: Link, catalog: Catalog, retention: timedelta) -> None:
        self.pause = REST_SECONDS
        self.limit = 200
        self._link = link
        self._catalog = catalog
        self._retention = retention
        self._after = 0
        self._deleted = 0

    @property
    def is_at_its_start(self) -> bool:
        """It has looked at everything, and rested."""
        return self._after == 0

    async def step(self) -> None:
        """Take one step, and decide on the next one; what fails is tried again after a rest, in smaller steps."""
        began = time.monotonic()
        try:
            # Not again and again on the link: a step that times out would do so for ever.
            purged = await self._link.run(self._purge, tries=1)
        except Exception as error:  # noqa: BLE001 - there is always a next time
            self.limit = max(1, self.limit // 2)
            self.pause = REST_SECONDS / 4
            log.warning("a step of the clean-up failed: %s; smaller steps go on in a while", describe(error))
            return
        self._deleted += purged.deleted
        self._after = purged.after or 0
        if purged.gave_way or purged.after is None:
            self._rest()
        else:
            self._go_on(time.monotonic() - began, full=purged.deleted >= self.limit)

    def _purge(self) -> Operation[upkeep.Purged]:
        return upkeep.purge(self._catalog, older_than=self._retention, limit=self.limit, after=self._after)

    def _rest(self) -> None:
        if self._deleted:
            log.info("deleted %d %s whose retention was over", self._deleted, self.what)
        self._deleted = 0
        self.pause = REST_SECONDS

    def _go_on(self, seconds: float, *, full: bool) -> None:
        if seconds > WANTED_SECONDS * 2:
            self.limit = max(1, self.limit // 2)
        elif full and seconds < WANTED_SECONDS / 2:
            self.limit = min(LARGEST_STEP, self.limit * 2)
        self.pause = max(_SHORTEST_PAUSE, seconds * PAUSE_FACTOR)


class LedgerWalk(Walk):
    """The same, over the ledger of attempts."""

    what = "attempts"

    def _purge(self) -> Operation[upkeep.Purged]:
        return ledger.purge(self._catalog, older_than=self._retention, limit=self.limit, after=self._after)
