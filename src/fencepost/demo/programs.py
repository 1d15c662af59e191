"""The parent's side of the demonstration's processes: starting them, hearing what they report, ending them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fencepost.errors import FencepostError

PATIENCE = 30.0
"""Seconds to wait for anything; a demonstration that hangs explains nothing."""

_END_SECONDS = 5.0
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]


class Program:
    """One process running a module of this package; as a context manager it is gone at the end.

    Args:
        module: the module, below ``fencepost.demo``.
        name: for people, also in the list of processes.
        settings: sent to it as its first line of input.
        end_seconds: how long it may take to end before it is killed.
    """

    def __init__(
        self, module: str, name: str, settings: dict[str, Any], *, end_seconds: float = _END_SECONDS
    ) -> None:
        self.name = name
        self._end_seconds = end_seconds
        self._module = module
        self._settings = settings
        self._reports: dict[str, deque[dict[str, Any]]] = {}
        self._heard = threading.Condition()
        self._noise: deque[str] = deque(maxlen=30)
        self._silent = False

    def __enter__(self) -> Self:
        # Without -P a file named like a library in the working directory would be imported in its place.
        safe_path = [] if Path.cwd() == _PACKAGE_PARENT else ["-P"]
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, *safe_path, "-m", f"fencepost.demo.{self._module}", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C is for the parent, which ends its children in order. And should the parent die while a
            # child is stopped, a process group of its own is what makes the kernel wake that child (POSIX
            # sends SIGHUP and SIGCONT to an orphaned group with stopped members).
            process_group=0,
        )
        self._reader = threading.Thread(target=self._listen, name=f"hear {self.name}", daemon=True)
        self._reader.start()
        try:
            self.tell(self._settings)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """End it: by the end of its input, or by force when it does not obey."""
        self.go_on()  # it may be frozen
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
        except BrokenPipeError:
            pass  # it is gone already
        try:
            self._process.wait(self._end_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_SECONDS)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    # --- talking -----------------------------------------------------------------------------------------

    def tell(self, command: dict[str, Any]) -> None:
        """Send a command."""
        assert self._process.stdin is not None  # noqa: S101 - it was made as a pipe
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.check()
            raise

    def expect(self, kind: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Return the next report of a kind, waiting for it.

        Raises:
            FencepostError: it ended, failed or stayed silent.
        """
        found = self.next_report(kind, seconds)
        if found is None:
            raise self._failure(f"reported no {kind!r} within {seconds:g} s")
        return found

    def next_report(self, kind: str, seconds: float) -> dict[str, Any] | None:
        """Return the next report of a kind, or None when ``seconds`` pass without one.

        Raises:
            FencepostError: it ended or failed.
        """
        with self._heard:
            self._heard.wait_for(lambda: self._reports.get(kind) or self._silent, seconds)
            waiting = self._reports.get(kind)
            if waiting:
                return waiting.popleft()
        self.check()
        return None

    def take_reports(self, kind: str) -> list[dict[str, Any]]:
        """Return the reports of a kind that are there, and forget them."""
        with self._heard:
            return list(self._reports.pop(kind, ()))

    def last_report(self, kind: str) -> dict[str, Any] | None:
        """Return the latest report of a kind and forget those before it; None when there was none."""
        with self._heard:
            waiting = self._reports.get(kind)
            if not waiting:
                return None
            while len(waiting) > 1:
                waiting.popleft()
            return waiting[0]

    def check(self) -> None:
        """Make sure that it runs.

        Raises:
            FencepostError: it ended by itself, with what it said last.
        """
        if self._silent:
            raise self._failure("ended unexpectedly")

    def _failure(self, what: str) -> FencepostError:
        failed = self._reports.get("failed")
        if failed:
            return FencepostError(f"{self.name}: {failed[-1]['error']}")
        said = "\n".join(self._noise)
        return FencepostError(f"{self.name} (process {self.pid}) {what}" + (f":\n{said}" if said else ""))

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was made as a pipe
        for line in self._process.stdout:
            self._hear(line)
        with self._heard:
            self._silent = True
            self._heard.notify_all()

    def _hear(self, line: str) -> None:
        try:
            told = json.loads(line)
            kind = told["kind"]
        except (ValueError, TypeError, KeyError):
            self._noise.append(line.rstrip())  # a traceback, a warning of the interpreter
            return
        with self._heard:
            self._reports.setdefault(kind, deque()).append(told)
            self._heard.notify_all()

    # --- signals -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop it with SIGSTOP, and return once it really stands still.

        Raises:
            FencepostError: it ended instead.
        """
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._reader.join(_END_SECONDS)
            raise self._failure("ended unexpectedly")

    def go_on(self) -> None:
        """Let it go on with SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with SIGKILL, and return once it is gone."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Ask it to end with SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def exit_status(self, seconds: float = PATIENCE) -> int:
        """Wait for its end and for its last report, and return its exit status.

        Raises:
            FencepostError: it did not end.
        """
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not end within {seconds:g} s") from None
        self._reader.join(_END_SECONDS)
        return status


class Deadline:
    """A limit on one wait, whose error says what was waited for."""

    def __init__(self, what: str, seconds: float = PATIENCE) -> None:
        self._what, self._seconds = what, seconds
        self._ends_at = time.monotonic() + seconds

    def check(self) -> None:
        """Raise once the time is over.

        Raises:
            FencepostError: it is.
        """
        if time.monotonic() > self._ends_at:
            raise FencepostError(f"the demo waited {self._seconds:g} s in vain until {self._what}")
