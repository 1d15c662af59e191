"""Starting and ending processes that use an embedded server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import fencepost

_ROOT = Path(__file__).parents[2]


def program_environment() -> dict[str, str]:
    """Our environment, in which a program finds the fencepost that we found."""
    paths = [str(Path(fencepost.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class User:
    """A process inside ``open_store``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def read(self) -> str:
        """The next line it prints; empty when it ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def leave(self) -> None:
        """Have it leave the block, and wait until it did."""
        self.write("leave")
        assert self.read() == "left"
        assert self.process.wait(30) == 0

    def end_by(self, number: signal.Signals) -> None:
        """End it by a signal that gives it no chance to leave."""
        self.process.send_signal(number)
        assert self.process.wait(30) == -number


@contextmanager
def user(address: str, *, uid: int | None = None, environment: Mapping[str, str] | None = None) -> Iterator[User]:
    """A process that enters ``open_store(address)``; ask it for its URL with ``read``."""
    arguments = [address] if uid is None else [address, str(uid)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.embedded.one_user", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env=program_environment() | dict(environment or {}),
    ) as process:
        try:
            yield User(process)
        finally:
            process.kill()
