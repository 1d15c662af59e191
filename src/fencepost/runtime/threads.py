"""Plain functions of users, each in a thread that runs nothing else meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from fencepost.core.error_text import describe

QUICK_TURN = 0.001
"""Seconds after which a thread that computes lets another one run; Python's own is 5 ms."""


@contextlib.contextmanager
def quick_turns() -> Iterator[None]:
    """Let threads take turns more often, for a program that runs handlers and does nothing else.

    Where eight handlers compute, the heartbeats' thread has a turn every 40 ms with Python's own setting, and one
    beat takes several of them.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, QUICK_TURN))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


IDLE_SECONDS = 10.0
"""How long a thread that has nothing to do is kept: to make one takes longer than many a handler."""

_Work = Callable[[], None]


class Threads:
    """Runs plain functions in daemon threads, one at a time in each, and counts the ones that hang.

    A thread cannot be stopped from outside: one that outlives its time-out keeps its slot, so that a hanging
    one slows its process down instead of filling it with threads; and no thread holds up the exit.
    """

    def __init__(
        self, on_end: Callable[[], None], on_abandon: Callable[[int], None], name: str = "fencepost publish"
    ) -> None:
        self._name = name
        self._on_end = on_end
        self._on_abandon = on_abandon
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Work]] = []
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
            # The loop may be closed by now, when the thread outlived the shutdown: nobody is left to tell.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._finish, future, result, error)

        self._hand_over(work)
        try:
            return await future
        finally:
            if future.cancelled():
                self.abandoned += 1
                self._on_abandon(self.abandoned)

    def _hand_over(self, work: _Work) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(work)
        else:
            threading.Thread(target=self._serve, args=(work,), name=self._name, daemon=True).start()

    def _serve(self, work: _Work | None) -> None:
        """Be a thread: do the work, then what comes next, until nothing has come for a while."""
        inbox: SimpleQueue[_Work] = SimpleQueue()
        while work is not None:
            work()
            work = None  # nothing of it is kept alive while there is nothing to do
            with self._lock:
                self._idle.append(inbox)
            try:
                work = inbox.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    is_forgotten = inbox in self._idle
                    if is_forgotten:
                        self._idle.remove(inbox)
                if not is_forgotten:
                    work = inbox.get()  # it was handed over just now

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
