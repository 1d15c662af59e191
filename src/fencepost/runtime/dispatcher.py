"""The dispatcher: claims what it can start, publishes it outside any transaction, writes the results back.

Claims and finalizes go over two connections, so that one batch is published while the result of the one
before is written; heartbeats have a third on a thread of their own, and notices a fourth.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from fencepost.config import DispatcherSettings
from fencepost.core.error_text import describe
from fencepost.core.operation import Operation
from fencepost.core.outcome import Unstarted
from fencepost.embedded import open_store
from fencepost.errors import ConfigError, FencepostError, SchemaError
from fencepost.runtime.breakers import Breakers
from fencepost.runtime.claimer import Batch, Claimer
from fencepost.runtime.counters import Counters
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.flight import Flight
from fencepost.runtime.heartbeat import Heartbeat
from fencepost.runtime.held import OVERDUE_SECONDS, Held, Holding
from fencepost.runtime.hooks import opened
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.pacing import Pacing
from fencepost.runtime.queues import Queues
from fencepost.runtime.reaper import promote_stranded_forever, reap_forever
from fencepost.runtime.results import MessageResults
from fencepost.runtime.retention import purge_forever
from fencepost.runtime.routes import Route, Router
from fencepost.runtime.shutdown import Stop, signals_to
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import fenced, schema
from fencepost.store.catalog import Catalog, Names

log = logging.getLogger("fencepost.dispatcher")

EXIT_RESERVE = 0.8
"""Seconds after the grace time for the last writes; the process is gone within a second of it."""


class UnexpectedFailure(FencepostError):
    """A publisher raised an unclassified exception, and ``on_unexpected`` is ``"stop"``; see its cause."""


class Dispatcher:
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
        self.counters = Counters()
        self._store = store
        self._catalog = Catalog(Names(schema_name, table))
        self._router = Router(routes, destinations)
        self._queues = Queues(self.settings, self._router.takes_batches)
        self._shortest_lease = self.settings.lease.total_seconds()
        self._limits = Limits.below(self.settings.lease)
        self._stack: AsyncExitStack | None = None
        self._stop = Stop()
        self._is_entered = False
        self._is_busy = False

    # --- the life of a dispatcher ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect, check the schema, open the publishers and start beating.

        Raises:
            SchemaError: the tables are missing or not up to date.
        """
        if self._is_entered:
            raise FencepostError("this dispatcher is running already: make one for each run")
        self._is_entered = True
        try:
            async with AsyncExitStack() as stack:
                await self._set_up(stack)
                self._stack = stack.pop_all()
        except BaseException:
            self._is_entered = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        try:
            if stack is not None:
                async with stack:
                    await self._give_back_what_is_held()
        finally:
            self._stop = Stop()
            self._is_entered = False

    async def _give_back_what_is_held(self) -> None:
        """After a cancelled `dispatch_once`: cut off what is in flight and write that down."""
        if self._held and self._close_by is None:  # else a drain has had its time for that
            await self._flight.cut_off(patience=EXIT_RESERVE / 3)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_RESERVE):
                    await self._finalizer.drained()

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        if self._is_busy:
            raise FencepostError("this dispatcher is busy: one run or dispatch_once at a time")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def _set_up(self, stack: AsyncExitStack) -> None:
        self._held: Held[Holding] = Held()
        self._wakeup = Wakeup()
        self._backlog = asyncio.Event()
        self._pacing = Pacing(self._wakeup, self.settings.poll_interval.total_seconds())
        self._close_by: float | None = None
        url_opener = open_store(self._store)
        url = await asyncio.to_thread(url_opener.__enter__)
        stack.push_async_callback(asyncio.to_thread, url_opener.__exit__, None, None, None)
        await self._open_links(stack, url)
        for publisher in self._router.publishers:
            await stack.enter_async_context(opened(publisher, self._left_to_close))
        self._background = [
            asyncio.create_task(self._finalizer.run(), name="finalize"),
            asyncio.create_task(self._breakers.run(), name="breakers"),
            asyncio.create_task(self._upkeep(), name="upkeep"),
        ]
        if self.settings.notify:
            listen_url = self.settings.listen_store or url
            listen = self._wakeup.listen(listen_url, self._catalog.names.channel, self._limits)
            self._background.append(asyncio.create_task(listen, name="listen"))
        stack.push_async_callback(_end, self._background)
        stack.push_async_callback(self._wakeup.close)

    async def _open_links(self, stack: AsyncExitStack, url: str) -> None:
        claim_link = Link(url, self._catalog, self._limits, "claim", self._count_reconnect)
        stack.push_async_callback(claim_link.close)
        problems = await claim_link.run(lambda: schema.check(self._catalog), refusal_is_final=True)
        if problems:
            raise SchemaError("; ".join(problems))
        finalize_link = Link(url, self._catalog, self._limits, "finalize", self._count_reconnect)
        stack.push_async_callback(finalize_link.close)
        self._claim_link = claim_link
        self._purge_link: Link | None = None
        if self.settings.retention is not None:
            # Its own, so that no claim waits for a step of it.
            self._purge_link = Link(url, self._catalog, self._limits, "purge", self._count_reconnect)
            stack.push_async_callback(self._purge_link.close)
        self._finalize_link = finalize_link
        self._finalizer = Finalizer(
            finalize_link, self._held, MessageResults(self._catalog, self.counters, self._written)
        )
        # Its own, connected once there is something to say: a row that somebody holds must not hold up results.
        self._breaker_link = Link(url, self._catalog, self._limits, "breaker", self._count_reconnect)
        stack.push_async_callback(self._breaker_link.close)
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
        self._ahead_link = Link(url, self._catalog, self._limits, "claim ahead", self._count_reconnect)
        stack.push_async_callback(self._ahead_link.close)
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

    async def run(self, *, handle_signals: bool = True, exit_by_force: bool = False) -> bool:
        """Dispatch until cancelled or told to stop by SIGTERM or SIGINT, then drain.

        Unstarted messages go back at once with their attempt; publishes in flight have the grace time. A
        second signal ends the grace time.

        Args:
            handle_signals: install handlers while it runs (only in the main thread).
            exit_by_force: end the process when the grace time is over by nearly a second, even if a
                publisher blocks the event loop; for programs that do nothing else.

        Returns:
            True when everything in flight was finished, False when the grace time ended first.

        Raises:
            UnexpectedFailure: with ``on_unexpected="stop"``, after the drain.
            SchemaError: the tables are missing or not up to date.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(self._busy())
            if handle_signals:
                grace = self.settings.grace.total_seconds()
                exit_after = grace + EXIT_RESERVE + 0.1 if exit_by_force else None
                stack.enter_context(signals_to(self._stop.ask, exit_after=exit_after))
            if self._stack is None and not await self._entered_unless_stopped(stack):
                return True
            drained = await self._run_until_stopped()
            self._raise_unexpected()
            return drained

    def _raise_unexpected(self) -> None:
        unexpected = self._flight.unexpected
        if unexpected is not None:
            raise UnexpectedFailure(f"stopped, since a publisher raised {describe(unexpected)}") from unexpected

    async def _entered_unless_stopped(self, stack: AsyncExitStack) -> bool:
        """Connect, for as long as that takes, unless a stop is asked for first; return whether we are set up."""
        stack.push_async_exit(self.__aexit__)
        entering = asyncio.create_task(self.__aenter__())
        asked = asyncio.create_task(self._stop.asked.wait())
        try:
            await asyncio.wait([entering, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end([asked] if entering.done() else [asked, entering])
        if entering.cancelled():
            return False
        entering.result()
        return True

    def stop(self) -> None:
        """Begin the drain, from the event loop's thread; a second call ends the grace time."""
        self._stop.ask()

    async def _run_until_stopped(self) -> bool:
        loops = {
            asyncio.create_task(self._claim_until_stopped(), name="claim"): self._claim_link,
            asyncio.create_task(self._claim_ahead(), name="claim ahead"): self._ahead_link,
        }
        cancelled: asyncio.CancelledError | None = None
        watched = [*loops, *self._background]
        asked = asyncio.create_task(self._stop.asked.wait())
        try:
            await asyncio.wait([asked, *watched], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        self._stop.asked.set()
        self._pacing.stop()
        self._backlog.set()
        self._flight.wake()
        drain = asyncio.create_task(self._drain(loops))
        while not drain.done():
            try:
                await asyncio.shield(drain)
            except asyncio.CancelledError as error:
                cancelled = error
                self._stop.hurried.set()
        asked.cancel()
        if cancelled is not None:
            raise cancelled
        _raise_first_bug(watched)
        return drain.result()

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
        if self._purge_link is not None:
            work.append(purge_forever(self._purge_link, self._catalog, self.settings))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            while not any(task.done() for task in tasks):
                self._flight.give_up_on_overdue()
                await asyncio.wait(tasks, timeout=OVERDUE_SECONDS / 4, return_when=asyncio.FIRST_COMPLETED)
            _raise_first_bug(tasks)
        finally:
            await _end(tasks)

    # --- stopping ----------------------------------------------------------------------------------------

    async def _drain(self, claim_loops: Mapping[asyncio.Task[None], Link]) -> bool:
        """Finish what is in flight within the grace time; return whether everything was finished."""
        deadline = time.monotonic() + self.settings.grace.total_seconds()
        self._close_by = deadline
        drained = await self._within(deadline, self._drain_calmly(claim_loops))
        if drained:
            return True
        last = time.monotonic() + EXIT_RESERVE
        # A claim that is under way may be committed already: without its answer nobody could give its rows back.
        claiming = [loop for loop, link in claim_loops.items() if not loop.done() and not link.is_out_of_reach]
        if claiming:
            await asyncio.wait(claiming, timeout=EXIT_RESERVE / 3)
        for loop in claim_loops:
            loop.cancel()
        await self._flight.cut_off(patience=EXIT_RESERVE / 3)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, last - time.monotonic())):
                await self._finalizer.drained()
        log.warning("the grace time ended before everything in flight was finished")
        return False

    async def _drain_calmly(self, claim_loops: Mapping[asyncio.Task[None], Link]) -> None:
        while running := [loop for loop in claim_loops if not loop.done()]:
            for loop in running:
                if claim_loops[loop].is_out_of_reach:
                    loop.cancel()  # it would try for as long as the database is gone, and holds nothing
            await asyncio.wait(running, timeout=0.05)
        self._flight.release_line()
        await self._flight.landed()
        # What is still held now was given up on, or lost by a fault of ours: not left to its lease either way.
        await self._flight.cut_off(patience=0)
        await self._finalizer.drained()
        await self._breakers.written()

    async def _within(self, deadline: float, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work`` until the deadline or until somebody hurries; return whether it came to its end."""
        task = asyncio.create_task(work)
        hurried = asyncio.create_task(self._stop.hurried.wait())
        await asyncio.wait(
            [task, hurried],
            timeout=max(0.0, deadline - time.monotonic()),
            return_when=asyncio.FIRST_COMPLETED,
        )
        finished = task.done()
        await _end([task, hurried])
        return finished


def _settings(options: dict[str, Any]) -> DispatcherSettings:
    try:
        return DispatcherSettings(**options)
    except TypeError as error:
        known = ", ".join(DispatcherSettings.__dataclass_fields__)
        raise ConfigError(f"{error}; the settings are: {known}") from None


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _raise_first_bug(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """A loop of ours that ended by itself is a bug, and must not be taken for a clean stop."""
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            task.result()
