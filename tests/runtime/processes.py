"""Start, watch and end worker processes, of messages or of jobs."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

DEFAULTS: dict[str, Any] = {
    "lease": 2.0,
    "publish_timeout": 0.5,
    "poll_interval": 0.05,
    "backoff_base": 0.001,
    "backoff_cap": 0.002,
    "grace": 5.0,
}


class Worker:
    """One worker process."""

    def __init__(self, program: str, url: str, owner: str, options: dict[str, Any]) -> None:
        settings = json.dumps(options | {"owner": owner})
        self.process = subprocess.Popen(
            [sys.executable, "-m", program, url, settings],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Return the next line that the worker prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ready(self) -> None:
        """Wait until it runs with its signal handlers in place."""
        line = self.line()
        assert line == "ready", line + self.errors()

    def result(self) -> dict[str, Any]:
        """Return the counters of the run that ended."""
        line = self.line()
        assert line, self.errors()
        result: dict[str, Any] = json.loads(line)
        return result

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def worker(url: str, owner: str, **options: Any) -> Iterator[Worker]:
    """Run one worker process; it is gone at the end of the block."""
    with _running("tests.runtime.worker", url, owner, DEFAULTS | options) as started:
        yield started


@contextlib.contextmanager
def job_worker(url: str, owner: str, **options: Any) -> Iterator[Worker]:
    """Run one process that works on jobs; it is gone at the end of the block."""
    with _running("tests.runtime.job_worker", url, owner, options) as started:
        yield started


@contextlib.contextmanager
def _running(program: str, url: str, owner: str, options: dict[str, Any]) -> Iterator[Worker]:
    started = Worker(program, url, owner, options)
    try:
        yield started
    finally:
        started.end()
