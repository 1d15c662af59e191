"""The machine that a report was made on: what its figures depend on, and nothing that names its owner."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path


def described() -> list[tuple[str, str]]:
    """Return names and values; what cannot be found out is left out."""
    found = [
        ("date", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("CPU", _first("/proc/cpuinfo", r"^model name\s*:\s*(.+)$")),
        ("cores", _cores()),
        ("memory", _memory()),
        ("data directory on", _file_system(Path(tempfile.gettempdir()).resolve())),
        ("system", _system()),
        ("kernel", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("event loop", "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"),
        ("load before", _load()),
    ]
    return [(name, value) for name, value in found if value]


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    count = os.cpu_count() or 0
    return f"{usable} of {count}" if usable not in (None, count) else str(count)


def _memory() -> str:
    kibibytes = _first("/proc/meminfo", r"^MemTotal:\s*(\d+) kB$")
    return f"{int(kibibytes) / 2**20:.1f} GiB" if kibibytes else ""


def _file_system(directory: Path) -> str:
    """Return what kind of file system holds a directory: on one in memory, fsync costs nothing."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8", "replace").splitlines()]
    except OSError:
        return ""
    holding = [(len(place), kind) for _, place, kind, *_ in mounts if directory.is_relative_to(place)]
    return max(holding)[1] if holding else ""


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _load() -> str:
    try:
        return f"{os.getloadavg()[0]:.2f} (average of a minute)"
    except OSError:
        return ""


def _first(path: str, pattern: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text("utf-8", "replace"), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""
