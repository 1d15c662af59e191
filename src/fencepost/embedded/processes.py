"""Finding the processes of one PostgreSQL server by the cluster name in their titles.

``cluster_name`` is part of the command line of the postmaster and of the title of each of its children, and
command lines can be read without privileges. (The working directory would be the more obvious mark, but root
in a container usually lacks the capability to read it of another user's process.) A zombie has no command
line, so it never counts as alive here.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc")
_NAMED = re.compile(r"(^postgres: |cluster_name=)fencepost-[0-9a-f]+-[0-9a-f]+\b")


def cluster_name(directory: Path) -> str:
    """A name for the cluster in ``directory`` that no other on this machine has.

    It comes from the directory itself, so a moved cluster keeps it and a copied one does not share it.
    """
    found = directory.stat()
    return f"fencepost-{found.st_dev:x}-{found.st_ino:x}"


def find(name: str) -> list[int]:
    """The live PostgreSQL processes whose command line names the cluster, in ascending order.

    That includes a ``pg_ctl`` that is just starting the server, and the shell through which it does so.
    """
    found = [(pid, line) for pid, line in _command_lines() if name in line]
    return sorted(pid for pid, line in found if is_postgres(line) or _program(line) in ("pg_ctl", "sh"))


def is_postgres(line: str) -> bool:
    """Whether a command line is that of a postmaster or of one of its children."""
    return line.startswith("postgres:") or _program(line) in ("postgres", "postmaster")


def command_line(pid: int) -> str | None:
    """The command line of a live process; None when there is none, or only a zombie."""
    return next((line for found, line in _command_lines(pid) if found == pid), None)


def kill(pids: list[int]) -> None:
    """SIGKILL each; those that are gone already are fine."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until the condition holds; False when it still does not after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def has_cluster_name(line: str) -> bool:
    """Whether a command line has a name from :func:`cluster_name`, whichever."""
    return _NAMED.search(line) is not None


def _program(line: str) -> str:
    return os.path.basename(line.split(" ", 1)[0])


def _command_lines(only: int | None = None) -> list[tuple[int, str]]:
    if not _PROC.joinpath("self", "cmdline").exists():
        return _command_lines_from_ps()
    names = [str(only)] if only is not None else [name for name in os.listdir(_PROC) if name.isdigit()]
    lines = []
    for name in names:
        try:
            raw = _PROC.joinpath(name, "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if raw:
            lines.append((int(name), raw.replace(b"\0", b" ").decode(errors="replace")))
    return lines


def _command_lines_from_ps() -> list[tuple[int, str]]:
    """For systems without /proc, such as macOS."""
    listing = subprocess.run(
        ["ps", "-axww", "-o", "pid=,stat=,command="],  # noqa: S607  # wherever the system keeps it
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
    )
    rows = [line.split(None, 2) for line in listing.stdout.splitlines()]
    return [(int(row[0]), row[2]) for row in rows if len(row) == 3 and not row[1].startswith("Z")]
