"""How the results of publishes are written, and what is told about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from fencepost.core.error_text import describe
from fencepost.core.operation import Operation
from fencepost.core.outcome import DONE, Action, Dead, Done, Expand, Release, Reschedule
from fencepost.core.states import Event
from fencepost.runtime.counters import Counters
from fencepost.runtime.finalizer import Results
from fencepost.runtime.held import Holding
from fencepost.store.catalog import Catalog
from fencepost.store.finalize import Finalized, finalize, needs_transaction

log = logging.getLogger("fencepost.finalize")

Decision = tuple[Holding, Action]


class MessageResults(Results[Holding, Finalized]):
    """Those of one dispatcher.

    Args:
        on_written: called after each batch with the queues in which parked messages came to their turn.
    """

    def __init__(
        self, catalog: Catalog, counters: Counters, on_written: Callable[[Collection[str]], None]
    ) -> None:
        self._catalog, self._counters, self._on_written = catalog, counters, on_written

    def operation(self, batch: Sequence[Decision]) -> Operation[Finalized]:
        return finalize(self._catalog, [(holding.claimed, action) for holding, action in batch])

    def needs_transaction(self, batch: Sequence[Decision]) -> bool:
        return needs_transaction([(holding.claimed, action) for holding, action in batch])

    def written(self, batch: Sequence[Decision], found: Finalized) -> None:
        for holding, action in batch:
            if holding.id in found.lost:
                self._report_lost(holding, action)
            elif holding.id in found.busy:
                self._counters.deferred += 1
            elif holding.id in found.out_of_turn:
                self._report_out_of_turn(holding)
            elif action is DONE:
                self._counters.delivered += 1
            else:
                self._count(holding, action)
        promoted = {holding.terms.queue for holding, _ in batch} if found.promoted else ()
        self._on_written(promoted)

    def failed(self, holding: Holding, error: Exception) -> None:
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
        delivered = action is DONE
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
            case Done(verified=verified):
                self._counters.delivered += 1
                self._counters.verified += verified
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
