"""How a lane is flown: its messages one after the other, or as a batch at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from fencepost.core.error_text import storable
from fencepost.core.outcome import (
    Cancelled,
    Delivered,
    Failed,
    Foreign,
    Refused,
    Result,
    Routed,
    TimedOut,
    Unstarted,
)
from fencepost.publishers.base import Delivery
from fencepost.publishers.callable import Invocable
from fencepost.runtime.counters import Counters
from fencepost.runtime.held import Holding, Stage
from fencepost.runtime.lanes import Lane, Slots
from fencepost.runtime.publishing import DELIVERED, publish, publish_batch, verified
from fencepost.runtime.routes import FOREIGN, Router, Target


class Control(Protocol):
    """Who has lanes flown: keeps the time, and takes every result."""

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more shall be started."""

    @property
    def is_cut_off(self) -> bool:
        """Whether what is in flight was cancelled."""

    def take_off(self, holding: Holding) -> None:
        """Note that a publish starts, whose time runs from now on."""

    def finish(self, holding: Holding, result: Result) -> None:
        """Take a result."""

    def release_rest(self, lane: Lane) -> None:
        """Give back what has not been started of it."""

    def note_unexpected(self, error: BaseException) -> None:
        """Take note of an exception of a publisher that is none of the classified ones."""


class LaneRunner:
    """Publishes what is in a lane.

    Args:
        control: who started it.
        router: knows the publisher of each message.
        counters: of the worker.
        owner: its name, for errors.
        on_foreign: called with a queue that holds messages of a destination that this worker does not know.
    """

    def __init__(
        self, control: Control, router: Router, counters: Counters, owner: str, on_foreign: Callable[[str], None]
    ) -> None:
        self._control, self._router, self._counters = control, router, counters
        self._owner, self._on_foreign = owner, on_foreign

    async def run(self, slots: Slots, lane: Lane) -> None:
        """Publish it, in one task, which is cancelled where a publish takes too long."""
        if lane.bulk is None:
            await self._in_turn(slots, lane)
        else:
            await self._at_once(slots, lane, lane.bulk)

    async def _in_turn(self, slots: Slots, lane: Lane) -> None:
        is_behind_routed = False
        for holding in lane.holdings:
            if holding.stage is not Stage.WAITING:
                return  # it was given back meanwhile: at a stop, or where what stood before it was given up on
            if is_behind_routed and self._is_published_here(holding):
                # The expansion before it may have to wait, and then it could not be closed.
                self._control.release_rest(lane)
                return
            try:
                result = await self._publish(slots, holding)
            except asyncio.CancelledError:
                result = timed_out(holding) if holding.timed_out else Cancelled()
            if _is_over(holding):
                return  # it was given up on meanwhile, and what is behind it given back
            self._control.finish(holding, result)
            lane.landed += 1
            is_behind_routed = isinstance(result, Routed)
            if not (isinstance(result, Delivered) or is_behind_routed) or holding.lost:
                # (Lost though delivered: nothing behind it could be closed, as it is open again.)
                self._control.release_rest(lane)
                return

    def _is_published_here(self, holding: Holding) -> bool:
        return isinstance(self._router.find(holding.terms.queue, holding.claimed), Invocable)

    async def _publish(self, slots: Slots, holding: Holding) -> Result:
        if self._control.is_stopping or _is_lost(holding):
            return Unstarted()
        message = holding.claimed.message
        publisher = self._router.find(holding.terms.queue, holding.claimed)
        if not isinstance(publisher, Invocable):
            return self._unpublished(holding, publisher)
        self._control.take_off(holding)
        delivery = holding.delivery()
        if holding.claimed.is_to_verify:
            known = await self._verified(slots, holding, publisher, delivery)
            if known is not None or _is_lost(holding) or self._control.is_cut_off:
                return known or Unstarted()
        return await publish(
            publisher, message, delivery, threads=slots.threads, on_unexpected=self._control.note_unexpected
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
                on_unexpected=self._control.note_unexpected,
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
            return Foreign(f"queue {queue} is no destination of worker {self._owner}")
        return Refused(f"no route for event type {event_type!r} in queue {queue}", unroutable=True)

    async def _at_once(self, slots: Slots, lane: Lane, publisher: Invocable) -> None:
        batch = []
        held_back: set[str] = set()
        for holding in lane.holdings:
            key = holding.claimed.message.ordering_key
            if self._control.is_stopping or _is_lost(holding) or key in held_back:
                self._control.finish(holding, Unstarted())
                if key is not None:
                    held_back.add(key)
            else:
                self._control.take_off(holding)
                batch.append(holding)
        if not batch:
            return
        try:
            results: Sequence[Result] = await publish_batch(
                publisher,
                [(holding.claimed.message, holding.delivery()) for holding in batch],
                threads=slots.threads,
                on_unexpected=self._control.note_unexpected,
            )
        except asyncio.CancelledError:
            results = [timed_out(each) if each.timed_out else Cancelled() for each in batch]
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
                    self._control.finish(holding, Unstarted())
                    continue
                failed.add(key)
            self._control.finish(holding, result)


def timed_out(holding: Holding) -> TimedOut:
    """Return how a publish ends that had no answer in its time."""
    return TimedOut(f"no answer from the publisher within {holding.terms.publish_timeout:g} s")


def _is_over(holding: Holding) -> bool:
    return holding.stage is Stage.FINALIZING


def _is_lost(holding: Holding) -> bool:
    """Tell whether its lease is lost, or may be: what was frozen goes on before its heartbeat can tell."""
    return bool(holding.lost) or holding.window.is_over(time.monotonic())
