"""Decides what this process claims next, and claims it.

Two kinds of claims take turns. A normal one takes a batch of messages that no crash has touched. A suspect's
one takes a single message whose worker may have crashed on it, to be published with nothing else in flight,
so that a message that kills its process spends nobody else's attempts. When the first few suspects of a
crash went well, the rest that expired with them, for the first time and with attempts to spare, come as a
batch: a machine that lost power must not make its whole load crawl.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.config import DispatcherSettings
from fencepost.core.lease import TrustWindow
from fencepost.core.records import Claimed
from fencepost.runtime.counters import Counters
from fencepost.runtime.held import Holding
from fencepost.runtime.link import Link
from fencepost.store import outbox as store
from fencepost.store.catalog import Catalog

log = logging.getLogger("fencepost.claim")

SUSPECTS_BEFORE_BATCH = 3


@dataclass(frozen=True, slots=True)
class Batch:
    """What one claim took."""

    holdings: Sequence[Holding] = ()
    alone: bool = False
    """Publish it with nothing else in flight."""


class Claimer:
    """Claims for one dispatcher."""

    def __init__(self, link: Link, catalog: Catalog, settings: DispatcherSettings, counters: Counters) -> None:
        self._link, self._catalog, self._settings, self._counters = link, catalog, settings, counters
        self._terms = store.ClaimTerms(settings.owner, settings.lease, settings.max_attempts)
        self._queues: list[str] = list(settings.queues or ())
        self._rotation = store.Rotation()
        self._listed_at: float | None = None
        self._suspects_at = 0.0
        # Whose turn is first is left to chance, so that neither kind waits for ever where many short-lived
        # processes claim once each.
        self._owes_normal = random.random() < 0.5  # noqa: S311 - a turn, not a secret
        self._largest = settings.batch
        self._survived = 0
        self._sent_at = 0.0

    async def next(self, room: int) -> Batch:
        """Claim at most ``room`` messages; an empty batch means that nothing is due."""
        await self._list_queues()
        suspects_due = time.monotonic() >= self._suspects_at
        if suspects_due and not self._owes_normal:
            batch = await self._claim_suspects_and_survive(room)
            if batch.holdings:
                self._owes_normal = True
                return batch
            self._suspects_at = time.monotonic() + self._settings.poll_interval.total_seconds()
            suspects_due = False
        self._owes_normal = False
        batch = await self._claim_normal(room)
        if not batch.holdings and suspects_due:
            return await self.next(room)
        return batch

    def shrink(self) -> None:
        """Claim less: an answer did not come, or came late, perhaps since it was too large for its time limit."""
        self._largest = max(1, self._largest // 4)

    def survived(self, holding: Holding) -> None:
        """Note that a suspect was published, whatever came of it, and this process lives on."""
        if holding.claimed.reclaim_count == 1:
            self._survived += 1

    async def _claim_normal(self, room: int) -> Batch:
        names = self._queues
        try:
            found = await self._claim_from(names, room)
        except Exception:
            if len(names) < 2:
                raise
            log.exception("a claim from all queues failed in a way that is not understood: trying them one by one")
            found = await self._claim_one_by_one(names, room)
        # The next claim begins with another queue, so that none stands in front of the others.
        self._queues = names[1:] + names[:1]
        if not found:
            self._listed_at = None  # a queue may have come into being: look again
        return Batch(found)

    async def _claim_from(self, names: Sequence[str], room: int) -> list[Holding]:
        return await self._run(
            lambda: store.claim(self._catalog, self._terms, queues=names, batch=min(room, self._largest)),
            names,
        )

    async def _claim_one_by_one(self, names: Sequence[str], room: int) -> list[Holding]:
        """One odd row must not keep the other queues from being served."""
        found: list[Holding] = []
        for name in names[: store.QUEUES_PER_STEP]:
            if len(found) < room:
                try:
                    found += await self._claim_from([name], room - len(found))
                except Exception:
                    log.exception("a claim from queue %s failed", name)
        return found

    async def _claim_suspects_and_survive(self, room: int) -> Batch:
        try:
            return await self._claim_suspects(room)
        except Exception:
            log.exception("a claim of crash suspects failed in a way that is not understood")
            return Batch()

    async def _claim_suspects(self, room: int) -> Batch:
        if self._survived >= SUSPECTS_BEFORE_BATCH:
            found = await self._run(
                lambda: store.claim_suspects(
                    self._catalog,
                    self._terms,
                    queues=self._queues,
                    batch=min(room, self._largest),
                    max_reclaims=0,
                    spare_attempts=1,
                ),
                self._queues,
            )
            if found:
                return Batch(found)
            self._survived = 0
        found = await self._run(
            lambda: store.claim_suspects(self._catalog, self._terms, queues=self._queues), self._queues
        )
        return Batch(found, alone=True)

    async def _run(self, make: store.MakeClaim, queues: Sequence[str]) -> list[Holding]:
        tries = 0

        def timed() -> store.ClaimOperation:
            nonlocal tries
            tries += 1
            if tries > 1:
                self.shrink()
            # Of the try that worked: the lease is counted from before it was sent.
            self._sent_at = time.monotonic()
            return make()

        # Of several queues, all or none: what one gave must not stay leased because another one failed.
        result = await self._link.run(timed, atomic=len(queues) > 1)
        self._largest = min(self._settings.batch, self._largest * 2)
        self._counters.exhausted_at_claim += result.exhausted
        self._counters.claimed += len(result.claimed)
        self._counters.reclaimed += sum(each.reclaim_count > 0 for each in result.claimed)
        return [self._holding(each) for each in result.claimed]

    def _holding(self, claimed: Claimed) -> Holding:
        window = TrustWindow(self._sent_at, claimed.lease.total_seconds())
        return Holding(claimed, window, claimed_at=self._sent_at)

    async def _list_queues(self) -> None:
        if self._settings.queues is not None:
            return
        now = time.monotonic()
        if self._listed_at is None or now - self._listed_at > self._settings.poll_interval.total_seconds():
            found = await self._link.run(lambda: store.open_queues(self._catalog, rotation=self._rotation))
            if sorted(self._queues) != found:
                self._queues = found
            self._listed_at = now
