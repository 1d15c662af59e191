"""Heartbeats on a thread, an event loop and a connection of their own, which no user code can block.

The thread also notices what the main loop cannot: that user code blocks it, and that a lease has ended
without an answer from the database. While the main loop is frozen for longer than what runs there may
take, nothing is renewed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Generic

from fencepost.core.error_text import describe
from fencepost.core.operation import Operation
from fencepost.runtime.held import H, Held
from fencepost.runtime.link import Limits, Link
from fencepost.store.catalog import Catalog

log = logging.getLogger("fencepost.heartbeat")

LOOKS_PER_BEAT = 4
"""How often, between two heartbeats of the shortest lease, the thread looks for those that are due."""

STALL_SECONDS = 1.0
"""A main loop that does not answer for this long is reported as blocked."""


class Heartbeat(Generic[H]):
    """Extends the leases of everything in ``held`` until it is stopped.

    Each lease is renewed at a third of its own length, whatever the others' are. ``every`` and ``limits`` are
    asked again and again, since the queues' settings may change.

    Args:
        renew: extends the leases of these rows, to a lease from now, and returns the ids whose lease is lost.
        kind: what a row is, for the log.
    """

    def __init__(
        self,
        url: str,
        catalog: Catalog,
        limits: Callable[[], Limits],
        held: Held[H],
        *,
        renew: Callable[[Sequence[H], timedelta], Operation[frozenset[int]]],
        kind: str,
        every: Callable[[], float],
        frozen_after: float,
        on_stall: Callable[[], None],
        on_reconnect: Callable[[], None],
    ) -> None:
        self._url, self._catalog, self._limits, self._held = url, catalog, limits, held
        self._every, self._renewal, self._kind = every, renew, kind
        self._frozen_after = frozen_after
        self._on_stall = on_stall
        self._on_reconnect = on_reconnect
        self._main_loop = asyncio.get_running_loop()
        self._answered_at = time.monotonic()
        self._asked_at: float | None = None
        self._stall_told = False
        self._stopping = threading.Event()
        self._hurried = asyncio.Event()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._main, name="fencepost heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Look now which leases are due, rather than after a pause that was made for longer ones."""
        loop = self._own_loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._hurried.set)

    async def stop(self, timeout: float) -> None:
        """Stop beating and wait for the thread, at most ``timeout`` seconds: it is a daemon thread."""
        self._stopping.set()  # for a thread that has not come to its loop yet
        loop, task = self._own_loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        await asyncio.to_thread(self._thread.join, timeout)

    def _main(self) -> None:
        try:
            asyncio.run(self._beat_until_cancelled())
        except asyncio.CancelledError:
            pass
        except BaseException:
            log.critical("the heartbeat thread died: leases will be lost", exc_info=True)
            raise

    async def _beat_until_cancelled(self) -> None:
        self._own_loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._stopping.is_set():
            return
        link = Link(self._url, self._catalog, self._limits(), "heartbeat", self._on_reconnect)
        watcher = asyncio.create_task(self._watch())
        try:
            # Before there is a lease to extend: where others leave this thread few turns, to connect takes long.
            await link.open()
            while True:
                started = time.monotonic()
                tick = self._every() / LOOKS_PER_BEAT
                link.limit(self._limits())
                await self._beat(link, tick)
                await self._rest(started + tick - time.monotonic())
        finally:
            watcher.cancel()
            await link.close()

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._hurried.wait()
        self._hurried.clear()

    async def _beat(self, link: Link, tick: float) -> None:
        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at > self._frozen_after:
            # Time-outs do not fire in a loop that is frozen: let the leases end, so that others take over.
            return
        by_lease: dict[timedelta, list[H]] = {}
        for holding in self._held.to_beat(now, tick):
            by_lease.setdefault(holding.lease, []).append(holding)
        for lease, holdings in by_lease.items():
            await self._beat_for(link, lease, holdings)

    async def _beat_for(self, link: Link, lease: timedelta, holdings: list[H]) -> None:
        sent_at = time.monotonic()
        try:
            lost = await self._renew(link, holdings, lease)
        except Exception as error:  # noqa: BLE001 - no failure may end the heartbeats
            # The next beat tries again; `_watch` tells them once their window of trust is over.
            log.warning("a heartbeat for %d %ss failed: %s", len(holdings), self._kind, describe(error))
            return
        self._held.renewed([each for each in holdings if each.id not in lost], sent_at)
        self._tell(self._held.lose(each for each in holdings if each.id in lost), "the row has moved on")

    async def _renew(self, link: Link, holdings: Sequence[H], lease: timedelta) -> frozenset[int]:
        # Within the time of one beat, so that a slow answer does not cost the next one.
        async with asyncio.timeout(max(self._every(), self._limits().statement)):
            return await link.run(lambda: self._renewal(holdings, lease), tries=3)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(self._every() / 2, 0.25))
            now = time.monotonic()
            self._tell(self._held.lose(self._held.expired(now)), "no heartbeat was confirmed in time")
            self._watch_main_loop(now)

    def _watch_main_loop(self, now: float) -> None:
        if self._asked_at is None:
            self._asked_at = now
            self._main_loop.call_soon_threadsafe(self._answer)
        elif now - self._asked_at > STALL_SECONDS and not self._stall_told:
            self._stall_told = True
            log.error(
                "the event loop has been blocked for %.1f s: an async function of yours does blocking work; "
                "make it a plain function, which runs in a thread",
                now - self._asked_at,
            )
            self._on_stall()

    def _answer(self) -> None:
        """Run by the main loop: it is alive."""
        self._asked_at = None
        self._stall_told = False

    def _tell(self, lost: list[H], why: str) -> None:
        for holding in lost:
            log.warning(
                "lost the lease of %s %d (token %s): %s; what is done about it is told",
                self._kind,
                holding.id,
                holding.token,
                why,
            )
