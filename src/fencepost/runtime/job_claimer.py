"""Decides which jobs this process claims next, and claims them.

Queues are asked in the order of their priority. In each, jobs without a limit and jobs in lanes take turns. A job
that a worker may have crashed on is claimed alone, while nothing else runs here: it must not take others with it.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from fencepost.core.error_text import describe
from fencepost.core.job import ClaimedJob
from fencepost.core.operation import Operation
from fencepost.core.suspects import SPARE_ATTEMPTS, SUSPECTS_BEFORE_BATCH
from fencepost.runtime.link import Link
from fencepost.store import jobs as store
from fencepost.store.catalog import Catalog

log = logging.getLogger("fencepost.worker")

LOOKS_PER_CLAIM = 4
"""Steps of the walk through a queue's lanes that one claim takes at most, where nothing fits."""

LOOK_LASTS = 0.25
"""Seconds that a look at the queues holds, while claims come back full."""

BUSY_PAUSE = 0.05
"""Seconds until another try, where another worker is just counting what runs."""


@dataclass(frozen=True, slots=True)
class JobBatch:
    """What one claim took.

    Args:
        claimed: the jobs.
        sent_at: monotonic instant before the claim was sent, from which their leases count.
        is_suspect: one that a worker may have crashed on: nothing else is started beside it for a while.
        retry_in: seconds until there may be more; None where a notice or the next poll will tell.
        wants_alone: a suspect waits until nothing else runs here; nothing else is claimed meanwhile.
    """

    claimed: Sequence[ClaimedJob] = ()
    sent_at: float = 0.0
    is_suspect: bool = False
    retry_in: float | None = None
    wants_alone: bool = False


_Claiming = Awaitable[JobBatch]


@dataclass(slots=True)
class _QueueState:
    """What is remembered of a queue."""

    walk: store.LaneWalk = field(default_factory=store.LaneWalk)
    lanes_turn: bool = False


class JobClaimer:
    """Claims for one worker.

    Args:
        terms: who claims, and the tasks that it knows.
        queues: in the order of their priority; None for all of them, each first in its turn.
        patience: returns the seconds that a suspect may wait for what runs, before nothing else is claimed.
        on_exhausted: told how many jobs a claim found over their limit of attempts, and failed instead.
    """

    def __init__(
        self,
        link: Link,
        catalog: Catalog,
        terms: store.JobTerms,
        queues: Sequence[str] | None,
        patience: Callable[[], float],
        on_exhausted: Callable[[int], None],
    ) -> None:
        self._link, self._catalog, self._terms = link, catalog, terms
        self._queues, self._patience, self._on_exhausted = queues, patience, on_exhausted
        self._states: dict[str, _QueueState] = {}
        self._looks: list[store.Look] = []
        self._looked_at = float("-inf")
        self._turn = 0
        self._owes_normal = False
        self._suspects_since: float | None = None
        self._survived = 0
        self._exhausted = 0

    def survived(self) -> None:
        """Note that a suspect ran, whatever came of it, and this process lives on."""
        self._survived += 1

    def look_again(self) -> None:
        """Forget what the queues had: there was a notice, or a job ended."""
        self._looked_at = float("-inf")

    async def next(self, room: int, *, is_idle: bool) -> JobBatch:
        """Claim up to ``room`` jobs.

        Args:
            is_idle: nothing runs in this process.
        """
        while True:
            before = self._exhausted
            batch = await self._next(room, is_idle)
            if batch.claimed or self._exhausted == before:
                return batch
            # Those in front were over their limit, and are out of the way: what is behind them is next.

    async def _next(self, room: int, is_idle: bool) -> JobBatch:
        await self._look()
        if any(each.has_suspects for each in self._looks):
            batch = await self._suspects(room, is_idle)
            if batch is not None:
                return batch
        else:
            self._suspects_since, self._survived = None, 0
        self._owes_normal = False
        is_busy = False
        for each in self._in_turn():
            for claim in self._kinds(each):
                batch = await claim(each.queue, room)
                if batch.claimed:
                    return batch
                is_busy = is_busy or batch.retry_in is not None
        self.look_again()
        return JobBatch(retry_in=BUSY_PAUSE if is_busy else None)

    # --- what there is -----------------------------------------------------------------------------------

    async def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_LASTS:
            return
        self._looks = await self._link.run(lambda: store.look(self._catalog, self._queues))
        self._looked_at = now
        known = {each.queue for each in self._looks}
        self._states = {queue: state for queue, state in self._states.items() if queue in known}

    def _in_turn(self) -> list[store.Look]:
        """By priority, where queues were named; otherwise each one is the first in its turn."""
        if self._queues is not None or not self._looks:
            return list(self._looks)
        self._turn = (self._turn + 1) % len(self._looks)
        return self._looks[self._turn :] + self._looks[: self._turn]

    def _kinds(self, look: store.Look) -> list[Callable[[str, int], _Claiming]]:
        kinds: list[Callable[[str, int], _Claiming]] = []
        if look.is_due:
            kinds.append(self._plain)
        if look.has_lanes:
            kinds.append(self._lanes)
        state = self._state(look.queue)
        state.lanes_turn = not state.lanes_turn
        return kinds[::-1] if state.lanes_turn else kinds

    def _state(self, queue: str) -> _QueueState:
        return self._states.setdefault(queue, _QueueState())

    # --- claims ------------------------------------------------------------------------------------------

    async def _plain(self, queue: str, room: int) -> JobBatch:
        claim = functools.partial(store.claim, self._catalog, self._terms, queue, room)
        found, sent_at = await self._send(claim, atomic=self._terms.needs_transaction)
        return JobBatch(found.claimed, sent_at)

    async def _lanes(self, queue: str, room: int) -> JobBatch:
        walk = self._state(queue).walk
        began_later = not walk.is_at_its_start
        for _ in range(LOOKS_PER_CLAIM):
            found, sent_at = await self._send(
                lambda: store.claim_lanes(self._catalog, self._terms, queue, room, walk), atomic=True
            )
            if found.is_busy:
                return JobBatch(retry_in=BUSY_PAUSE)
            if found.claimed:
                return JobBatch(found.claimed, sent_at)
            if walk.is_at_its_start and not began_later:
                return JobBatch()  # all round, and nothing that fits
            began_later = False if walk.is_at_its_start else began_later
        return JobBatch(retry_in=BUSY_PAUSE)

    async def _suspects(self, room: int, is_idle: bool) -> JobBatch | None:
        """Claim a suspect where that may be now; None where others come first."""
        now = time.monotonic()
        if self._suspects_since is None:
            self._suspects_since = now
        if self._survived >= SUSPECTS_BEFORE_BATCH:
            batch = await self._first_suspects(room, max_reclaims=1, spare_attempts=SPARE_ATTEMPTS)
            self._survived = 0
            if batch.claimed:
                return batch
        if not is_idle:
            has_waited = now - self._suspects_since > self._patience() * random.uniform(0.7, 1.3)  # noqa: S311 - jitter
            return JobBatch(wants_alone=True) if has_waited else None
        if self._owes_normal:
            return None
        batch = await self._first_suspects(1)
        self._suspects_since, self._owes_normal = None, True
        return JobBatch(batch.claimed, batch.sent_at, is_suspect=True) if batch.claimed else None

    async def _first_suspects(
        self, room: int, max_reclaims: int = store.NO_LIMIT, spare_attempts: int = 0
    ) -> JobBatch:
        for each in self._in_turn():
            if not each.has_suspects:
                continue
            claim = functools.partial(
                store.claim_suspects,
                self._catalog,
                self._terms,
                each.queue,
                room,
                max_reclaims,
                spare_attempts,
            )
            found, sent_at = await self._send(claim, atomic=True)
            if found.claimed:
                return JobBatch(found.claimed, sent_at)
        return JobBatch()

    async def _send(
        self, make: Callable[[], Operation[store.JobClaim]], *, atomic: bool
    ) -> tuple[store.JobClaim, float]:
        sent_at = 0.0

        def timed() -> Operation[store.JobClaim]:
            nonlocal sent_at
            sent_at = time.monotonic()  # of the try that worked
            return make()

        try:
            found = await self._link.run(timed, atomic=atomic)
        except Exception as error:
            # One odd row must not keep the other queues from being served.
            log.exception("a claim failed in a way that is not understood: %s; trying again", describe(error))
            return store.JobClaim(), sent_at
        if found.exhausted:
            self._exhausted += found.exhausted
            self._on_exhausted(found.exhausted)
        return found, sent_at
