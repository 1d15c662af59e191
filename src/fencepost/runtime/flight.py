"""The publishes in flight: starts them, times them out, and hands every result to the finalizer."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from fencepost.config import DispatcherSettings
from fencepost.core.error_text import describe
from fencepost.core.outcome import (
    DONE,
    Action,
    Cancelled,
    Disabled,
    Failed,
    Refused,
    Result,
    TimedOut,
    Unstarted,
    decide,
)
from fencepost.runtime.breakers import Breakers
from fencepost.runtime.claimer import Room
from fencepost.runtime.counters import Counters
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.held import Held, Holding, Stage
from fencepost.runtime.lane_runner import LaneRunner, timed_out
from fencepost.runtime.lanes import Lane, Slots, lanes_of
from fencepost.runtime.publishing import DELIVERED
from fencepost.runtime.routes import Router
from fencepost.runtime.shutdown import Stop
from fencepost.runtime.terms import Terms

log = logging.getLogger("fencepost.flight")


STOOD_STILL = 0.1
"""Seconds that a timer is late in a loop that was blocked, or stopped with its process."""

HEARING = 0.05
"""Seconds in which such a loop hears what came meanwhile."""


class Flight:
    """A task for each lane: one message, the run of an ordering key, or a batch for a publisher that takes them.

    Every queue has slots of its own, so that a slow destination takes none of another one's.

    Args:
        on_room: called whenever a publish ended and there may be room for a claim.
        on_foreign: called with a queue that holds messages of a destination that this worker does not know.
    """

    def __init__(
        self,
        settings: DispatcherSettings,
        router: Router,
        held: Held[Holding],
        finalizer: Finalizer[Holding],
        counters: Counters,
        stop: Stop,
        breakers: Breakers,
        on_room: Callable[[], None],
        on_foreign: Callable[[str], None],
    ) -> None:
        self._settings, self._router, self._held = settings, router, held
        self._finalizer, self._counters, self._stop = finalizer, counters, stop
        self._breakers = breakers
        self._on_room = on_room
        self._runner = LaneRunner(self, router, counters, settings.owner, on_foreign)
        self._ended_one = asyncio.Event()
        self._slots: dict[str, Slots] = {}
        self._tasks: dict[asyncio.Task[None], Lane] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_hearing = False
        self._is_alone = False
        self.is_cut_off = False
        """Whether what is in flight was cancelled."""
        self.unexpected: BaseException | None = None
        """The first unclassified exception, where ``on_unexpected`` is ``"stop"``."""

    # --- room --------------------------------------------------------------------------------------------

    def room(self, terms: Terms) -> Room:
        """Tell how many messages of a queue are worth claiming now."""
        slots = self._slots_of(terms)
        # (Threads and publishes that do not end hold their slots on top of what is let through after an outage.)
        held = slots.stuck + slots.threads.abandoned
        slots.limit = min(terms.concurrency, self._breakers.most_at_once(terms) + held)
        # Results that cannot be written hold back claims as well: their leases are ours to keep alive.
        unwritten = max(0, self._finalizer.backlog - self._settings.batch)
        return Room(slots.claimable(self._settings.batch, unwritten, time.monotonic()), slots.longest_run)

    @property
    def is_lingering(self) -> bool:
        """Whether a queue waits shortly for more room, since claims cost the database."""
        return any(slots.short_since is not None for slots in self._slots.values())

    def _slots_of(self, terms: Terms) -> Slots:
        queue = terms.queue
        slots = self._slots.get(queue)
        if slots is None:
            slots = self._slots[queue] = Slots(
                terms.concurrency, self._thread_ended, lambda hung: self._note_hung_thread(queue, hung)
            )
        return slots

    def forget_idle(self, queues: Iterable[str]) -> None:
        """Drop the slots of queues that have nothing in flight, but for those named."""
        kept = set(queues)
        self._slots = {queue: slots for queue, slots in self._slots.items() if queue in kept or not slots.is_idle}

    # --- starting ----------------------------------------------------------------------------------------

    def start(self, holdings: Sequence[Holding]) -> None:
        """Start publishing, or put into line where there is no slot; what is in line at a stop goes back."""
        if not holdings:
            return
        slots = self._slots_of(holdings[0].terms)
        slots.line.extend(lanes_of(holdings, self._router, slots.limit))
        self._start_next(slots)

    async def start_alone(self, holding: Holding) -> None:
        """Publish one message with nothing else in flight or unwritten, and wait until it landed."""
        self._is_alone = True
        try:
            await self.landed_or_stopped()
            # If it kills this process, what was delivered before must not be taken for lost, and charged for it.
            await self._written_or_stopped(holding.terms.publish_timeout)
            self._begin(self._slots_of(holding.terms), Lane([holding]))
            await self.landed_or_stopped()
        finally:
            self._is_alone = False
            self._start_what_waits()

    def _start_what_waits(self) -> None:
        for slots in self._slots.values():
            self._start_next(slots)

    def _start_next(self, slots: Slots) -> None:
        while slots.line and not self._is_alone and slots.fits(slots.line[0]):
            self._begin(slots, slots.line.popleft())

    def _begin(self, slots: Slots, lane: Lane) -> None:
        slots.taken += lane.width
        # A task that is cancelled before its first step never runs: `cut_off` lets it begin, and it looks there.
        self._tasks[asyncio.create_task(self._fly(slots, lane))] = lane

    def _ended(self, slots: Slots, lane: Lane) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: it is called from a lane's own task
        del self._tasks[task]
        slots.taken -= lane.width
        if slots.line:
            self._start_next(slots)
        self._ended_one.set()
        if slots.may_claim(self._settings.batch):
            self._on_room()

    def release_line(self, queues: Iterable[str] | None = None) -> None:
        """Give back what is in line: of these queues, or of all."""
        for queue in list(self._slots) if queues is None else queues:
            if queue in self._slots:
                line = self._slots[queue].line
                while line:
                    for holding in line.popleft().holdings:
                        self.finish(holding, Unstarted())

    def release_unstarted(self) -> None:
        """Give back what is in line, and what stands in a lane behind a publish of its key."""
        self.release_line()
        for lane in self._tasks.values():
            if lane.has_begun:  # else it gives itself back in its first step
                self.release_rest(lane)

    # --- landing -----------------------------------------------------------------------------------------

    async def landed(self) -> None:
        """Wait until nothing is in flight or in line, but for publishes that were given up on."""
        while not self._is_empty() or (not self._is_alone and any(slots.line for slots in self._slots.values())):
            self._ended_one.clear()
            await self._ended_one.wait()

    async def landed_or_stopped(self) -> None:
        """Wait until nothing is in flight or a stop is asked for."""
        while not self._is_empty() and not self._stop.asked.is_set():
            self._ended_one.clear()
            await self._ended_one.wait()

    async def _written_or_stopped(self, seconds: float) -> None:
        """Wait until every result is written or a stop is asked for; a row that others lock, not for long."""
        if self._finalizer.is_drained or self._stop.asked.is_set():
            return
        waits = [asyncio.create_task(each) for each in (self._finalizer.drained(), self._stop.asked.wait())]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def wake(self) -> None:
        """Let whoever waits for a landing look again."""
        self._ended_one.set()

    def _is_empty(self) -> bool:
        return all(lane.is_over for lane in self._tasks.values())

    async def cut_off(self, patience: float) -> None:
        """Cancel what is in flight, and do not let a publish that swallows its cancellation hold us up.

        Args:
            patience: seconds to wait for the cancelled publishes to end.
        """
        self.release_line()
        self.is_cut_off = True
        for task, lane in self._tasks.items():
            if lane.has_begun:
                task.cancel()
        if not self._is_empty():
            await asyncio.wait(self._tasks, timeout=patience)
        for holding in self._held.in_stage(Stage.PUBLISHING):
            self.finish(holding, Cancelled())
        for holding in self._held.in_stage(Stage.WAITING):
            self.finish(holding, Unstarted())

    def give_up_on_overdue(self) -> None:
        """Finish the publishes that go on although they were cancelled long ago, and what waits behind them."""
        now = time.monotonic()
        for lane in list(self._tasks.values()):
            overdue = [each for each in lane.publishing if each.ignores_its_time_out(now)]
            for holding in overdue:
                log.error(
                    "the publish of message %d ignores its time-out; its slot stays taken until it ends",
                    holding.claimed.id,
                )
                self.finish(holding, timed_out(holding))
            if overdue:
                self.release_rest(lane)
                self._ended_one.set()
                self._on_room()
        self._look_for_stuck_slots()

    def _look_for_stuck_slots(self) -> None:
        """Start what can start beside publishes that do not end; where nothing can, leave it to other workers."""
        given_up: Counter[str] = Counter()
        for lane in self._tasks.values():
            if lane.is_over:
                given_up[lane.queue] += lane.width
        for queue, slots in self._slots.items():
            slots.stuck = given_up[queue]
            if slots.is_stuck:
                self.release_line([queue])
            elif slots.stuck or slots.threads.abandoned:
                self._start_next(slots)

    # --- results -----------------------------------------------------------------------------------------

    def finish(self, holding: Holding, result: Result) -> None:
        """Decide what a result does to its row, and pass it on to be written."""
        if result is DELIVERED:
            self._breakers.delivered(holding)
            self._finalizer.submit(holding, DONE)
            return
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
        if isinstance(result, Disabled):
            result = self._disabled(holding, result)
        is_outage = self._breakers.ended_otherwise(holding, result)
        return decide(
            result,
            holding.terms.policy,
            attempt=claimed.attempt,
            recovery=claimed.recovery,
            age=claimed.age + timedelta(seconds=time.monotonic() - holding.claimed_at),
            fraction=random.random(),  # noqa: S311 - jitter, not a secret
            is_outage=is_outage,
        )

    def _disabled(self, holding: Holding, result: Disabled) -> Result:
        """Pause the queue of a destination that is gone for good; in a shared queue, others must go on."""
        queue = holding.terms.queue
        if not self._router.is_destination(queue):
            return Refused(result.error)
        self._breakers.pause(holding, result.error)
        self.release_line([queue])
        return result

    # --- flying ------------------------------------------------------------------------------------------

    async def _fly(self, slots: Slots, lane: Lane) -> None:
        lane.has_begun = True
        began = time.monotonic() if slots.is_watched() else None
        try:
            await self._runner.run(slots, lane)
        finally:
            if began is not None:
                publishes = 1 if lane.bulk is not None else max(1, lane.landed)
                slots.paced((time.monotonic() - began) / publishes, lane.width)
            self._ended(slots, lane)

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more shall be started."""
        return self.is_cut_off or self._stop.asked.is_set()

    def release_rest(self, lane: Lane) -> None:
        """Give back what has not been started of it."""
        for holding in lane.holdings:
            if holding.stage is Stage.WAITING:
                self.finish(holding, Unstarted())

    # --- time-outs ---------------------------------------------------------------------------------------

    def take_off(self, holding: Holding) -> None:
        """Note that a publish starts, whose time runs from now on."""
        holding.deadline = time.monotonic() + holding.terms.publish_timeout
        holding.stage = Stage.PUBLISHING
        if self._timer is None or holding.deadline < self._timer_at:
            self._time_out_at(holding.deadline)

    def _time_out_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, deadline - time.monotonic()), self._time_out)

    def _time_out(self) -> None:
        """Cancel what has had its time: one timer for all, set to the earliest deadline."""
        self._timer = None
        now = time.monotonic()
        if now > self._timer_at + STOOD_STILL and not self._is_hearing:
            # What was answered meanwhile would be cancelled before the loop has heard of it. (Once: a loop that is
            # always late would never time anything out.)
            self._is_hearing = True
            self._time_out_at(now + HEARING)
            return
        self._is_hearing = False
        earliest: float | None = None
        for task, lane in self._tasks.items():
            flying = [each for each in lane.publishing if not each.timed_out]
            late = [each for each in flying if each.deadline <= now]
            for holding in late:
                holding.cancelled_at = now
            if late:
                task.cancel()
            earliest = min([each.deadline for each in flying if each.deadline > now], default=earliest)
        if earliest is not None:
            self._time_out_at(earliest)

    # --- what publishers do besides ----------------------------------------------------------------------

    def _thread_ended(self) -> None:
        self._ended_one.set()
        self._start_what_waits()
        self._on_room()

    def _note_hung_thread(self, queue: str, hung: int) -> None:
        self._counters.hung_threads += 1
        limit = self._slots[queue].limit
        log.error(
            "a publisher hangs in its thread past its time-out; %d of %d slots of queue %s are taken by "
            "such threads%s",
            hung,
            limit,
            queue,
            ": nothing of it is claimed any more, restart this process" if hung >= limit else "",
        )

    def note_unexpected(self, error: BaseException) -> None:
        """Take note of an exception that is none of the classified ones; stop of it, where that is asked for."""
        self._counters.unexpected += 1
        if self._settings.on_unexpected == "stop" and self.unexpected is None:
            self.unexpected = error
            self._stop.asked.set()
