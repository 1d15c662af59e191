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
from fencepost.core.error_text import describe, storable
from fencepost.core.outcome import (
    DONE,
    Action,
    Cancelled,
    Delivered,
    Disabled,
    Failed,
    Foreign,
    Refused,
    Result,
    Routed,
    TimedOut,
    Unstarted,
    decide,
)
from fencepost.publishers.base import Delivery
from fencepost.publishers.callable import Invocable
from fencepost.runtime.breakers import Breakers
from fencepost.runtime.claimer import Room
from fencepost.runtime.counters import Counters
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.held import Held, Holding, Stage
from fencepost.runtime.lanes import Lane, Slots, lanes_of
from fencepost.runtime.publishing import DELIVERED, publish, publish_batch, verified
from fencepost.runtime.routes import FOREIGN, Router, Target
from fencepost.runtime.shutdown import Stop
from fencepost.runtime.terms import Terms

log = logging.getLogger("fencepost.flight")


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
        self._on_room, self._on_foreign = on_room, on_foreign
        self._ended_one = asyncio.Event()
        self._slots: dict[str, Slots] = {}
        self._tasks: dict[asyncio.Task[None], Lane] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_alone = False
        self._is_cut_off = False
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
        self._is_cut_off = True
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
        """Finish the publishes that go on although they were timed out long ago, and what waits behind them."""
        now = time.monotonic()
        for lane in list(self._tasks.values()):
            overdue = [each for each in lane.publishing if each.is_overdue(now)]
            for holding in overdue:
                log.error(
                    "the publish of message %d ignores its time-out; its slot stays taken until it ends",
                    holding.claimed.id,
                )
                self.finish(holding, self._timed_out(holding))
            if overdue:
                self._release_rest(lane)
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
        self._breakers.pause(queue, result.error)
        self.release_line([queue])
        return result

    # --- flying ------------------------------------------------------------------------------------------

    async def _fly(self, slots: Slots, lane: Lane) -> None:
        lane.has_begun = True
        began = time.monotonic() if slots.is_watched() else None
        try:
            if lane.bulk is None:
                await self._fly_in_turn(slots, lane)
            else:
                await self._fly_at_once(slots, lane, lane.bulk)
        finally:
            if began is not None:
                publishes = 1 if lane.bulk is not None else max(1, lane.landed)
                slots.paced((time.monotonic() - began) / publishes, lane.width)
            self._ended(slots, lane)

    async def _fly_in_turn(self, slots: Slots, lane: Lane) -> None:
        is_behind_routed = False
        for holding in lane.holdings:
            if holding.stage is not Stage.WAITING:
                return  # what stood before it was given up on, and it was given back
            if is_behind_routed and self._is_published_here(holding):
                # The expansion before it may have to wait, and then it could not be closed.
                self._release_rest(lane)
                return
            try:
                result = await self._publish(slots, holding)
            except asyncio.CancelledError:
                result = self._timed_out(holding) if holding.timed_out else Cancelled()
            if _is_over(holding):
                return  # it was given up on meanwhile, and what is behind it given back
            self.finish(holding, result)
            lane.landed += 1
            is_behind_routed = isinstance(result, Routed)
            if not (isinstance(result, Delivered) or is_behind_routed) or holding.lost:
                # (Lost though delivered: nothing behind it could be closed, as it is open again.)
                self._release_rest(lane)
                return

    def _is_published_here(self, holding: Holding) -> bool:
        return isinstance(self._router.find(holding.terms.queue, holding.claimed), Invocable)

    @property
    def _is_stopping(self) -> bool:
        return self._is_cut_off or self._stop.asked.is_set()

    def _release_rest(self, lane: Lane) -> None:
        """An earlier message of their key did not go out: give back what is behind it."""
        for holding in lane.holdings:
            if holding.stage is Stage.WAITING:
                self.finish(holding, Unstarted())

    async def _publish(self, slots: Slots, holding: Holding) -> Result:
        if self._is_stopping or _is_lost(holding):
            return Unstarted()
        message = holding.claimed.message
        publisher = self._router.find(holding.terms.queue, holding.claimed)
        if not isinstance(publisher, Invocable):
            return self._unpublished(holding, publisher)
        self._take_off(holding)
        delivery = holding.delivery()
        if holding.claimed.is_to_verify:
            known = await self._verified(slots, holding, publisher, delivery)
            if known is not None or _is_lost(holding) or self._is_cut_off:
                return known or Unstarted()
        return await publish(
            publisher, message, delivery, threads=slots.threads, on_unexpected=self._note_unexpected
        )

    async def _verified(
        self, slots: Slots, holding: Holding, publisher: Invocable, delivery: Delivery
    ) -> Result | None:
        """Return how this attempt ends without a publish; None where it may publish, in the time that is left."""
        try:
            known = await verified(
                publisher,
                holding.claimed.message,
                delivery,
                threads=slots.threads,
                on_unexpected=self._note_unexpected,
            )
        except asyncio.CancelledError:
            if not holding.timed_out:
                raise
            known = None
        if (
            known is None and holding.timed_out
        ):  # also where it swallowed its cancellation, and said at last: publish
            self._counters.timed_out += 1
            return Failed(f"verify: no answer within {holding.terms.publish_timeout:g} s", unverified=True)
        return known

    def _unpublished(self, holding: Holding, target: Target) -> Result:
        """Return what becomes of a message that has no publisher here."""
        if isinstance(target, tuple):
            return Routed(target)
        event_type, queue = storable(holding.claimed.message.event_type, 200), holding.terms.queue
        if target is FOREIGN:
            self._on_foreign(queue)
            return Foreign(f"queue {queue} is no destination of worker {self._settings.owner}")
        return Refused(f"no route for event type {event_type!r} in queue {queue}", unroutable=True)

    async def _fly_at_once(self, slots: Slots, lane: Lane, publisher: Invocable) -> None:
        batch = []
        held_back: set[str] = set()
        for holding in lane.holdings:
            key = holding.claimed.message.ordering_key
            if self._is_stopping or _is_lost(holding) or key in held_back:
                self.finish(holding, Unstarted())
                if key is not None:
                    held_back.add(key)
            else:
                self._take_off(holding)
                batch.append(holding)
        if not batch:
            return
        try:
            results: Sequence[Result] = await publish_batch(
                publisher,
                [(holding.claimed.message, holding.delivery()) for holding in batch],
                threads=slots.threads,
                on_unexpected=self._note_unexpected,
            )
        except asyncio.CancelledError:
            results = [self._timed_out(each) if each.timed_out else Cancelled() for each in batch]
        self._finish_in_order(batch, results)

    def _finish_in_order(self, batch: Sequence[Holding], results: Sequence[Result]) -> None:
        """Finish a batch; what failed behind a failure of its key was never tried, or must not count as such.

        But for an outcome that nobody knows: such a message may be with the receiver.
        """
        failed: set[str] = set()
        for holding, result in zip(batch, results, strict=True):
            if holding.stage is Stage.FINALIZING:
                continue
            key = holding.claimed.message.ordering_key
            if key is not None and result is not DELIVERED:
                if key in failed and not isinstance(result, TimedOut | Cancelled):
                    self.finish(holding, Unstarted())
                    continue
                failed.add(key)
            self.finish(holding, result)

    # --- time-outs ---------------------------------------------------------------------------------------

    def _take_off(self, holding: Holding) -> None:
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
        earliest: float | None = None
        for task, lane in self._tasks.items():
            flying = [each for each in lane.publishing if not each.timed_out]
            late = [each for each in flying if each.deadline <= now]
            for holding in late:
                holding.timed_out = True
            if late:
                task.cancel()
            earliest = min([each.deadline for each in flying if each.deadline > now], default=earliest)
        if earliest is not None:
            self._time_out_at(earliest)

    def _timed_out(self, holding: Holding) -> TimedOut:
        return TimedOut(f"no answer from the publisher within {holding.terms.publish_timeout:g} s")

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

    def _note_unexpected(self, error: BaseException) -> None:
        self._counters.unexpected += 1
        if self._settings.on_unexpected == "stop" and self.unexpected is None:
            self.unexpected = error
            self._stop.asked.set()


def _is_over(holding: Holding) -> bool:
    return holding.stage is Stage.FINALIZING


def _is_lost(holding: Holding) -> bool:
    """Tell whether its lease is lost, or may be: what was frozen goes on before its heartbeat can tell."""
    return bool(holding.lost) or holding.window.is_over(time.monotonic())
