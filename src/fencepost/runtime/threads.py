"""Plain functions of users, each in a thread that runs nothing else meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from fencepost.core.error_text import describe

TURNS_A_LEASE = 20_000
"""A beat takes some twenty turns, each after those of all threads that compute (say ten), and has a third of the
lease; on a machine that is short of CPU a turn takes many times as long as it should."""

SHORTEST_TURN = 0.0001


@contextlib.contextmanager
def turns_for(lease: timedelta) -> Iterator[None]:
    """Let threads take turns often enough for the heartbeats of such a lease, where handlers compute.

    For a program that runs handlers and does nothing else: it holds for the whole process. Python's own turns are
    of 5 ms. Measured with eight threads that compute, shorter ones take a tenth of what they get done at 1 ms, a
    third at 0.1 ms; so long leases leave it as it is, or nearly.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, max(SHORTEST_TURN, lease.total_seconds() / TURNS_A_LEASE)))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


IDLE_SECONDS = 10.0
"""How long a thread that has nothing to do is kept: to make one takes longer than many a handler."""

_Work = Callable[[], None]

_End = tuple[asyncio.Future[Any], Any, BaseException | None]
"""How a function ended: what waits for it, its result, its error."""


class Threads:
    """Runs plain functions in daemon threads, one at a time in each, and counts the ones that hang.

    A thread cannot be stopped from outside: one that outlives its time-out keeps its slot, so that a hanging
    one slows its process down instead of filling it with threads; and no thread holds up the exit.

    Nothing waits behind a function that takes long: work is only put into the queue where an idle thread is there
    for it alone. Where functions are quick, one thread takes many from the queue before another has woken up, and
    the loop hears of many ends at once: threads that wake each other up cost more than such functions.
    """

    def __init__(
        self, on_end: Callable[[], None], on_abandon: Callable[[int], None], name: str = "fencepost publish"
    ) -> None:
        self._name = name
        self._on_end = on_end
        self._on_abandon = on_abandon
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._queued = 0
        self._idle = 0
        """Threads that wait for work; never fewer than there is work in the queue."""
        self._ends: deque[_End] = deque()
        self._is_told = False
        """The loop is to look at the ends, and has not begun to."""
        self.abandoned = 0
        """Threads that still run although nobody waits for them any more."""

    async def call(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            error: BaseException | None = None
            result = None
            try:
                result = context.run(function)
            except BaseException as caught:  # noqa: BLE001 - handed to the future, SystemExit included
                error = caught
            self._ended(loop, (future, result, error))

        self._hand_over(work)
        try:
            return await future
        finally:
            if future.cancelled():
                self.abandoned += 1
                self._on_abandon(self.abandoned)

    # --- threads -----------------------------------------------------------------------------------------

    def _hand_over(self, work: _Work) -> None:
        with self._lock:
            has_idle = self._idle > self._queued
            self._queued += has_idle
        if has_idle:
            self._queue.put(work)
        else:
            threading.Thread(target=self._serve, args=(work,), name=self._name, daemon=True).start()

    def _serve(self, work: _Work | None) -> None:
        """Be a thread: do the work, then what comes next, until nothing has come for a while."""
        while work is not None:
            work()
            work = None  # nothing of it is kept alive while there is nothing to do
            with self._lock:
                self._idle += 1
            work = self._next()

    def _next(self) -> _Work | None:
        while True:
            try:
                work = self._queue.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle > self._queued:
                        self._idle -= 1
                        return None
                continue  # some was put there just now
            with self._lock:
                self._idle -= 1
                self._queued -= 1
            return work

    # --- ends --------------------------------------------------------------------------------------------

    def _ended(self, loop: asyncio.AbstractEventLoop, end: _End) -> None:
        # (First the end, then the question: who finds that the loop is told knows that it will see this one.)
        self._ends.append(end)
        if not self._is_told:
            self._is_told = True
            # The loop may be closed by now, when the thread outlived the shutdown: nobody is left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._finish_all)

    def _finish_all(self) -> None:
        self._is_told = False
        while self._ends:
            self._finish(*self._ends.popleft())

    def _finish(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            self.abandoned -= 1
            self._on_end()
        elif error is None:
            future.set_result(result)
        else:
            # A future refuses StopIteration, and asyncio lets SystemExit end the loop: carry it in a box.
            plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            future.set_exception(error if plain else Carried(error))


class Carried(Exception):
    """Brings a BaseException out of a thread."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(describe(error))
        self.error = error
