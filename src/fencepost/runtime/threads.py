"""Plain functions of users, each in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
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


class Threads:
    """Runs plain functions, each in a daemon thread of its own, and counts the ones that hang.

    A thread cannot be stopped from outside: one that outlives its time-out keeps its slot, so that a hanging
    one slows its process down instead of filling it with threads; and no thread holds up the exit.
    """

    def __init__(
        self, on_end: Callable[[], None], on_abandon: Callable[[int], None], name: str = "fencepost publish"
    ) -> None:
        self._name = name
        self._on_end = on_end
        self._on_abandon = on_abandon
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

        threading.Thread(target=work, name=self._name, daemon=True).start()
        try:
            return await future
        finally:
            if future.cancelled():
                self.abandoned += 1
                self._on_abandon(self.abandoned)

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
