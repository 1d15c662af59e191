"""A program that runs a PostgreSQL server in a temporary directory for as long as its parent lives.

It is a process of its own so that the server and its directory go away even when the parent is killed.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from fencepost.demo.lifeline import read_settings, report
from fencepost.embedded import open_store
from fencepost.errors import FencepostError


def main() -> None:
    read_settings()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    with tempfile.TemporaryDirectory(prefix="fencepost-demo-") as directory:
        Path(directory).chmod(0o711)  # as root the server runs as another user, who must pass here
        try:
            _serve(directory)
        except FencepostError as error:
            report("failed", error=str(error))


def _serve(directory: str) -> None:
    with open_store(f"embedded:{directory}/server") as url:
        report("ready", url=url)
        sys.stdin.read()  # until the parent closes it or is gone


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
