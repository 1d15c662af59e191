"""Real servers as processes of the tests: found or required, started, frozen, stopped by their pid, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar

import pytest

REQUIRE = "FENCEPOST_REQUIRE_SERVERS"
STOP_SECONDS = 5.0
LOOK_SECONDS = 0.02
"""Between two looks at a condition, which is "it answers"."""

Answer = TypeVar("Answer")


def missing(reason: str) -> NoReturn:
    """Skip the test for want of a server, or fail it where the servers are required."""
    if os.environ.get("CI") or os.environ.get(REQUIRE) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def found(program: str, install: str, *folders: Path) -> str:
    """Return the path of a server's program; without it, skip the test, or fail it where servers are required.

    Args:
        program: its name.
        install: what a person does to have it.
        folders: where alone it may be; without any: beside Python, on the path, and where Debian has daemons.
    """
    places = folders or (Path(sys.executable).parent, os.environ.get("PATH", ""), "/usr/sbin")
    path = shutil.which(program, path=os.pathsep.join(map(str, places)))
    if path is None:
        where = f" in {folders[0]}" if folders else ""
        missing(f"{program} is not installed{where}: {install}")
    return path


class ServerProcess:
    """A server on a port of 127.0.0.1, both the same over restarts; what it writes is added to one log.

    As a context it is started, and closed at the end.

    Args:
        directory: for its log; made if it is not there.
        port: where it will listen.
        command: the program with its arguments.
        environment: all its variables, if not those of the tests.
    """

    ready_seconds = 10.0
    """How long a test waits for its first answer: far more than it takes on a machine that has more to do."""

    def __init__(
        self, directory: Path, port: int, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.port = port
        self._command, self._environment = command, environment
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Return what the server wrote so far."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Start it; whether it answers by then, each server's class says."""
        assert not self.is_running, "it runs already"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def stop(self) -> None:
        """Ask it to end, also when it is frozen, and return when it has."""
        if self._process is not None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop whatever still runs, in whatever state."""
        self.stop()

    def pause(self) -> None:
        """Freeze it: its connections stay, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # A signal is not yet a stop: a thread of the server could still answer meanwhile.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on after `pause`, if it still runs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def wait_until_it_listens(self) -> None:
        """Return when it accepts connections."""
        address = ("127.0.0.1", self.port)
        self.first_answer(lambda: socket.create_connection(address, timeout=1).close(), OSError)

    def first_answer(self, ask: Callable[[], Answer], *refusals: type[Exception]) -> Answer:
        """Return what the first call returns that raises none of the refusals, from a test without a loop."""
        ends = time.monotonic() + self.ready_seconds
        while True:
            try:
                return ask()
            except refusals as refusal:
                self._check(ends, refusal)
            time.sleep(LOOK_SECONDS)

    async def first_awaited(self, ask: Callable[[], Awaitable[Answer]], *refusals: type[Exception]) -> Answer:
        """Return what the first call returns that raises none of the refusals."""
        ends = time.monotonic() + self.ready_seconds
        no_answers: tuple[type[Exception], ...] = (*refusals, TimeoutError)
        while True:
            try:
                async with asyncio.timeout(ends - time.monotonic()):
                    return await ask()
            except no_answers as refusal:
                self._check(ends, refusal)
            await asyncio.sleep(LOOK_SECONDS)

    def _check(self, ends: float, refusal: Exception) -> None:
        """Fail, with its log, once there is no answer to come."""
        assert self.is_running, f"the server has ended: {refusal!r}\n{self.log()}"
        assert time.monotonic() < ends, f"no answer in {self.ready_seconds:g} s: {refusal!r}\n{self.log()}"
