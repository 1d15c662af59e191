"""Which queue is served next: by weight among those that have something due, so that none starves.

Stride scheduling: each queue has a pass, the smallest one is served, and serving raises it by the messages taken
over the weight. A queue that comes back after a rest joins at the smallest pass of the others, so it can neither
claim what it did not use nor be made to wait for it. (C. Waldspurger and W. Weihl, "Stride Scheduling", 1995.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator

from fencepost.config import DispatcherSettings
from fencepost.core.queue import QueueSettings
from fencepost.runtime.floor import ScanFloor
from fencepost.runtime.terms import Terms, terms_of

log = logging.getLogger("fencepost.queues")

RECENT_SECONDS = 10.0
MOST_GUESSES = 8
LEFT_SECONDS = 60.0
"""How long, and how many, queues are taken for due without looking since they had something; and how long a queue
of an unknown destination is left alone."""


class Queues:
    """The queues as this worker knows them.

    Args:
        settings: the worker's.
        takes_batches: whether all that is in a queue goes to publishers that take batches.
    """

    def __init__(self, settings: DispatcherSettings, takes_batches: Callable[[str], bool]) -> None:
        self._settings = settings
        self._takes_batches = takes_batches
        self._own: dict[str, QueueSettings] = {}
        self._terms: dict[str, Terms] = {}
        self._pass: dict[str, float] = {}
        self._floors: dict[str, ScanFloor] = {}
        self._told: set[str] = set()
        self._left_until: dict[str, float] = {}
        self._due: dict[str, None] = {}
        self._recent: dict[str, float] = {}

    # --- settings ----------------------------------------------------------------------------------------

    def learn(self, found: Iterable[QueueSettings]) -> None:
        """Take over what stands in the database now."""
        own = {each.queue: each for each in found}
        if own != self._own:
            self._own = own
            self._terms.clear()
            self._told &= {queue for queue in own if self.terms(queue).problems}

    def terms(self, queue: str) -> Terms:
        """Return the settings in force for a queue."""
        terms = self._terms.get(queue)
        if terms is None:
            own = self._own.get(queue) or QueueSettings(queue=queue)
            takes_batches = self._takes_batches(queue)
            terms = self._terms[queue] = terms_of(self._settings, own, takes_batches=takes_batches)
        return terms

    @property
    def shortest_lease(self) -> float:
        """Seconds of the shortest lease of any queue that is served."""
        leases = [self._settings.lease] + [
            terms.lease
            for terms in map(self.terms, self._own)
            if not terms.problems and self._is_mine(terms.queue)
        ]
        return min(leases).total_seconds()

    @property
    def keeps_ledger(self) -> bool:
        """Whether any queue keeps a ledger of attempts."""
        return any(own.ledger for own in self._own.values())

    @property
    def paused(self) -> list[str]:
        return [queue for queue, own in self._own.items() if own.paused]

    def _is_mine(self, queue: str) -> bool:
        return self._settings.queues is None or queue in self._settings.queues

    def leave(self, queue: str) -> None:
        """Leave a queue to other workers for a while: this one does not know where its messages go."""
        is_left = self._is_left(queue)
        self._left_until[queue] = time.monotonic() + LEFT_SECONDS
        self._due.pop(queue, None)
        if is_left:
            return  # the next message of the same batch
        log.error(
            "queue %s holds messages of a destination that this worker does not know: left to others for %g s; "
            "give it that destination, or its own queues",
            queue,
            LEFT_SECONDS,
        )

    def _is_left(self, queue: str) -> bool:
        return self._left_until.get(queue, 0.0) > time.monotonic()

    def _is_served(self, queue: str) -> bool:
        if self._is_left(queue):
            return False
        terms = self.terms(queue)
        if terms.problems and queue not in self._told:
            self._told.add(queue)
            log.error(
                "queue %s is not served by this worker, since its settings cannot work: %s "
                "(see `fencepost queue set`)",
                queue,
                "; ".join(terms.problems),
            )
        return not terms.paused and not terms.problems

    # --- whose turn it is --------------------------------------------------------------------------------

    @property
    def due(self) -> list[str]:
        """The queues that may have something due."""
        return list(self._due)

    def guess_due(self, now: float) -> None:
        """Take those for due that had something a short while ago, which saves looking for all of them."""
        self._recent = {queue: at for queue, at in self._recent.items() if now - at < RECENT_SECONDS}
        if len(self._recent) <= MOST_GUESSES:
            self.found_due(self._recent)

    def found_due(self, queues: Iterable[str]) -> None:
        """Note which queues have something due; those that come anew join at the pass of the others."""
        served = [queue for queue in queues if self._is_served(queue)]
        start = min((self._pass.get(queue, 0.0) for queue in self._due), default=None)
        for queue in served:
            if queue not in self._due:
                self._pass[queue] = max(self._pass.get(queue, 0.0), start or 0.0)
        self._due = dict.fromkeys(served)
        kept = self._due.keys() | self._recent.keys()
        self._pass = {queue: at for queue, at in self._pass.items() if queue in kept}
        self._floors = {queue: floor for queue, floor in self._floors.items() if queue in kept}

    def in_turn(self) -> Iterator[Terms]:
        """Yield the queues that have something due, whose turn it is first."""
        for queue in sorted(self._due, key=lambda queue: self._pass[queue]):
            if queue in self._due:
                yield self.terms(queue)

    def charge(self, terms: Terms, messages: int) -> None:
        """Charge a queue for what is asked of it, or give back (below 0) what it did not have."""
        if terms.queue in self._pass:
            self._pass[terms.queue] += messages / terms.weight

    def is_active(self, terms: Terms, now: float) -> None:
        """Note that a queue had something."""
        self._recent[terms.queue] = now

    def is_empty(self, terms: Terms) -> None:
        """Note that a queue has nothing due just now."""
        self._due.pop(terms.queue, None)

    def floor(self, queue: str) -> ScanFloor:
        return self._floors.setdefault(queue, ScanFloor())

    def reset_floors(self, queues: Iterable[str]) -> None:
        """Something was put back to where it may stand below a floor."""
        for queue in queues:
            if queue in self._floors:
                self._floors[queue].reset()
