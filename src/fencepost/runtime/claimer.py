"""Decides what this process claims next, and claims it.

Two kinds of claims take turns. A normal one takes a batch of messages of one queue that no crash has touched;
the weights decide which queue. A suspect's one takes a single message whose worker may have crashed on it, to be
published with nothing else in flight, so that a message that kills its process spends nobody else's attempts. When
the first few suspects of a crash went well, the rest that expired with them, for the first time and with attempts
to spare, come as a batch: a machine that lost power must not make its whole load crawl.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from fencepost.config import DispatcherSettings
from fencepost.core.lease import TrustWindow
from fencepost.core.records import Claimed
from fencepost.core.suspects import SPARE_ATTEMPTS, SUSPECTS_BEFORE_BATCH
from fencepost.runtime.breakers import Breakers
from fencepost.runtime.counters import Counters
from fencepost.runtime.held import Holding
from fencepost.runtime.link import Link
from fencepost.runtime.queues import Queues
from fencepost.runtime.terms import Terms
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import outbox as store
from fencepost.store.breaker import claim_probe
from fencepost.store.catalog import Catalog
from fencepost.store.queues import queue_settings
from fencepost.store.rate import claim_within_rate

log = logging.getLogger("fencepost.claim")

PATIENCE = 0.05
"""Seconds to leave messages alone that wait behind one that is being published, before they are parked. Parking
costs the database an update for each of them, and most publishes are over in less."""

RELIST = 0.05
"""Seconds between looks for queues that have something due, at the least, where notices come while others are
busy; more where a look takes long or finds many queues, each of which then costs a claim."""

RELIST_SHARE, RELIST_A_QUEUE = 10, 0.01

LONGEST_RATE_PAUSE = 0.1
"""Seconds to save up for a whole batch where a queue has a rate."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one claim took."""

    holdings: Sequence[Holding] = ()
    alone: bool = False
    """Publish it with nothing else in flight."""
    is_probe: bool = False
    """A single message past an open breaker."""
    again: bool = False
    """Nothing was taken, but more is to be had at once."""
    no_room: bool = False
    """Something may be due, and there is no room for it."""
    is_full: bool = False
    """As many were taken as asked for: there is probably more."""
    retry_in: float | None = None
    """Seconds until there may be something to claim that is held back now, by a rate or a breaker."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the process can take of one queue.

    Args:
        messages: how many.
        longest_run: how many of one ordering key, which are published one after another.
    """

    messages: int
    longest_run: int


class Claimer:
    """Claims for one dispatcher.

    Args:
        link: for `next`.
        ahead_link: for `more`, beside it.
        room: what can be taken of a queue just now.
        wakeup: tells whether there was a notice.
        on_settings: called when the queues' settings were read.
        breakers: which queues are held back but for probes.
    """

    def __init__(
        self,
        link: Link,
        ahead_link: Link,
        catalog: Catalog,
        settings: DispatcherSettings,
        counters: Counters,
        queues: Queues,
        room: Callable[[Terms], Room],
        wakeup: Wakeup,
        on_settings: Callable[[], None],
        breakers: Breakers,
    ) -> None:
        self._breakers = breakers
        self._link, self._ahead_link = link, ahead_link
        self._catalog, self._settings, self._counters = catalog, settings, counters
        self._queues, self._room, self._on_settings = queues, room, on_settings
        self._wakeup = wakeup
        self._rotation = store.Rotation()
        self._relist_at = 0.0
        self._listed_at: float | None = None
        self._settled_at: float | None = None
        self._is_guess = False
        self._waiting_since: dict[str, float] = {}
        self._crowded: dict[str, float] = {}
        """Queues of which a whole batch belonged to one key, and since when: what stands behind it most likely
        does so too, and cannot be claimed before that is written."""
        self._rated_until: dict[str, float] = {}
        """Queues that have used up their rate, and until when."""
        self._suspects_at = 0.0
        self._not_looked_at: set[str] = set()
        """Queues whose rate was used up when there was a look for suspects: theirs comes with the next claim."""
        # Whose turn is first is left to chance, so that neither kind waits for ever where many short-lived
        # processes claim once each.
        self._owes_normal = random.random() < 0.5  # noqa: S311 - a turn, not a secret
        self._largest = settings.batch
        self._survived = 0
        self._asked: Counter[str] = Counter()
        """Messages of each queue that claims ask for just now."""

    @property
    def is_waiting(self) -> bool:
        """Whether messages were left alone that wait for one that is being published."""
        return bool(self._waiting_since)

    def written(self) -> None:
        """Results stand in the database: what waited for them may be claimed now."""
        self._crowded.clear()

    async def next(self) -> Batch:
        """Claim a batch; an empty one means that nothing is due, or that there is no room for what is."""
        await self._look_around()
        probe = await self._claim_probe()
        if probe.holdings:
            return probe
        suspects_due = time.monotonic() >= self._suspects_at
        if suspects_due and not self._owes_normal:
            batch = await self._claim_suspects_and_survive()
            if batch.holdings:
                self._owes_normal = True
                return batch
            self._suspects_at = time.monotonic() + self._settings.poll_interval.total_seconds()
            suspects_due = False
        self._owes_normal = False
        batch = await self._claim_normal()
        if not batch.holdings and not batch.again and suspects_due:
            return await self.next()
        return batch

    async def more(self) -> Batch:
        """Claim a batch of the queue whose turn it is, beside `next`, over a connection of its own.

        Only where there is room for a whole one: less is not worth a claim, and what `next` has asked for of that
        queue must not make another one come before its turn.
        """
        for terms in self._queues.in_turn():
            if self._is_held_back(terms.queue):
                continue
            room = self._room(terms)
            whole = min(self._largest, terms.concurrency)
            if terms.queue in self._not_looked_at:
                break
            if terms.queue in self._crowded or room.messages - self._asked[terms.queue] < whole:
                break
            return await self._claim_and_survive(self._ahead_link, terms, whole, room.longest_run)
        return Batch(no_room=True)

    def shrink(self) -> None:
        """Claim less: an answer did not come, or came late, perhaps since it was too large for its time limit."""
        self._largest = max(1, self._largest // 4)

    def survived(self, holding: Holding) -> None:
        """Note that a suspect was published, whatever came of it, and this process lives on."""
        if holding.claimed.reclaim_count == 1:
            self._survived += 1

    # --- normal batches ----------------------------------------------------------------------------------

    async def _claim_normal(self) -> Batch:
        batch = await self._claim_in_turn()
        if self._is_guess and not (batch.holdings or batch.again or batch.no_room):
            await self._list_queues()
            batch = await self._claim_in_turn()
        return batch

    async def _claim_in_turn(self) -> Batch:
        no_room = False
        for terms in self._queues.in_turn():
            if self._is_held_back(terms.queue):
                continue
            if time.monotonic() - self._crowded.get(terms.queue, -PATIENCE) < PATIENCE:
                self._waiting_since.setdefault(terms.queue, self._crowded[terms.queue])
                continue
            room = self._room(terms)
            wanted = min(room.messages - self._asked[terms.queue], self._largest, terms.concurrency)
            if wanted < 1:
                no_room = True
                continue
            suspects = await self._suspects_before(terms)
            if suspects.holdings:
                return suspects
            if self._is_held_back(terms.queue):
                continue
            found = await self._claim_and_survive(self._link, terms, wanted, room.longest_run)
            if found.holdings or found.again:
                return found
            if terms.queue not in self._waiting_since and terms.queue not in self._rated_until:
                self._queues.is_empty(terms)
        return Batch(no_room=no_room, retry_in=self._seconds_held_back())

    async def _claim_and_survive(self, link: Link, terms: Terms, wanted: int, longest_run: int) -> Batch:
        try:
            return await self._claim_from(link, terms, wanted, longest_run)
        except Exception:
            # One odd row must not keep the other queues from being served.
            log.exception(
                "a claim from queue %s failed in a way that is not understood; trying again later", terms.queue
            )
            self._waiting_since.pop(terms.queue, None)
            return Batch()

    async def _claim_from(self, link: Link, terms: Terms, wanted: int, longest_run: int) -> Batch:
        floor = self._queues.floor(terms.queue)
        began = time.monotonic()
        scan = store.Scan(
            floor=floor.choose(began),
            park_behind_leased=began - self._waiting_since.get(terms.queue, began) >= PATIENCE,
            longest_run=longest_run,
            statements=1,
        )
        got = 0
        self._asked[terms.queue] += wanted
        self._queues.charge(terms, wanted)  # now, so that a claim beside this one looks at another queue first
        try:
            result, sent_at = await self._send(
                link,
                lambda many: store.claim(
                    self._catalog, self._terms(terms), queues=[terms.queue], batch=many, scan=scan
                ),
                terms,
                wanted,
            )
            got = len(result.claimed)
        finally:
            self._asked[terms.queue] -= wanted
            self._queues.charge(terms, got - wanted)
        ended = time.monotonic()
        floor.looked(scan.floor, result.lowest, sent_at, ended)
        self._note_waiting(terms, result, began)
        if got:
            self._queues.is_active(terms, ended)
        again = result.parked + result.exhausted > 0
        if not result.claimed and not again and scan.floor and floor.may_look_everywhere(ended):
            floor.reset()
            again = True
        holdings = self._holdings(terms, result.claimed, sent_at)
        is_whole = wanted >= min(self._largest, terms.concurrency)
        return Batch(holdings, again=again, is_full=is_whole and got == wanted)

    def _note_waiting(self, terms: Terms, result: store.ClaimResult, now: float) -> None:
        self._crowded.pop(terms.queue, None)
        keys = {each.message.ordering_key for each in result.claimed}
        if len(result.claimed) > 1 and len(keys) == 1 and None not in keys:
            self._crowded[terms.queue] = now
        if result.waiting and not result.parked:
            self._waiting_since.setdefault(terms.queue, now)
        else:
            self._waiting_since.pop(terms.queue, None)

    # --- crash suspects ----------------------------------------------------------------------------------

    async def _claim_suspects_and_survive(self) -> Batch:
        try:
            return await self._claim_suspects()
        except Exception:
            log.exception("a claim of crash suspects failed in a way that is not understood")
            return Batch()

    async def _claim_suspects(self) -> Batch:
        due = [queue for queue in self._queues.due if not self._is_held_back(queue)]
        self._not_looked_at = self._rated_until.keys() & self._queues.due
        random.shuffle(due)
        for queue in due[: store.QUEUES_PER_STEP]:
            terms = self._queues.terms(queue)
            if self._survived >= SUSPECTS_BEFORE_BATCH:
                found = await self._suspects_of(
                    terms,
                    min(self._settings.batch, self._largest),
                    max_reclaims=0,
                    spare_attempts=SPARE_ATTEMPTS,
                )
                if found:
                    return Batch(found)
                self._survived = 0
            found = await self._suspects_of(terms, 1)
            if found:
                return Batch(found, alone=True)
        self._survived = 0
        return Batch()

    async def _suspects_before(self, terms: Terms) -> Batch:
        """Claim a suspect of a queue that was held back by its rate before normal messages use that up again."""
        if terms.queue not in self._not_looked_at:
            return Batch()
        self._not_looked_at.discard(terms.queue)
        found = await self._suspects_of(terms, 1)
        if not found and terms.queue in self._rated_until:
            self._not_looked_at.add(terms.queue)
        return Batch(found, alone=True)

    async def _suspects_of(
        self, terms: Terms, batch: int, max_reclaims: int = store.UNLIMITED, spare_attempts: int = 0
    ) -> list[Holding]:
        result, sent_at = await self._send(
            self._link,
            lambda many: store.claim_suspects(
                self._catalog,
                self._terms(terms),
                queues=[terms.queue],
                batch=many,
                max_reclaims=max_reclaims,
                spare_attempts=spare_attempts,
            ),
            terms,
            batch,
        )
        return self._holdings(terms, result.claimed, sent_at)

    # --- what is held back -------------------------------------------------------------------------------

    def _is_held_back(self, queue: str) -> bool:
        if self._breakers.is_open(queue):
            return True
        until = self._rated_until.get(queue)
        if until is not None and until <= time.monotonic():
            del self._rated_until[queue]
            until = None
        return until is not None

    def _seconds_held_back(self) -> float | None:
        """Return the time until something may be claimed of what is due and held back; None where nothing is.

        Only of what is due: a breaker without messages, or of a queue that is paused or not ours, is nobody's to
        wait for.
        """
        now = time.monotonic()
        due = self._queues.due
        waits = [max(0.0, self._rated_until[queue] - now) for queue in due if queue in self._rated_until]
        waits += [seconds for queue in due if (seconds := self._breakers.seconds_to_probe(queue)) is not None]
        return min(waits, default=None)

    async def _claim_probe(self) -> Batch:
        """Where the breaker of a queue is open and a probe is due, claim one message of it."""
        if not self._breakers.has_open:
            return Batch()
        for terms in self._queues.in_turn():
            if not self._breakers.may_probe(terms.queue):
                continue
            patience = terms.lease + timedelta(seconds=terms.publish_timeout)
            began = time.monotonic()
            result, version = await self._link.run(
                functools.partial(claim_probe, self._catalog, self._terms(terms), terms.queue, patience=patience),
                atomic=True,
            )
            if version is None or not result.claimed:
                # Somebody else probes, it was closed, or nothing is due: the settings will tell.
                self._breakers.probing(terms.queue, self._settings.poll_interval.total_seconds())
                continue
            self._breakers.probing(terms.queue, patience.total_seconds())
            self._count(result)
            holdings = self._holdings(terms, result.claimed, began)
            for holding in holdings:
                holding.probe = version
            return Batch(holdings, alone=result.claimed[0].reclaim_count > 0, is_probe=True)
        return Batch()

    # --- what both share ---------------------------------------------------------------------------------

    async def _send(
        self, link: Link, claim: Callable[[int], store.ClaimOperation], terms: Terms, wanted: int
    ) -> tuple[store.ClaimResult, float]:
        """Return what a claim took, within the queue's rate, and when it was sent."""
        tries, sent_at = 0, 0.0

        def many() -> int:
            nonlocal tries, sent_at
            tries += 1
            if tries > 1:
                self.shrink()
            # Of the try that worked: the lease is counted from before it was sent.
            sent_at = time.monotonic()
            return min(wanted, self._largest)

        if terms.rate is None:
            result = await link.run(lambda: claim(many()), atomic=terms.ledger)
        else:
            result, is_held = await link.run(
                lambda: claim_within_rate(self._catalog, terms.queue, many(), claim), atomic=True
            )
            if is_held:
                # Not longer than the settings are old: the rate may be lifted.
                pause = min(_rate_pause(terms.rate, wanted), self._settings.poll_interval.total_seconds())
                self._rated_until[terms.queue] = time.monotonic() + pause
        self._largest = min(self._settings.batch, self._largest * 2)
        self._count(result)
        return result, sent_at

    def _count(self, result: store.ClaimResult) -> None:
        self._counters.exhausted_at_claim += result.exhausted
        self._counters.claimed += len(result.claimed)
        self._counters.parked += result.parked
        self._counters.reclaimed += sum(each.reclaim_count > 0 for each in result.claimed)

    def _terms(self, terms: Terms) -> store.ClaimTerms:
        return store.ClaimTerms(self._settings.owner, terms.lease, terms.policy.max_attempts)

    def _holdings(self, terms: Terms, claimed: Sequence[Claimed], sent_at: float) -> list[Holding]:
        window = TrustWindow(sent_at, terms.lease.total_seconds())
        return [Holding(window, sent_at, each, terms) for each in claimed]

    async def _look_around(self) -> None:
        """Learn the queues' settings, and which queues have something due, where that was long ago."""
        now = time.monotonic()
        poll = self._settings.poll_interval.total_seconds()
        if self._settled_at is None or now - self._settled_at > poll:
            found = await self._link.run(lambda: queue_settings(self._catalog))
            self._queues.learn(found)
            self._breakers.learn(found)
            self._on_settings()
            self._settled_at = now
        if self._listed_at is None or now - self._listed_at > poll:
            await self._list_queues()
        elif self._queues.due:
            if self._wakeup.has_news and now >= self._relist_at:
                await self._list_queues()
        else:
            self._queues.guess_due(now)
            self._is_guess = True
            if not self._queues.due:
                await self._list_queues()

    async def _list_queues(self) -> None:
        self._wakeup.has_news = False
        began = time.monotonic()
        known = set(self._queues.due)
        self._queues.found_due(await self._names())
        self._listed_at = now = time.monotonic()
        new = len(set(self._queues.due) - known)
        self._relist_at = now + max(RELIST, RELIST_SHARE * (now - began), RELIST_A_QUEUE * new)
        self._is_guess = False

    async def _names(self) -> Sequence[str]:
        if self._settings.queues is not None:
            return self._settings.queues
        return await self._link.run(lambda: store.open_queues(self._catalog, rotation=self._rotation))


def _rate_pause(rate: float, wanted: int) -> float:
    """Return the seconds after which a rate leaves enough again to be worth a claim."""
    return max(1 / rate, min(wanted / rate, LONGEST_RATE_PAUSE))
