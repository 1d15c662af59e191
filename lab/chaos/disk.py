"""Small disks of memory for servers, so that a disk can be full."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SIZE_MB = 320
"""Room for a server and a short run; a longer one says more, for the history that the triggers write."""
_TRIES = 200


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
def small_disk(folder: Path, megabytes: int = SIZE_MB) -> Iterator[Path]:
    """Mount a small tmpfs on a folder for as long as the block runs.

    Raises:
        OSError: the system does not let us.
    """
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=711", "fencepost-chaos", folder],
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
    """Leave nothing free, by making the disk as small as what is on it; return how many bytes those are.

    Raises:
        OSError: what is on it grows faster than it can be looked at.
    """
    for _ in range(_TRIES):
        found = os.statvfs(folder)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        # (A disk cannot become smaller than what is on it, which may have grown meanwhile.)
        if _resized(folder, f"{used // 1024}k"):
            return used
    raise OSError(f"{folder} does not hold still")


def empty(folder: Path, megabytes: int = SIZE_MB) -> None:
    """Give it its size again."""
    if not _resized(folder, f"{megabytes}m"):
        raise OSError(f"{folder} does not get its size again")


def _resized(folder: Path, size: str) -> bool:
    argv = ["mount", "-o", f"remount,size={size}", str(folder)]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0
