"""The publishes in flight: starts them, times them out, and hands every result to the finalizer."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable
from datetime import timedelta

from fencepost.config import DispatcherSettings
from fencepost.core.error_text import describe, storable
from fencepost.core.outcome import Action, Cancelled, Failed, Refused, Result, TimedOut, Unstarted, decide
from fencepost.runtime.counters import Counters
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.held import Held, Holding, Stage
from fencepost.runtime.publishing import Threads, publish
from fencepost.runtime.routes import Router
from fencepost.runtime.shutdown import Stop

log = logging.getLogger("fencepost.flight")


class Flight:
    """A task for each publish, in the order in which they were started.

    Args:
        freed: set whenever a publish ends, for whoever waits for room.
    """

    def __init__(
        self,
        settings: DispatcherSettings,
        router: Router,
        held: Held,
        finalizer: Finalizer,
        counters: Counters,
        stop: Stop,
        freed: asyncio.Event,
    ) -> None:
        self._settings, self._router, self._held = settings, router, held
        self._finalizer, self._counters, self._stop, self._freed = finalizer, counters, stop, freed
        self._policy = settings.policy
        self._timeout = settings.publish_timeout.total_seconds()
        self._threads = Threads(freed.set, self._note_hung_thread)
        self._tasks: dict[asyncio.Task[None], Holding] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.unexpected: BaseException | None = None
        """The first unclassified exception, where ``on_unexpected`` is ``"stop"``."""

    @property
    def taken(self) -> int:
        """Slots that are taken: publishes in flight, and threads that nobody waits for any more."""
        return len(self._tasks) + self._threads.abandoned

    def start(self, holdings: Iterable[Holding]) -> None:
        """Start publishing; what has not begun when a stop is asked for goes back unstarted."""
        for holding in holdings:
            task = asyncio.create_task(self._handle(holding))
            self._tasks[task] = holding
            task.add_done_callback(self._ended)

    async def landed(self) -> None:
        """Wait until nothing is in flight, but for publishes that were given up on."""
        while not self._is_empty():
            self._freed.clear()
            await self._freed.wait()

    async def landed_or_stopped(self) -> None:
        """Wait until nothing is in flight or a stop is asked for."""
        while not self._is_empty() and not self._stop.asked.is_set():
            self._freed.clear()
            await self._freed.wait()

    def _is_empty(self) -> bool:
        return all(holding.stage is Stage.FINALIZING for holding in self._tasks.values())

    async def cut_off(self, patience: float) -> None:
        """Cancel what is in flight, and do not let a publish that swallows its cancellation hold us up.

        Args:
            patience: seconds to wait for the cancelled publishes to end.
        """
        for task in self._tasks:
            task.cancel()
        if not self._is_empty():
            await asyncio.wait(self._tasks, timeout=patience)
        for holding in self._held.in_stage(Stage.PUBLISHING):
            self.finish(holding, Cancelled())
        for holding in self._held.in_stage(Stage.WAITING):
            self.finish(holding, Unstarted())

    def give_up_on_overdue(self) -> None:
        """Finish the publishes that go on although they were timed out long ago."""
        now = time.monotonic()
        for holding in self._held.in_stage(Stage.PUBLISHING):
            if holding.is_overdue(now):
                log.error(
                    "the publish of message %d ignores its time-out; its slot stays taken until it ends",
                    holding.claimed.id,
                )
                self.finish(holding, self._timed_out())
                self._freed.set()

    def finish(self, holding: Holding, result: Result) -> None:
        """Decide what a result does to its row, and pass it on to be written."""
        if isinstance(result, TimedOut):
            self._counters.timed_out += 1
        try:
            action = self._decide(holding, result)
        except Exception as error:
            # Such as a delay that is no delay: the message must not be held for ever because of it.
            log.exception("the result of message %d makes no sense: treated as retryable", holding.claimed.id)
            self._counters.unexpected += 1
            action = self._decide(holding, Failed(describe(error), unexpected=True))
        self._finalizer.submit(holding, action)

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

    async def _handle(self, holding: Holding) -> None:
        try:
            result = await self._publish(holding)
        except asyncio.CancelledError:
            result = self._timed_out() if holding.timed_out else Cancelled()
        if holding.stage is not Stage.FINALIZING:  # else it was given up on meanwhile
            self.finish(holding, result)

    async def _publish(self, holding: Holding) -> Result:
        if self._stop.asked.is_set() or holding.lost:
            return Unstarted()
        message = holding.claimed.message
        publisher = self._router.find(message.event_type)
        if publisher is None:
            return Refused(f"no route for event type {storable(message.event_type, 200)!r}", unroutable=True)
        holding.deadline = time.monotonic() + self._timeout
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

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._freed.set()

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
                # The next one; or one that has not begun, which sets the timer when it does.
                if holding.stage is Stage.PUBLISHING:
                    self._time_out_at(holding.deadline)
                return
            holding.timed_out = True
            task.cancel()

    def _timed_out(self) -> TimedOut:
        return TimedOut(f"no answer from the publisher within {self._timeout:g} s")

    def _note_hung_thread(self, hung: int) -> None:
        self._counters.hung_threads += 1
        log.error(
            "a publisher hangs in its thread past its time-out; %d of %d slots are taken by such threads%s",
            hung,
            self._settings.concurrency,
            ": nothing is claimed any more, restart this process" if hung >= self._settings.concurrency else "",
        )

    def _note_unexpected(self, error: BaseException) -> None:
        self._counters.unexpected += 1
        if self._settings.on_unexpected == "stop" and self.unexpected is None:
            self.unexpected = error
            self._stop.asked.set()
