"""Writes publish results back, many at a time: while one batch is being written, the next one gathers."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence

from fencepost.core.error_text import describe
from fencepost.core.outcome import DONE, Action, Dead, Done, Expand, Release, Reschedule
from fencepost.core.states import Event
from fencepost.runtime.counters import Counters
from fencepost.runtime.held import Held, Holding, Stage
from fencepost.runtime.link import Link
from fencepost.store.catalog import Catalog
from fencepost.store.finalize import finalize, needs_transaction

log = logging.getLogger("fencepost.finalize")

LARGEST_BATCH = 1_000

Decision = tuple[Holding, Action]


class Finalizer:
    """Takes decisions with `submit`; `run` writes them until it is cancelled.

    Args:
        on_written: called after each batch with the queues in which parked messages came to their turn.
    """

    def __init__(
        self,
        link: Link,
        catalog: Catalog,
        held: Held,
        counters: Counters,
        on_written: Callable[[Collection[str]], None],
    ) -> None:
        self._link, self._catalog, self._held, self._counters = link, catalog, held, counters
        self._on_written = on_written
        self._waiting: deque[Decision] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def backlog(self) -> int:
        """Decisions not yet written."""
        return len(self._waiting)

    def submit(self, holding: Holding, action: Action) -> None:
        """Queue one decision; its lease is kept alive until it is written."""
        holding.stage = Stage.FINALIZING
        holding.deadline = math.inf
        self._waiting.append((holding, action))
        self._idle.clear()
        self._arrived.set()

    async def drained(self) -> None:
        """Wait until everything submitted is written."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                await self._write(self._next_batch())
            self._idle.set()

    def _next_batch(self) -> list[Decision]:
        """Take what waits, each row once: a row lost and claimed anew waits for the next batch."""
        batch: dict[int, Decision] = {}
        while self._waiting and len(batch) < LARGEST_BATCH:
            row_id = self._waiting[0][0].claimed.id
            if row_id in batch:
                break
            batch[row_id] = self._waiting.popleft()
        return list(batch.values())

    async def _write(self, batch: Sequence[Decision]) -> None:
        decided = [(holding.claimed, action) for holding, action in batch]
        try:
            written = await self._link.run(
                lambda: finalize(self._catalog, decided), atomic=needs_transaction(decided)
            )
        except asyncio.CancelledError:
            # Put back in front: whoever drains us may still try.
            self._waiting.extendleft(reversed(batch))
            raise
        except Exception as error:  # noqa: BLE001 - a row that fails must not end the loop
            await self._write_one_by_one(batch, error)
            return
        self._held.remove(holding for holding, _ in batch)
        for holding, action in batch:
            if holding.claimed.id in written.lost:
                self._report_lost(holding, action)
            elif holding.claimed.id in written.busy:
                self._counters.deferred += 1
            elif holding.claimed.id in written.out_of_turn:
                self._report_out_of_turn(holding)
            elif action is DONE:
                self._counters.delivered += 1
            else:
                self._count(holding, action)
        promoted = {holding.terms.queue for holding, _ in batch} if written.promoted else ()
        self._on_written(promoted)

    async def _write_one_by_one(self, batch: Sequence[Decision], error: Exception) -> None:
        """One row that the database refuses must not keep its neighbours from being finalized."""
        if len(batch) > 1:
            for decision in batch:
                await self._write([decision])
            return
        holding, _ = batch[0]
        self._held.remove([holding])
        self._counters.finalize_failures += 1
        log.error(
            "the result of message %d (token %d) cannot be written: %s; its lease is left to expire",
            holding.claimed.id,
            holding.claimed.token,
            describe(error),
            exc_info=error,
        )

    def _report_lost(self, holding: Holding, action: Action) -> None:
        self._counters.lost_leases += 1
        delivered = isinstance(action, Done)
        if delivered:
            self._counters.delivered_but_lost += 1
        log.warning(
            "lost lease: message %d (token %d, attempt %d) was taken over or closed by somebody else; "
            "nothing was changed%s",
            holding.claimed.id,
            holding.claimed.token,
            holding.claimed.attempt,
            ". It was published here: it may arrive twice, or stand as dead though delivered" if delivered else "",
        )

    def _report_out_of_turn(self, holding: Holding) -> None:
        self._counters.out_of_turn += 1
        log.warning(
            "message %d (token %d, attempt %d) was published, but an earlier message of its key was lost and is "
            "open again: given back, to be published once more in its turn",
            holding.claimed.id,
            holding.claimed.token,
            holding.claimed.attempt,
        )

    def _count(self, holding: Holding, action: Action) -> None:
        match action:
            case Done():
                self._counters.delivered += 1
            case Release():
                self._counters.released += 1
            case Expand():
                self._counters.expanded += 1
            case Reschedule(event=Event.DEFER):
                self._counters.deferred += 1
            case Reschedule(event=Event.OUTAGE):
                self._counters.outages += 1
            case Reschedule(error=error, delay=delay):
                self._counters.retried += 1
                log.info(
                    "message %d failed on attempt %d of %d, due again in %.1f s: %s",
                    holding.claimed.id,
                    holding.claimed.attempt,
                    holding.claimed.max_attempts,
                    delay.total_seconds(),
                    error,
                )
            case Dead(outcome=outcome, error=error):
                self._counters.dead += 1
                log.warning("message %d is dead (%s): %s", holding.claimed.id, outcome, error)
