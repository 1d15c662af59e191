"""Playing a demonstration as a process, and finding what it left behind."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fencepost.embedded import processes
from tests.postgres import server_directory

MARK = "FENCEPOST_DEMO_TEST"


class Play:
    """A running demonstration, whose temporary files have a directory of their own."""

    def __init__(self, process: subprocess.Popen[str], directory: Path, mark: str) -> None:
        self.process = process
        self._directory = directory
        self._mark = mark
        self._cluster: str | None = None

    def read_until(self, text: str) -> str:
        """Read the output up to the first line that holds a text, and return all that was read."""
        assert self.process.stdout is not None
        read = ""
        for line in self.process.stdout:
            read += line
            if text in line:
                self._note_server()
                return read
        raise AssertionError(f"the output ended without {text!r}:\n{read}")

    def finish(self) -> tuple[int, str]:
        """Wait for its end; return the exit status and the rest of the output."""
        output, _ = self.process.communicate(timeout=90)
        return self.process.returncode, output

    def finish_watching_its_server(self) -> tuple[int, str]:
        """Do the same for a run with a temporary server, which must be seen before it is gone."""
        assert processes.wait_until(lambda: self._note_server() or self.process.poll() is not None, 60)
        return self.finish()

    def leftovers(self) -> list[str]:
        """Return what there still is of its processes and its temporary files."""
        found = [f"file {path.name}" for path in self._directory.iterdir()]
        found += [f"process {pid}" for pid in _marked(self._mark)]
        if self._cluster is not None:
            found += [f"PostgreSQL process {pid}" for pid in processes.find(self._cluster)]
        return found

    def had_server(self) -> bool:
        return self._cluster is not None

    def _note_server(self) -> bool:
        for cluster in self._directory.glob("*/server/cluster"):
            self._cluster = processes.cluster_name(cluster)
        return self._cluster is not None


@contextmanager
def playing(which: str, address: str, how: str, **environment: str) -> Iterator[Play]:
    """Play a demonstration; whatever is left of it is killed at the end."""
    mark = secrets.token_hex(8)
    with server_directory() as directory:
        variables = os.environ | {MARK: mark, "TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"} | environment
        with subprocess.Popen(
            [sys.executable, "-m", "tests.demo.play", which, address, how],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            env=variables,
            start_new_session=True,
        ) as process:
            play = Play(process, directory, mark)
            try:
                yield play
            finally:
                processes.kill(_marked(mark))


def _marked(mark: str) -> list[int]:
    """Return the live processes that inherited our variable."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in entry.joinpath("environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # gone, or not ours to look at
    return found
