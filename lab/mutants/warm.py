"""A process that has pytest and the libraries of the tests in memory, and runs pytest in forks of itself.

To start Python and import all of that takes longer than most tests that notice a mutant. Nothing of fencepost is
imported before the fork: each child finds the sources where its path says.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]

PRELOADED = (
    "pytest",
    "pytest_asyncio",
    "pytest_timeout",
    "xdist",
    "hypothesis.stateful",
    "psycopg.sql",
    "sqlite3",
)

QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Plugins that are there already have no assertions rewritten, which they do not need."""


class Warm:
    """Runs pytest as often as asked, one run at a time.

    Args:
        path: where modules are looked for first.
        environment: of every run.
        output: the file for what pytest says.
    """

    def __init__(self, path: Sequence[Path], environment: Mapping[str, str], output: Path) -> None:
        self._path, self._environment, self._output = path, environment, output
        self._process: subprocess.Popen[str] | None = None
        self._child: int | None = None
        """The run under way."""
        self._is_given_up = False

    def run(self, arguments: Sequence[str], more: Mapping[str, str], limit: float) -> tuple[int | None, str]:
        """Return pytest's exit code, None where it had to be ended after ``limit`` seconds, and what it said.

        Raises:
            RuntimeError: it was given up on.
        """
        if self._is_given_up:
            raise RuntimeError("given up on")
        requests, answers = self._pipes()
        request = {
            "arguments": list(arguments),
            "environment": {**self._environment, **more},
            "path": [str(each) for each in self._path],
            "output": str(self._output),
        }
        print(json.dumps(request), file=requests, flush=True)
        self._child = int(answers.readline())
        is_over, _, _ = select.select([answers], [], [], limit)
        if not is_over:
            self._end_child()
        code = int(answers.readline())
        self._child = None
        return (code if is_over else None), self._output.read_text(encoding="utf-8", errors="replace")

    def give_up(self) -> None:
        """End the run under way, and let no other begin."""
        self._is_given_up = True
        self._end_child()

    def _end_child(self) -> None:
        if (child := self._child) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # a session of its own: nobody else is in it

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        """Start the process where it does not run yet; return where requests go and answers come from."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__))],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("it was started with pipes")
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()


def main() -> None:
    """Read requests from stdin, one a line; answer with the child's id at once, and then with its exit code."""
    _preload()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become_pytest(request)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _preload() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] in ("fencepost", "tests", "lab")]
    if ours:
        raise RuntimeError(f"a mutant would not be seen in {ours}")


def _become_pytest(request: Mapping[str, Any]) -> None:
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(ours, theirs)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = request["path"]
    random.seed()
    import pytest

    code = 70
    try:
        code = int(pytest.main([*QUIET, *request["arguments"]]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
