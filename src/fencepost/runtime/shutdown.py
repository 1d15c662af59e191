"""Stopping: the first signal drains, the second hurries, and neither can be held up by a blocked event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_CUT_OFF = 1


class Stop:
    """What a shutdown waits for: asked once it drains, asked again it hurries."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    def ask(self) -> None:
        """Stop; or, when that was asked already, stop now."""
        if self.asked.is_set():
            self.hurried.set()
        self.asked.set()


@contextlib.contextmanager
def signals_to(ask: Callable[[], None], *, exit_after: float | None = None) -> Iterator[None]:
    """Turn SIGTERM and SIGINT into calls of ``ask`` on the running loop; does nothing outside the main thread.

    Args:
        ask: called on the event loop at each signal.
        exit_after: seconds after the first signal at which the process ends whatever it is doing, for a
            program that promises to be gone by then. None, for a library inside somebody else's process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    timers: list[threading.Timer] = []

    def handle(_number: int, _frame: FrameType | None) -> None:
        # A plain handler, not the loop's own: it runs also while a publisher blocks the loop.
        loop.call_soon_threadsafe(ask)
        if exit_after is not None and not timers:
            timer = threading.Timer(exit_after, os._exit, (EXIT_CUT_OFF,))
            timer.daemon = True
            timers.append(timer)
            timer.start()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in timers:
            timer.cancel()
