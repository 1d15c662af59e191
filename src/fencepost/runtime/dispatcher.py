"""The dispatcher: claims what it can start, publishes it outside any transaction, writes the results back.

Claims and finalizes go over two connections, so that one batch is published while the result of the one
before is written; heartbeats have a third on a thread of their own, and notices a fourth.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fencepost.config import DispatcherSettings
from fencepost.core.error_text import describe
from fencepost.core.operation import Operation
from fencepost.core.outcome import Unstarted
from fencepost.errors import ConfigError
from fencepost.runtime.breakers import Breakers
from fencepost.runtime.claimer import Batch, Claimer
from fencepost.runtime.counters import Counters
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.flight import Flight
from fencepost.runtime.heartbeat import Heartbeat
from fencepost.runtime.held import OVERDUE_SECONDS, Held, Holding
from fencepost.runtime.hooks import opened
from fencepost.runtime.lifecycle import EXIT_RESERVE, LeaseHolder, UnexpectedFailure, tend
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.pacing import Pacing
from fencepost.runtime.queues import Queues
from fencepost.runtime.reaper import promote_stranded_forever, reap_forever
from fencepost.runtime.results import MessageResults
from fencepost.runtime.retention import purge_forever, purge_ledger_forever
from fencepost.runtime.routes import Route, Router
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import fenced
from fencepost.store.catalog import Catalog, Names

log = logging.getLogger("fencepost.dispatcher")


class Dispatcher(LeaseHolder[Holding]):
    """Publishes what was committed.

    Args:
        store: the database's address, ``postgresql://…`` or ``embedded:``.
        routes: which publisher a message goes to, or which destinations; the first match wins.
        destinations: publishers, or URLs, by name. A destination is a queue: whatever stands in it goes there, in
            its own order, with its own retries, pause, breaker and rate.
        settings: everything else; or give single settings as keyword arguments.
        schema_name, table: where the tables are.

    Raises:
        ConfigError: settings that cannot work.
    """

    _kind = "dispatcher"
    _single_step = "dispatch_once"

    def __init__(
        self,
        store: str,
        routes: Iterable[Route] = (),
        settings: DispatcherSettings | None = None,
        *,
        destinations: Mapping[str, Any] | None = None,
        schema_name: str = "public",
        table: str = "outbox",
        **options: Any,
    ) -> None:
        if settings is not None and options:
            raise ConfigError("give settings, or single settings as keyword arguments, not both")
        self.settings = settings or _settings(options)
        super().__init__(
            store, Catalog(Names(schema_name, table)), self.settings.grace, Limits.below(self.settings.lease)
        )
        self.counters = Counters()
        self._router = Router(routes, destinations)
        self._queues = Queues(self.settings, self._router.takes_batches)
        self._shortest_lease = self.settings.lease.total_seconds()

    # --- set-up ------------------------------------------------------------------------------------------

    async def _set_up(self, stack: AsyncExitStack) -> None:
        self._held = Held()
        self._wakeup = Wakeup()
        self._backlog = asyncio.Event()
        self._pacing = Pacing(self._wakeup, self.settings.poll_interval.total_seconds())
        url = await self._open_store(stack)
        await self._open_links(stack, url)
        for publisher in self._router.publishers:
            await stack.enter_async_context(opened(publisher, self._left_to_close))
        self._run_beside(
            stack,
            self._wakeup,
            self._catalog.names.channel,
            (self.settings.listen_store or url) if self.settings.notify else None,
            finalize=self._finalizer.run(),
            breakers=self._breakers.run(),
            upkeep=self._upkeep(),
        )

    async def _open_links(self, stack: AsyncExitStack, url: str) -> None:
        self._claim_link = claim_link = self._link(stack, url, "claim")
        await self._check_schema(claim_link)
        self._finalize_link = finalize_link = self._link(stack, url, "finalize")
        # Its own, so that no claim waits for a step of it; connected once there is something to purge.
        self._purge_link = self._link(stack, url, "purge")
        self._finalizer = Finalizer(
            finalize_link, self._held, MessageResults(self._catalog, self.counters, self._written)
        )
        # Its own, connected once there is something to say: a row that somebody holds must not hold up results.
        self._breaker_link = self._link(stack, url, "breaker")
        self._breakers = Breakers(
            self._breaker_link,
            self._catalog,
            self.settings,
            is_destination=self._router.is_destination,
            on_open=lambda queue: self._flight.release_line([queue]),
            on_close=self._wakeup.set,
        )
        self._flight = Flight(
            self.settings,
            self._router,
            self._held,
            self._finalizer,
            self.counters,
            self._stop,
            self._breakers,
            self._pacing.room,
            self._queues.leave,
        )
        self._ahead_link = self._link(stack, url, "claim ahead")
        self._claimer = Claimer(
            claim_link,
            self._ahead_link,
            self._catalog,
            self.settings,
            self.counters,
            self._queues,
            self._flight.room,
            self._wakeup,
            self._settings_read,
            self._breakers,
        )
        self._heartbeat = Heartbeat(
            url,
            self._catalog,
            lambda: self._limits,
            self._held,
            renew=self._renew,
            kind="message",
            every=lambda: min(self.settings.beat_every.total_seconds(), self._shortest_lease / 3),
            frozen_after=self.settings.publish_timeout.total_seconds() + OVERDUE_SECONDS,
            on_stall=self._count_stall,
            on_reconnect=self._count_reconnect,
        )
        self._heartbeat.start()
        stack.push_async_callback(self._heartbeat.stop, 0.2)

    def _written(self, promoted: Collection[str]) -> None:
        """Results stand in the database: what waited for them may be claimed."""
        self._queues.reset_floors(promoted)
        self._claimer.written()
        self._pacing.written(bool(promoted))

    def _settings_read(self) -> None:
        """The queues' settings are known, or known anew."""
        self._flight.release_line(self._queues.paused)
        self._flight.forget_idle(self._queues.due)
        if self._queues.shortest_lease != self._shortest_lease:
            # No lock and no wait of ours may outlive the shortest lease.
            self._shortest_lease = self._queues.shortest_lease
            self._limits = Limits.below(timedelta(seconds=self._shortest_lease))
            for link in (self._claim_link, self._ahead_link, self._finalize_link, self._breaker_link):
                link.limit(self._limits)
            self._heartbeat.hurry()

    def _left_to_close(self) -> float:
        """Return the seconds that a publisher may take to close: what is left of the grace time, and a little."""
        grace = self.settings.grace.total_seconds()
        left = grace if self._close_by is None else self._close_by - time.monotonic()
        return max(EXIT_RESERVE / 4, left)

    # --- running -----------------------------------------------------------------------------------------

    async def dispatch_once(self) -> int:
        """Claim one batch, publish it, write the results; return how many messages were handled.

        Where breakers are open and probes of them due, these come along.

        Inside ``async with dispatcher:`` connections and publishers stay open between calls. Where it is
        cancelled, what is in flight is cut off and given back when the dispatcher closes.

        Raises:
            UnexpectedFailure: with ``on_unexpected="stop"``.
        """
        if self._stack is None:
            async with self:
                return await self.dispatch_once()
        with self._busy():
            if self._stop.asked.is_set():
                self._raise_unexpected()
                return 0
            handled = 0
            while True:
                batch = await self._claim(self._claimer.next)
                await self._start(batch)
                handled += len(batch.holdings)
                # A probe is not all that was asked for: queues that are well must not wait for one that is not.
                is_more = batch.again or (batch.is_probe and handled < self.settings.batch)
                if not is_more or self._stop.asked.is_set():
                    break
            await self._flight.landed()
            await self._finalizer.drained()
            await self._breakers.written()
            self._raise_unexpected()
            return handled

    def _raise_unexpected(self) -> None:
        unexpected = self._flight.unexpected
        if unexpected is not None:
            raise UnexpectedFailure(f"stopped, since a publisher raised {describe(unexpected)}") from unexpected

    def _loops(self) -> Mapping[asyncio.Task[None], Link]:
        return {
            asyncio.create_task(self._claim_until_stopped(), name="claim"): self._claim_link,
            asyncio.create_task(self._claim_ahead(), name="claim ahead"): self._ahead_link,
        }

    def _stopping(self) -> None:
        self._pacing.stop()
        self._backlog.set()
        self._flight.wake()

    async def _landed(self) -> None:
        self._flight.release_unstarted()
        await self._flight.landed()

    async def _cut_off(self, patience: float) -> None:
        await self._flight.cut_off(patience)

    async def _settled(self) -> None:
        await self._breakers.written()

    async def _claim_until_stopped(self) -> None:
        while not self._stop.asked.is_set():
            batch = await self._claim_and_survive()
            if batch.holdings:
                self._pacing.found()
                if batch.is_full:
                    self._backlog.set()
                await self._start(batch)
            elif not batch.again and not self._stop.asked.is_set():
                await self._pacing.wait(batch, lingers=self._flight.is_lingering, waits=self._claimer.is_waiting)

    async def _claim_ahead(self) -> None:
        """Where there is a backlog, claim a batch while another one is being unpacked and started."""
        await self._backlog.wait()
        if not self._stop.asked.is_set():
            # Before it takes a queue's turn: to connect takes as long as many claims.
            await self._ahead_link.open()
        while not self._stop.asked.is_set():
            await self._backlog.wait()
            if self._stop.asked.is_set():
                return
            batch = await self._claim_and_survive(self._claimer.more)
            self._flight.start(batch.holdings)
            if not batch.is_full:
                self._backlog.clear()

    async def _claim_and_survive(self, claim: Callable[[], Awaitable[Batch]] | None = None) -> Batch:
        try:
            return await self._claim(claim or self._claimer.next)
        except Exception as error:
            log.exception("a claim failed in a way that is not understood: %s; trying again", describe(error))
            return Batch()

    async def _claim(self, claim: Callable[[], Awaitable[Batch]]) -> Batch:
        batch = await claim()
        self._held.add(batch.holdings)
        now = time.monotonic()
        late = [each for each in batch.holdings if each.window.remaining(now) <= each.terms.publish_timeout]
        if late and not self._stop.asked.is_set():
            log.warning("the answer to a claim came late: %d messages are given back unstarted", len(late))
            self.counters.late_claims += len(late)
            self._claimer.shrink()
            for holding in late:
                self._flight.finish(holding, Unstarted())
            return replace(batch, holdings=[each for each in batch.holdings if each not in late])
        return batch

    async def _start(self, batch: Batch) -> None:
        if not batch.alone:
            self._flight.start(batch.holdings)
            return
        # A crash suspect is published with nothing else in flight, so that it can take nobody with it.
        for holding in batch.holdings:
            await self._flight.start_alone(holding)
            self._claimer.survived(holding)

    def _renew(self, holdings: Sequence[Holding], lease: timedelta) -> Operation[frozenset[int]]:
        return fenced.heartbeat(self._catalog, [holding.claimed for holding in holdings], lease)

    def _count_reconnect(self) -> None:
        self.counters.reconnects += 1

    def _count_stall(self) -> None:
        self.counters.stalls += 1

    # --- upkeep ------------------------------------------------------------------------------------------

    async def _upkeep(self) -> None:
        """Give up on publishes that ignore their cancellation, and do what nobody else comes by for."""
        work: list[Coroutine[Any, Any, None]] = [
            reap_forever(self._claim_link, self._catalog, self.settings, self.counters),
            promote_stranded_forever(self._claim_link, self._catalog),
        ]
        if self.settings.retention is not None:
            work.append(purge_forever(self._purge_link, self._catalog, self.settings))
        if (kept := self.settings.ledger_retention) is not None:
            work.append(
                purge_ledger_forever(self._purge_link, self._catalog, kept, lambda: self._queues.keeps_ledger)
            )
        await tend(work, self._flight.give_up_on_overdue, OVERDUE_SECONDS / 4)


def _settings(options: dict[str, Any]) -> DispatcherSettings:
    try:
        return DispatcherSettings(**options)
    except TypeError as error:
        known = ", ".join(DispatcherSettings.__dataclass_fields__)
        raise ConfigError(f"{error}; the settings are: {known}") from None
