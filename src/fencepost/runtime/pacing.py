"""When the claim loop looks again: at a notice, when there is room, when a publish is over, or by the clock."""

from __future__ import annotations

import asyncio
import random

from fencepost.runtime.claimer import PATIENCE, RELIST, Batch
from fencepost.runtime.lanes import LINGER
from fencepost.runtime.wakeup import Wakeup

LEAST_PAUSE = 0.005
"""Seconds until the next look after something was found. The pauses grow from here to the poll interval: producers
that commit at the same time leave all but one notice out, and what they enqueued is found this way."""


class Pacing:
    """The pauses of one claim loop.

    Args:
        wakeup: set by notices.
        poll_interval: the longest pause, in seconds.
    """

    def __init__(self, wakeup: Wakeup, poll_interval: float) -> None:
        self._wakeup = wakeup
        self._poll_interval = poll_interval
        self._room = asyncio.Event()
        self._written = asyncio.Event()
        self._pause = LEAST_PAUSE
        self._was_futile = False
        wakeup.on_notice = self._room.set  # what was enqueued may be in a queue that has room

    def found(self) -> None:
        """A claim found something: the next look comes soon."""
        self._pause = LEAST_PAUSE
        self._was_futile = False

    def room(self) -> None:
        """A publish ended, and there may be room for a claim."""
        self._room.set()

    def written(self, promoted: bool) -> None:
        """Results stand in the database; where parked messages came to their turn, there is something to claim."""
        self._written.set()
        if promoted:
            self._wakeup.set()

    def stop(self) -> None:
        """End every wait."""
        for event in (self._room, self._written):
            event.set()
        self._wakeup.set()

    async def wait(self, batch: Batch, *, lingers: bool, waits: bool) -> None:
        """Wait after a claim that took nothing.

        Args:
            batch: what came of it.
            lingers: a queue waits shortly for more room.
            waits: messages were left alone that wait for one that is being published.
        """
        at_most = self._poll_interval if batch.retry_in is None else min(batch.retry_in, self._poll_interval)
        if batch.no_room:
            await _within(self._room, LINGER if lingers else self._unless_news(at_most))
        elif waits:
            await _within(self._written, PATIENCE)
        else:
            # (There may be news unread beside queues that are held back: these count as due.)
            await self._idle(max(self._unless_news(at_most), LEAST_PAUSE))

    def _unless_news(self, seconds: float) -> float:
        """Shorten a pause where it is not known yet which queue the last notice was about."""
        return min(seconds, RELIST) if self._wakeup.has_news else seconds

    async def _idle(self, at_most: float) -> None:
        if self._was_futile:
            # Notices may come in a storm, of messages that are not due, or of other workers' ones.
            await asyncio.sleep(LEAST_PAUSE)
        # Spread a little, so that many idle workers do not all poll in the same instant.
        spread = random.uniform(0.9, 1.0)  # noqa: S311 - jitter
        self._was_futile = await self._wakeup.wait(min(self._pause, at_most) * spread)
        self._pause *= 2


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()
