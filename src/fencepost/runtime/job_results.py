"""How the results of jobs are written, and what is told about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from fencepost.core.error_text import describe
from fencepost.core.operation import Operation
from fencepost.core.outcome import Action, Dead, Done, Release, Reschedule
from fencepost.core.states import Event
from fencepost.runtime.finalizer import Results
from fencepost.runtime.job_run import HeldJob
from fencepost.store.catalog import Catalog
from fencepost.store.job_fenced import Finished, finalize

log = logging.getLogger("fencepost.worker")

Decision = tuple[HeldJob, Action]


@dataclass(slots=True)
class JobCounters:
    """Totals since the worker was made."""

    claimed: int = 0
    completed: int = 0
    verified: int = 0
    """Found done by a verifier, so that they were not run again."""
    retried: int = 0
    deferred: int = 0
    released: int = 0
    failed: int = 0
    reclaimed: int = 0
    """Jobs of other workers whose lease had expired, taken back by this one."""
    scheduled: int = 0
    """Ticks of schedules that this worker enqueued."""
    lost_leases: int = 0
    completed_but_lost: int = 0
    """Finished, then found the lease lost: what the job does may be done twice."""
    unexpected: int = 0
    timed_out: int = 0
    hung_threads: int = 0
    finalize_failures: int = 0
    reconnects: int = 0
    stalls: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return every total by name."""
        return asdict(self)


class JobResults(Results[HeldJob, frozenset[int]]):
    """Those of one worker; ``on_written`` is called after each batch."""

    def __init__(self, catalog: Catalog, counters: JobCounters, on_written: Callable[[], None]) -> None:
        self._catalog, self._counters, self._on_written = catalog, counters, on_written

    def operation(self, batch: Sequence[Decision]) -> Operation[frozenset[int]]:
        return finalize(self._catalog, [Finished(held.claimed, action, held.result) for held, action in batch])

    def needs_transaction(self, batch: Sequence[Decision]) -> bool:
        return any(held.claimed.ledger for held, _ in batch)

    def written(self, batch: Sequence[Decision], found: frozenset[int]) -> None:
        for held, action in batch:
            if held.id in found:
                self._report_lost(held, action)
            else:
                self._count(held, action)
        self._on_written()

    def failed(self, holding: HeldJob, error: Exception) -> None:
        self._counters.finalize_failures += 1
        log.error(
            "the result of job %d cannot be written: %s; its lease is left to expire",
            holding.id,
            describe(error),
            exc_info=error,
        )

    def _report_lost(self, held: HeldJob, action: Action) -> None:
        self._counters.lost_leases += 1
        is_done = isinstance(action, Done)
        if is_done:
            self._counters.completed_but_lost += 1
        log.warning(
            "lost lease: job %d (attempt %d) was taken over or ended by somebody else; nothing was changed%s",
            held.id,
            held.claimed.attempt,
            ". It had finished here: what it does may be done twice" if is_done else "",
        )

    def _count(self, held: HeldJob, action: Action) -> None:
        match action:
            case Done(verified=verified):
                self._counters.verified += verified
                self._counters.completed += not verified
            case Release():
                self._counters.released += 1
            case Reschedule(event=Event.DEFER | Event.CANCELLED):
                self._counters.deferred += 1
            case Reschedule(error=error, delay=delay):
                self._counters.retried += 1
                log.info(
                    "job %d failed on attempt %d of %d, due again in %.1f s: %s",
                    held.id,
                    held.claimed.attempt,
                    held.claimed.max_attempts,
                    delay.total_seconds(),
                    error,
                )
            case Dead(outcome=outcome, error=error):
                self._counters.failed += 1
                log.warning("job %d has failed (%s): %s", held.id, outcome, error)
