"""The dispatcher: claims what it can start, publishes it outside any transaction, writes the results back.

Claims and finalizes go over two connections, so that one batch is published while the result of the one
before is written; heartbeats have a third on a thread of their own, and notices a fourth.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from fencepost.config import DispatcherSettings
from fencepost.core.error_text import describe, storable
from fencepost.core.outcome import Action, Cancelled, Refused, Result, TimedOut, Unstarted, decide
from fencepost.embedded import open_store
from fencepost.errors import ConfigError, FencepostError, SchemaError
from fencepost.publishers.callable import Invocable
from fencepost.runtime.claimer import Batch, Claimer
from fencepost.runtime.counters import Counters
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.heartbeat import Heartbeat
from fencepost.runtime.held import OVERDUE_SECONDS, Held, Holding, Stage
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.publishing import Threads, publish
from fencepost.runtime.reaper import reap_forever
from fencepost.runtime.routes import Route, Router
from fencepost.runtime.shutdown import Stop, signals_to
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import schema
from fencepost.store.catalog import Catalog, Names

log = logging.getLogger("fencepost.dispatcher")

CLAIM_LINGER = 0.01
"""Seconds to wait for more free slots before a claim that could not fill a batch: claims cost the database."""

EXIT_RESERVE = 0.8
"""Seconds after the grace time for the last writes; the process is gone within a second of it."""


class UnexpectedFailure(FencepostError):
    """A publisher raised an unclassified exception, and ``on_unexpected`` is ``"stop"``; see its cause."""


class Dispatcher:
    """Publishes what was committed.

    Args:
        store: the database's address, ``postgresql://…`` or ``embedded:``.
        routes: which publisher a message goes to; the first match wins.
        settings: everything else; or give single settings as keyword arguments.
        schema_name, table: where the tables are.

    Raises:
        ConfigError: settings that cannot work.
    """

    def __init__(
        self,
        store: str,
        routes: Iterable[Route],
        settings: DispatcherSettings | None = None,
        *,
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
        self._router = Router(routes)
        self._limits = Limits.below(self.settings.lease)
        self._policy = self.settings.policy
        self._publish_timeout = self.settings.publish_timeout.total_seconds()
        self._stack: AsyncExitStack | None = None
        self._stop = Stop()

    # --- the life of a dispatcher ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect, check the schema, open the publishers and start beating.

        Raises:
            SchemaError: the tables are missing or not up to date.
        """
        if self._stack is not None:
            raise FencepostError("this dispatcher is running already: make one for each run")
        async with AsyncExitStack() as stack:
            await self._set_up(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        self._stop = Stop()
        if stack is not None:
            await stack.aclose()

    async def _set_up(self, stack: AsyncExitStack) -> None:
        self._held = Held()
        self._tasks: dict[asyncio.Task[None], Holding] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._slot_freed = asyncio.Event()
        self._threads = Threads(self._slot_freed.set)
        self._wakeup = Wakeup()
        self._unexpected: BaseException | None = None
        url_opener = open_store(self._store)
        url = await asyncio.to_thread(url_opener.__enter__)
        stack.push_async_callback(asyncio.to_thread, url_opener.__exit__, None, None, None)
        await self._open_links(stack, url)
        for publisher in self._router.publishers:
            await stack.enter_async_context(_opened(publisher))
        self._background = [
            asyncio.create_task(self._finalizer.run(), name="finalize"),
            asyncio.create_task(self._upkeep(), name="upkeep"),
        ]
        if self.settings.notify:
            listen = self._wakeup.listen(url, self._catalog.names.channel, self._limits)
            self._background.append(asyncio.create_task(listen, name="listen"))
        stack.push_async_callback(_end, self._background)
        stack.push_async_callback(self._wakeup.close)

    async def _open_links(self, stack: AsyncExitStack, url: str) -> None:
        claim_link = Link(url, self._catalog, self._limits, "claim", self._count_reconnect)
        stack.push_async_callback(claim_link.close)
        problems = await claim_link.run(lambda: schema.check(self._catalog))
        if problems:
            raise SchemaError("; ".join(problems))
        finalize_link = Link(url, self._catalog, self._limits, "finalize", self._count_reconnect)
        stack.push_async_callback(finalize_link.close)
        self._claim_link = claim_link
        self._claimer = Claimer(claim_link, self._catalog, self.settings, self.counters)
        self._finalizer = Finalizer(finalize_link, self._catalog, self._held, self.counters, self._slot_freed.set)
        heartbeat = Heartbeat(
            url,
            self._catalog,
            self._limits,
            self._held,
            every=self.settings.beat_every.total_seconds(),
            on_stall=self._count_stall,
            on_reconnect=self._count_reconnect,
        )
        heartbeat.start()
        stack.push_async_callback(heartbeat.stop, 0.2)

    # --- running -----------------------------------------------------------------------------------------

    async def dispatch_once(self) -> int:
        """Claim one batch, publish it, write the results; return how many messages were handled."""
        if self._stack is None:
            async with self:
                return await self.dispatch_once()
        batch = await self._claim(self.settings.concurrency)
        await self._start(batch)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._finalizer.drained()
        return len(batch.holdings)

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
            if handle_signals:
                grace = self.settings.grace.total_seconds()
                exit_after = grace + EXIT_RESERVE + 0.1 if exit_by_force else None
                stack.enter_context(signals_to(self._stop.ask, exit_after=exit_after))
            if self._stack is None and not await self._entered_unless_stopped(stack):
                return True
            drained = await self._run_until_stopped()
        if self._unexpected is not None and self.settings.on_unexpected == "stop":
            raise UnexpectedFailure(
                f"stopped, since a publisher raised {describe(self._unexpected)}"
            ) from self._unexpected
        return drained

    async def _entered_unless_stopped(self, stack: AsyncExitStack) -> bool:
        """Connect, for as long as that takes, unless a stop is asked for first; return whether we are set up."""
        entering = asyncio.create_task(self.__aenter__())
        asked = asyncio.create_task(self._stop.asked.wait())
        try:
            await asyncio.wait([entering, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end([asked] if entering.done() else [asked, entering])
        if entering.cancelled():
            return False
        entering.result()
        stack.push_async_exit(self.__aexit__)
        return True

    def stop(self) -> None:
        """Begin the drain, from the event loop's thread; a second call ends the grace time."""
        self._stop.ask()

    async def _run_until_stopped(self) -> bool:
        loop = asyncio.create_task(self._claim_until_stopped(), name="claim")
        cancelled: asyncio.CancelledError | None = None
        watched = [loop, *self._background]
        asked = asyncio.create_task(self._stop.asked.wait())
        try:
            await asyncio.wait([asked, *watched], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        self._stop.asked.set()
        self._wakeup.set()
        self._slot_freed.set()
        drain = asyncio.create_task(self._drain(loop))
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
        pause = self.settings.poll_interval.total_seconds()
        while not self._stop.asked.is_set():
            room = await self._room()
            if self._stop.asked.is_set():
                return
            batch = await self._claim_and_survive(room)
            if batch.holdings:
                await self._start(batch)
            elif not self._stop.asked.is_set():
                # Spread a little, so that many idle workers do not all poll in the same instant.
                await self._wakeup.wait(pause * random.uniform(0.9, 1.0))  # noqa: S311 - jitter

    async def _room(self) -> int:
        """Wait until there is room to start messages, and shortly for enough of it to fill a batch."""
        wanted = min(self.settings.batch, self.settings.concurrency)
        while self._free() < 1 and not self._stop.asked.is_set():
            self._slot_freed.clear()
            await self._slot_freed.wait()
        if self._free() < wanted:
            linger_until = time.monotonic() + CLAIM_LINGER
            with contextlib.suppress(TimeoutError):
                while self._free() < wanted and not self._stop.asked.is_set():
                    self._slot_freed.clear()
                    async with asyncio.timeout(linger_until - time.monotonic()):
                        await self._slot_freed.wait()
        return max(1, self._free())

    def _free(self) -> int:
        # Results that cannot be written hold back claims as well: their leases are ours to keep alive.
        unwritten = max(0, self._finalizer.backlog - self.settings.batch)
        return self.settings.concurrency - len(self._tasks) - self._threads.abandoned - unwritten

    async def _claim_and_survive(self, room: int) -> Batch:
        try:
            return await self._claim(room)
        except Exception as error:
            log.exception("a claim failed in a way that is not understood: %s; trying again", describe(error))
            return Batch()

    async def _claim(self, room: int) -> Batch:
        batch = await self._claimer.next(room)
        self._held.add(batch.holdings)
        now = time.monotonic()
        late = [each for each in batch.holdings if each.window.remaining(now) <= self._publish_timeout]
        if late and not self._stop.asked.is_set():
            log.warning("the answer to a claim came late: %d messages are given back unstarted", len(late))
            self.counters.late_claims += len(late)
            for holding in late:
                self._finish(holding, Unstarted())
            return Batch([holding for holding in batch.holdings if holding not in late], batch.alone)
        return batch

    async def _start(self, batch: Batch) -> None:
        if batch.alone:
            await self._start_alone(batch.holdings)
            return
        for holding in batch.holdings:
            self._start_one(holding)

    async def _start_alone(self, holdings: Sequence[Holding]) -> None:
        """Publish a crash suspect with nothing else in flight, so that it can take nobody with it."""
        for holding in holdings:
            await self._nothing_in_flight()
            self._start_one(holding)
            await self._nothing_in_flight()
            self._claimer.survived(holding)

    async def _nothing_in_flight(self) -> None:
        while self._tasks and not self._stop.asked.is_set():
            self._slot_freed.clear()
            await self._slot_freed.wait()

    def _start_one(self, holding: Holding) -> None:
        task = asyncio.create_task(self._handle(holding))
        self._tasks[task] = holding
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._slot_freed.set()

    # --- one message -------------------------------------------------------------------------------------

    async def _handle(self, holding: Holding) -> None:
        try:
            result = await self._publish(holding)
        except asyncio.CancelledError:
            result = self._timed_out() if holding.timed_out else Cancelled()
        if holding.stage is not Stage.FINALIZING:  # else it was given up on meanwhile
            self._finish(holding, result)

    async def _publish(self, holding: Holding) -> Result:
        if self._stop.asked.is_set():
            return Unstarted()
        message = holding.claimed.message
        publisher = self._router.find(message.event_type)
        if publisher is None:
            return Refused(f"no route for event type {storable(message.event_type, 200)!r}", unroutable=True)
        holding.deadline = time.monotonic() + self._publish_timeout
        holding.stage = Stage.PUBLISHING
        if self._timer is None:
            self._time_out_at(holding.deadline)
        return await publish(
            publisher,
            message,
            holding.delivery(time.monotonic),
            threads=self._threads,
            on_unexpected=self._note_unexpected,
        )

    def _time_out_at(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, deadline - time.monotonic()), self._time_out)

    def _time_out(self) -> None:
        """Cancel what has had its time: one timer for all, since tasks start in the order of their deadlines."""
        self._timer = None
        now = time.monotonic()
        for task, holding in self._tasks.items():
            if holding.timed_out or holding.stage is Stage.FINALIZING:
                continue
            if holding.deadline > now:
                if holding.stage is Stage.PUBLISHING:
                    self._time_out_at(holding.deadline)
                break
            holding.timed_out = True
            task.cancel()

    def _timed_out(self) -> TimedOut:
        return TimedOut(f"no answer from the publisher within {self._publish_timeout:g} s")

    def _finish(self, holding: Holding, result: Result) -> None:
        if isinstance(result, TimedOut):
            self.counters.timed_out += 1
        self._finalizer.submit(holding, self._decide(holding, result))

    def _decide(self, holding: Holding, result: Result) -> Action:
        claimed = holding.claimed
        return decide(
            result,
            self._policy,
            attempt=claimed.attempt,
            recovery=claimed.recovery,
            age=claimed.age + timedelta(seconds=time.monotonic() - holding.claimed_at),
            fraction=random.random(),  # noqa: S311 - jitter, not a secret
        )

    def _note_unexpected(self, error: BaseException) -> None:
        self.counters.unexpected += 1
        if self.settings.on_unexpected == "stop" and self._unexpected is None:
            self._unexpected = error
            self._stop.asked.set()

    def _count_reconnect(self) -> None:
        self.counters.reconnects += 1

    def _count_stall(self) -> None:
        self.counters.stalls += 1

    # --- upkeep ------------------------------------------------------------------------------------------

    async def _upkeep(self) -> None:
        """Give up on publishes that ignore their cancellation, and bury what nobody may take over."""
        reaper = asyncio.create_task(
            reap_forever(self._claim_link, self._catalog, self.settings, self.counters), name="reap"
        )
        try:
            while not reaper.done():
                self._give_up_on_overdue(time.monotonic())
                await asyncio.wait([reaper], timeout=OVERDUE_SECONDS / 4)
            reaper.result()
        finally:
            reaper.cancel()

    def _give_up_on_overdue(self, now: float) -> None:
        for holding in self._held.in_stage(Stage.PUBLISHING):
            if holding.is_overdue(now):
                log.error(
                    "the publish of message %d ignores its time-out; its slot stays taken until it ends",
                    holding.claimed.id,
                )
                self._finish(holding, self._timed_out())

    # --- stopping ----------------------------------------------------------------------------------------

    async def _drain(self, claim_loop: asyncio.Task[None]) -> bool:
        """Finish what is in flight within the grace time; return whether everything was finished."""
        deadline = time.monotonic() + self.settings.grace.total_seconds()
        drained = await self._within(deadline, self._drain_calmly(claim_loop))
        if drained:
            return True
        last = time.monotonic() + EXIT_RESERVE
        tasks = [*self._tasks, claim_loop]
        for task in tasks:
            task.cancel()
        # A publish that swallows its cancellation does not get to hold us up.
        await asyncio.wait(tasks, timeout=EXIT_RESERVE / 3)
        for holding in self._held.in_stage(Stage.PUBLISHING):
            self._finish(holding, Cancelled())
        for holding in self._held.in_stage(Stage.WAITING):
            self._finish(holding, Unstarted())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, last - time.monotonic())):
                await self._finalizer.drained()
        log.warning("the grace time ended before everything in flight was finished")
        return False

    async def _drain_calmly(self, claim_loop: asyncio.Task[None]) -> None:
        await asyncio.wait([claim_loop])
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._finalizer.drained()

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


@contextlib.asynccontextmanager
async def _opened(publisher: Invocable) -> AsyncIterator[None]:
    await _call_hook(publisher.open)
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(EXIT_RESERVE / 4):
                await _call_hook(publisher.close)
        except Exception as error:  # noqa: BLE001 - whatever a user's hook raises
            # What was acknowledged stays acknowledged: a close that fails is worth a line, not a failure.
            log.warning("publisher %s did not close: %s", publisher.name, describe(error))


async def _call_hook(hook: Callable[[], Any] | None) -> None:
    result = hook() if hook is not None else None
    if inspect.isawaitable(result):
        await result


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _raise_first_bug(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """A loop of ours that ended by itself is a bug, and must not be taken for a clean stop."""
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            task.result()
