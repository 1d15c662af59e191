"""What a contender is: a process that is told what to do, waits for the start, and says what it measured.

Each run is a fresh process, so that neither side has a warm interpreter or prepared statements before the
other. The address, which holds a password, travels by standard input rather than on the command line.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fencepost.errors import FencepostError

BATCH = 100

WARM_UP = 100
"""Messages that a destination gets before the start: neither side is timed while it connects."""

LEAST_PATIENCE = 60
"""Seconds that a contender has, besides 5 ms a message."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What to do.

    Args:
        messages: how many to drain, over all processes that share a tally; or how many to enqueue.
        batch: messages per claim.
        kind: which variant of the contender; each module says what it knows.
        settings: of a dispatcher, as numbers.
        tally: the file of a `fencepost.bench.tally.Tally`, and our slot in it.
        claims: how many claims to make, by the contender that makes nothing else.
        keys: over how many ordering keys that one spreads what it adds.
        destination: the URL that a contender publishes to, where it does.
        payload_bytes: of each message that it makes itself.
    """

    url: str
    messages: int = 0
    batch: int = BATCH
    kind: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tally: str = ""
    slot: int = 0
    claims: int = 0
    keys: int = 0
    destination: str = field(default="", repr=False)
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Drained:
    """How many messages were finalized, and the seconds from the start to the last commit."""

    messages: int
    seconds: float
    cpu_seconds: float = 0.0
    """What the process spent from the start on; filled in by `report`."""
    claims: Sequence[tuple[float, int]] = ()
    """Seconds and rows of each claim, in order, where they were asked for."""
    stamps: Sequence[tuple[int, int]] = ()
    """Id and nanoseconds (CLOCK_MONOTONIC) of the begin of each publish, where they were asked for."""


Start = Callable[[], None]
"""Says that a contender is ready and returns when it may start."""


class Contender:
    """A contender's process, seen from outside."""

    def __init__(self, module: str, assignment: Assignment) -> None:
        self._module, self._work = module, assignment.messages + 100 * assignment.claims
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._patience = LEAST_PATIENCE + self._work / 200
        self._is_overdue = False
        self._watch = threading.Timer(self._patience, self._give_up)
        self._watch.daemon = True
        self._watch.start()
        self._send(json.dumps(asdict(assignment)))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until it is connected and has nothing left to do but to start."""
        self._line()

    def go(self) -> None:
        """Let it start."""
        self._send("go")

    def result(self) -> Drained:
        """Wait for its end and return what it says.

        Raises:
            FencepostError: it failed or did not end in time; with what it wrote to standard error.
        """
        said = json.loads(self._line())
        return Drained(**said | {"claims": [tuple(each) for each in said["claims"]]})

    def end(self) -> None:
        """Leave nothing of it behind."""
        self._watch.cancel()
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        self._errors.close()

    def _give_up(self) -> None:
        self._is_overdue = True
        self._process.kill()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
        with contextlib.suppress(BrokenPipeError):  # it has failed, as the next line that is read will tell
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
        line = self._process.stdout.readline()
        if line:
            return line
        self._process.wait()
        if self._is_overdue:
            raise FencepostError(f"{self._module} had not ended after {self._patience:.0f} s")
        self._errors.seek(0)
        raise FencepostError(f"{self._module} failed: {self._errors.read().strip()[-2_000:]}")


@contextlib.contextmanager
def ready(module: str, assignments: Sequence[Assignment]) -> Iterator[list[Contender]]:
    """Processes of one module that are ready to start; whatever happens, none outlives the block."""
    contenders: list[Contender] = []
    try:
        contenders += [Contender(module, each) for each in assignments]
        for contender in contenders:
            contender.wait_until_ready()
        yield contenders
    finally:
        for contender in contenders:
            contender.end()


def run(module: str, assignment: Assignment) -> Drained:
    """Run a contender's module as a process and return what it says.

    Raises:
        FencepostError: it failed or did not end in time; with what it wrote to standard error.
    """
    return run_together(module, [assignment])[0]


def run_together(module: str, assignments: Sequence[Assignment]) -> list[Drained]:
    """Run several processes that start at once; see `run`."""
    with ready(module, assignments) as contenders:
        for contender in contenders:
            contender.go()
        return [contender.result() for contender in contenders]


def report(work: Callable[[Assignment, Start], Drained]) -> None:
    """Be that process: read the assignment, do it, write the result."""
    assignment = Assignment(**json.loads(sys.stdin.readline()))
    spent_before = 0.0

    def start() -> None:
        nonlocal spent_before
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        spent_before = time.process_time()

    done = work(assignment, start)
    done = replace(done, cpu_seconds=time.process_time() - spent_before)
    sys.stdout.write(json.dumps(asdict(done)) + "\n")
