"""What a contender is: a process that is told where to drain how much, and says how long it took.

Each run is a fresh process, so that neither side has a warm interpreter or prepared statements before the
other. The address, which holds a password, travels by standard input rather than on the command line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from fencepost.errors import FencepostError

BATCH = 100


@dataclass(frozen=True, slots=True)
class Assignment:
    """What to drain."""

    url: str
    messages: int


@dataclass(frozen=True, slots=True)
class Drained:
    """How many messages were finalized, and the seconds from the first claim to the last commit."""

    messages: int
    seconds: float
    cpu_seconds: float = 0.0
    """What the process spent in all, its start included; filled in by `report`."""


def run(module: str, assignment: Assignment) -> Drained:
    """Run a contender's module as a process and return what it says.

    Raises:
        FencepostError: it failed or did not end in time; with what it wrote to standard error.
    """
    patience = 60 + assignment.messages / 200
    try:
        finished = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", module],
            input=json.dumps(asdict(assignment)),
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FencepostError(
            f"{module} had not drained {assignment.messages} messages after {patience:.0f} s"
        ) from None
    if finished.returncode != 0:
        raise FencepostError(f"{module} failed: {finished.stderr.strip()[-2_000:]}")
    return Drained(**json.loads(finished.stdout))


def report(drain: Callable[[Assignment], Drained]) -> None:
    """Be that process: read the assignment, drain, write the result."""
    assignment = Assignment(**json.loads(sys.stdin.read()))
    drained = replace(drain(assignment), cpu_seconds=time.process_time())
    sys.stdout.write(json.dumps(asdict(drained)))
