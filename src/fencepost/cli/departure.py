"""The end of a process that promised to be gone in time, whatever a publisher does.

An interpreter that ends by itself waits for threads, for ``atexit`` and for whoever blocks it. Here a thread
that nothing can block keeps the deadline, from the first signal until the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from fencepost.cli import exits

RESERVE = 0.9
"""Seconds after the grace time, for the last writes and the way out."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_HURRY = 255


class Departure:
    """Hears the signals from before the first connection on, and ends the process in time.

    Its stages, in their order: connecting without an event loop (a signal ends it at once), setting up on the
    loop (a signal calls the action, nothing is in flight), running (a signal drains, a second one hurries), and
    closing (the deadline runs, signal or not, and a second signal ends the process on the spot).

    Args:
        grace: seconds that what is in flight may take after a signal.
    """

    def __init__(self, grace: float) -> None:
        self.code = exits.OK
        """With what the process exits where it has to be forced: 0 while nothing of its work is unfinished."""
        self.signals = 0
        self._grace = grace
        # Where nothing is in flight there is nothing to be patient for.
        self._patience = min(grace, 1.0)
        self._deadline: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._action: Callable[[], Any] | None = None
        self._closing = False

    def install(self) -> None:
        """Take over SIGTERM and SIGINT, and start keeping the deadline."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # The interpreter writes the signal's number there at once, also while C code keeps it from running
        # the handler. The thread exists from here on: starting one inside a handler can deadlock.
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        threading.Thread(target=self._watch, name="fencepost departure", daemon=True).start()

    def hear(self) -> None:
        """Have signals told to our thread, from the running loop.

        uvloop has them told to itself once it runs (and to us again once it has stopped). Where C code blocks it,
        it hears nothing; and a signal that comes just before such a call does not interrupt it either.
        """
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def withdraw(self) -> None:
        """Give the signals back: the process ends in some other way, before anything was started."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._writer)  # ends the thread

    @property
    def has_loop(self) -> bool:
        """Whether a publisher may have started something that goes on."""
        return self._loop is not None

    # --- the stages --------------------------------------------------------------------------------------

    def setting_up(self, loop: asyncio.AbstractEventLoop, action: Callable[[], Any]) -> None:
        """From now on a signal calls ``action`` on the loop."""
        self._action = action
        self._loop = loop

    def running(self, action: Callable[[], Any]) -> None:
        """From now on messages are in flight, and a signal calls ``action`` on the loop."""
        self.code, self._patience, self._action = exits.NEGATIVE, self._grace, action
        if self.signals:
            action()  # whatever the signal interrupted went on all the same

    def closing(self, code: int) -> None:
        """The work is over: what is left is to close, and that has an end."""
        self.code, self._closing = code, True
        # Before anything that may block: what was printed so far should not be lost.
        _flush()
        self._end_within(self._grace)

    def leave(self, code: int) -> NoReturn:
        """End the process, waiting neither for threads nor for ``atexit``."""
        self.closing(code)
        with contextlib.suppress(Exception):
            logging.shutdown()
        _flush()
        os._exit(code)

    # --- signals and the deadline ------------------------------------------------------------------------

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.signals += 1
        # Said again, in case that a library took the interpreter's wake-up for itself.
        with contextlib.suppress(OSError):
            os.write(self._writer, bytes([number if self.signals == 1 else _HURRY]))
        if self._closing:
            if self.signals > 1:
                os._exit(self.code)
        elif self._loop is None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(exits.OK)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._act)

    def _act(self) -> None:
        # Looked up on the loop: the stage may have changed since the signal.
        if self._action is not None and not self._closing:
            self._action()

    def _end_within(self, patience: float) -> None:
        wanted = time.monotonic() + patience + RESERVE
        self._deadline = wanted if self._deadline is None else min(self._deadline, wanted)
        with contextlib.suppress(OSError):
            os.write(self._writer, b"\0")  # look at it

    def _watch(self) -> None:
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            readable, _, _ = select.select([self._reader], [], [], left)
            if not readable:
                os._exit(self.code)
            told = os.read(self._reader, 512)
            if not told:
                os.close(self._reader)
                return
            if _HURRY in told:
                self._end_within(0)
            elif any(number in told for number in _SIGNALS):
                self._end_within(self._patience)
                self._wake_loop()

    def _wake_loop(self) -> None:
        """Have the loop take a step: only then does the interpreter run the handler, unless C code blocks it."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(_nothing)


def _nothing() -> None: ...


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            stream.flush()
