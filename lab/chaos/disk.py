"""Small disks of memory for servers, so that a disk can be full."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SIZE_MB = 320
_BALLAST = "ballast"


def can_mount() -> bool:
    """Tell whether this process may mount a tmpfs, by looking at who it is and trying."""
    if os.geteuid() != 0:
        return False
    place = Path(tempfile.mkdtemp(prefix="fencepost-mount-"))
    try:
        with small_disk(place):
            return True
    except OSError:
        return False
    finally:
        place.rmdir()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small tmpfs on a folder for as long as the block runs.

    Raises:
        OSError: the system does not let us.
    """
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=711", "fencepost-chaos", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        raise OSError(f"mount: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: what still has a file of it open is about to end, and shall not keep us here.
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> int:
    """Take what is free; return how many bytes that were."""
    with (folder / _BALLAST).open("wb") as ballast:
        size = 0
        step = 1 << 20
        while step >= 1 << 12:
            try:
                os.posix_fallocate(ballast.fileno(), size, step)
                size += step
            except OSError:
                step >>= 1
        return size


def empty(folder: Path) -> None:
    """Give it back."""
    (folder / _BALLAST).unlink(missing_ok=True)
