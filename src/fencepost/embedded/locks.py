"""Advisory file locks (flock): they vanish with their process, whatever ends it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fencepost.embedded.processes import wait_until
from fencepost.errors import EmbeddedError

# Long enough for another process to create a data directory and recover it on a slow disk.
WAIT_SECONDS = 180.0


def open_lock_file(path: Path) -> int:
    """Open or create a lock file and return its descriptor, which programs we start do not inherit."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def try_shared(descriptor: int) -> bool:
    """Take the file's shared lock if that is possible at once."""
    return _try(descriptor, fcntl.LOCK_SH)


def try_exclusive(descriptor: int) -> bool:
    """Take the file's exclusive lock if that is possible at once."""
    return _try(descriptor, fcntl.LOCK_EX)


def unlock_and_close(descriptor: int) -> None:
    """Let go of the lock, also when a forked child still holds a copy of the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def exclusive(path: Path, *, seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the file's exclusive lock for the length of the block.

    Raises:
        EmbeddedError: another process held it for ``seconds``.
    """
    descriptor = open_lock_file(path)
    try:
        if not wait_until(lambda: try_exclusive(descriptor), seconds):
            raise EmbeddedError(
                f"another process has been starting or stopping the server in {path.parent} for "
                f"{seconds:.0f} s: find who holds {path} (fuser, lsof) and end it"
            )
        yield
    finally:
        unlock_and_close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
