"""What this worker knows of the breakers of queues, what it saw fail, and what it has to say about them.

The breakers stand in the database (`fencepost.store.breaker`); this is one worker's view, which may be a poll old.
Claims do not depend on it: they look for themselves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fencepost.config import DispatcherSettings
from fencepost.core.breaker import SHARED_QUEUE_FACTOR, FailureCount, SlowStart, pause_before_probe
from fencepost.core.error_text import describe
from fencepost.core.operation import Operation
from fencepost.core.outcome import (
    Cancelled,
    Failed,
    Foreign,
    Refused,
    Result,
    Routed,
    TimedOut,
    Unclear,
    Unstarted,
)
from fencepost.core.queue import QueueSettings
from fencepost.runtime.held import Holding
from fencepost.runtime.link import Link
from fencepost.runtime.terms import Terms
from fencepost.store import queues
from fencepost.store.breaker import (
    close_breaker,
    note_delivered,
    note_unavailable,
    open_breaker,
    reopen_breaker,
)
from fencepost.store.catalog import Catalog

log = logging.getLogger("fencepost.breaker")

TRIES = 5
"""How often a change is written at most; what is lost is found out anew by the next failures or the next probe."""

Write = Callable[[], Operation[Any]]


@dataclass(slots=True)
class _Open:
    """A breaker that is open, as far as we know; instants by the monotonic clock."""

    since: float
    probe_at: float
    trips: int
    is_written: bool


class Breakers:
    """The breakers of the queues that one dispatcher serves.

    Args:
        link: where changes are written.
        is_destination: tells whether everything in a queue goes to one destination.
        on_open: called with a queue when its breaker is found open.
        on_close: called when a breaker was closed, and there is something to claim.
    """

    def __init__(
        self,
        link: Link,
        catalog: Catalog,
        settings: DispatcherSettings,
        *,
        is_destination: Callable[[str], bool],
        on_open: Callable[[str], None],
        on_close: Callable[[], None],
    ) -> None:
        self._link, self._catalog, self._settings = link, catalog, settings
        self._is_destination, self._on_open, self._on_close = is_destination, on_open, on_close
        self._open: dict[str, _Open] = {}
        self._counts: dict[str, FailureCount] = {}
        self._seen: set[str] = set()
        """Queues of which the database counts failures, until something of them is delivered."""
        self._starting: dict[str, SlowStart] = {}
        self._pausing: set[str] = set()
        self._writes: deque[tuple[str, Write, Callable[[Any], None]]] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    # --- what is known -----------------------------------------------------------------------------------

    def learn(self, found: Iterable[QueueSettings]) -> None:
        """Take over what stands in the database now, but for what we have not written yet."""
        now = time.monotonic()
        seen = {queue: known for queue, known in self._open.items() if not known.is_written}
        for each in found:
            if each.breaker is not None and each.queue not in seen:
                since = now - each.breaker.open_for.total_seconds()
                probe_at = now + each.breaker.probe_in.total_seconds()
                seen[each.queue] = _Open(since, probe_at, each.breaker.trips, is_written=True)
            elif each.failures_seen:
                self._seen.add(each.queue)
        new, gone = seen.keys() - self._open.keys(), self._open.keys() - seen.keys()
        self._open = seen
        for queue in new:
            log.warning("the breaker of queue %s is open: nothing of it is claimed but probes", queue)
            self._on_open(queue)
        for queue in gone:
            self._forget(queue)

    def is_open(self, queue: str) -> bool:
        return queue in self._open

    def may_probe(self, queue: str) -> bool:
        """Tell whether a probe seems to be due; the database decides."""
        known = self._open.get(queue)
        return known is not None and known.is_written and time.monotonic() >= known.probe_at

    def seconds_to_probe(self, queue: str) -> float | None:
        """Return the time until the next probe of a queue; None where there is none to come."""
        known = self._open.get(queue)
        if known is None or not known.is_written:
            return None
        return max(0.0, known.probe_at - time.monotonic())

    @property
    def has_open(self) -> bool:
        return bool(self._open)

    def most_at_once(self, terms: Terms) -> int:
        """Return how much of a queue may be published at once: less than usual after an outage."""
        starting = self._starting.get(terms.queue)
        if starting is None:
            return terms.concurrency
        if starting.most >= terms.concurrency:
            del self._starting[terms.queue]
        return min(starting.most, terms.concurrency)

    def probing(self, queue: str, patience: float) -> None:
        """Note that a probe is under way, here or elsewhere: the next one comes later."""
        if queue in self._open:
            self._open[queue].probe_at = time.monotonic() + patience

    # --- what happens ------------------------------------------------------------------------------------

    def delivered(self, holding: Holding) -> None:
        """Note that something was delivered."""
        if self._counts:
            self._counts.pop(holding.terms.queue, None)
        if self._starting and (starting := self._starting.get(holding.terms.queue)) is not None:
            starting.delivered()
        if self._seen and holding.terms.queue in self._seen:
            queue = holding.terms.queue
            self._seen.discard(queue)
            self._submit(queue, lambda: note_delivered(self._catalog, queue))
        if holding.probe is not None:
            self._close(holding)

    def ended_otherwise(self, holding: Holding, result: Result) -> bool:
        """Note how a publish ended that was not delivered; return whether that is the outage's doing."""
        failure = result if isinstance(result, Failed | TimedOut) else None
        if holding.probe is not None:
            self._probed(holding, result, failure)
        elif failure is not None:
            self._count(holding, failure)
        known = self._open.get(holding.terms.queue)
        budget = self._settings.outage_budget.total_seconds()
        return known is not None and time.monotonic() - known.since < budget

    def pause(self, holding: Holding, reason: str) -> None:
        """Pause a queue whose destination says that it is gone, unless somebody resumed it since it was asked."""
        queue = holding.terms.queue
        if queue in self._pausing:  # by another message that was under way as well
            return
        self._pausing.add(queue)
        self._submit(
            queue,
            lambda: queues.set_paused(
                self._catalog,
                queue,
                True,
                actor=self._settings.owner,
                notify=False,
                reason=reason,
                age=timedelta(seconds=time.monotonic() - holding.claimed_at),
            ),
            lambda has_changed: self._paused(queue, reason) if has_changed else None,
        )

    def _paused(self, queue: str, reason: str) -> None:
        log.error("queue %s is paused: %s (`fencepost resume %s` once that is mended)", queue, reason, queue)

    def _count(self, holding: Holding, failure: Failed | TimedOut) -> None:
        terms = holding.terms
        if terms.queue in self._open:
            return
        if terms.queue in self._starting:
            self._starting[terms.queue].failed()
        count = self._counts.get(terms.queue)
        if count is None or count.threshold != terms.outage_after:
            count = self._counts[terms.queue] = self._new_count(terms)
        unavailable = isinstance(failure, Failed) and failure.unavailable
        if count.failed(holding.claimed.id, unavailable=unavailable):
            self._trip(terms, failure)
        elif unavailable and count.threshold:
            self._share(terms, failure)

    def _new_count(self, terms: Terms) -> FailureCount:
        factor = 1 if self._is_destination(terms.queue) else SHARED_QUEUE_FACTOR
        return FailureCount(terms.outage_after, terms.breaker_failures * factor)

    def _trip(self, terms: Terms, failure: Failed | TimedOut) -> None:
        queue, error = terms.queue, failure.error
        pause = self._pause(terms, 0, failure)
        self._opens(queue, pause, error)
        self._submit(queue, lambda: open_breaker(self._catalog, queue, pause=pause, error=error))

    def _share(self, terms: Terms, failure: Failed | TimedOut) -> None:
        """Have it counted with what other workers saw: alone, each may see too little of a quiet queue."""
        queue, error, threshold = terms.queue, failure.error, terms.outage_after
        pause = self._pause(terms, 0, failure)
        self._seen.add(queue)
        self._submit(
            queue,
            lambda: note_unavailable(self._catalog, queue, threshold=threshold, pause=pause, error=error),
            lambda has_opened: self._opens(queue, pause, error) if has_opened else None,
        )

    def _opens(self, queue: str, pause: timedelta, error: str) -> None:
        now = time.monotonic()
        self._open[queue] = _Open(now, now + pause.total_seconds(), 0, is_written=False)
        self._counts.pop(queue, None)
        log.error(
            "the breaker of queue %s opens: its destination takes nothing (%s); a probe in %.1f s",
            queue,
            error,
            pause.total_seconds(),
        )
        self._on_open(queue)

    def _probed(self, holding: Holding, result: Result, failure: Failed | TimedOut | None) -> None:
        if failure is not None:
            self._reopen(holding, failure)
        elif isinstance(result, Unstarted | Cancelled | Routed | Foreign | Unclear) or (
            isinstance(result, Refused) and result.unroutable
        ):
            self._reopen(holding, None)  # no destination was asked
        else:
            # Refused or deferred: the destination has looked at it, so there is one.
            self._close(holding)

    def _close(self, holding: Holding) -> None:
        queue, version = holding.terms.queue, holding.probe
        self._open.pop(queue, None)
        self._forget(queue)
        self._submit(queue, lambda: close_breaker(self._catalog, queue, version=version, notify=True))

    def _reopen(self, holding: Holding, failure: Failed | TimedOut | None) -> None:
        terms, version = holding.terms, holding.probe
        assert version is not None  # noqa: S101 - for the type checker: the caller has looked
        queue = terms.queue
        known = self._open.get(queue)
        trips = 0 if known is None else known.trips + (failure is not None)
        pause = timedelta(0) if failure is None else self._pause(terms, trips, failure)
        error = None if failure is None else failure.error
        if known is not None:
            known.probe_at = time.monotonic() + pause.total_seconds()
            known.trips = trips
        if error is not None:
            log.warning("queue %s: a probe failed (%s); the next in %.1f s", queue, error, pause.total_seconds())
        self._submit(
            queue,
            lambda: reopen_breaker(self._catalog, queue, version=version, pause=pause, error=error),
        )

    def _pause(self, terms: Terms, trips: int, failure: Failed | TimedOut) -> timedelta:
        wish = failure.delay if isinstance(failure, Failed) else None
        return pause_before_probe(trips, terms.breaker_cap, wish, terms.policy.backoff.cap)

    def _forget(self, queue: str) -> None:
        self._counts.pop(queue, None)
        self._starting[queue] = SlowStart()
        log.warning("the breaker of queue %s is closed: it goes on", queue)
        self._on_close()

    # --- writing -----------------------------------------------------------------------------------------

    def _submit(self, queue: str, write: Write, then: Callable[[Any], None] = lambda _: None) -> None:
        self._writes.append((queue, write, then))
        self._idle.clear()
        self._arrived.set()

    async def written(self) -> None:
        """Wait until every change was written, or given up on."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write changes until it is cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._writes:
                queue, write, then = self._writes.popleft()
                try:
                    then(await self._link.run(write, tries=TRIES, atomic=True))
                    if queue in self._open:
                        self._open[queue].is_written = True
                except Exception as error:  # a breaker that cannot be written must not stop its worker
                    log.exception("the breaker of queue %s cannot be written: %s", queue, describe(error))
                    self._open.pop(queue, None)
                self._pausing.discard(queue)
            self._idle.set()
