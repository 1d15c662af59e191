"""What runs came to, kept as one JSON line each: who reads a figure can see from which runs it is made."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from lab.report.parts import Figures

ROOT = Path(__file__).parents[2]
LOG = ROOT / "docs" / "reliability-runs.jsonl"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one part.

    Args:
        part: its name.
        command: what repeats it, without the interpreter's path.
        seed: what it drew its chances from; None where there is no chance in it.
        commit: of the checkout; with ``+`` where that was changed.
        date: of its end, in UTC.
        machine: processor, cores, memory, system and Python.
        seconds: how long it took.
        held: whether it found nothing.
        figures: what it counted.
        remark: what a reader has to know besides, such as what a run that found something had found.
    """

    part: str
    command: str
    seed: int | None
    commit: str
    date: str
    machine: str
    seconds: int
    held: bool
    figures: Figures
    remark: str = ""


def read(log: Path = LOG) -> list[Run]:
    """Return the runs that were kept, in their order."""
    if not log.exists():
        return []
    return [Run(**json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]


def keep(run: Run, log: Path = LOG) -> None:
    """Append a run."""
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")


def machine() -> str:
    """Say what this machine is."""
    model = platform.processor() or platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = next((line.split("=", 1)[1].strip('"') for line in _lines("/etc/os-release") if "PRETTY" in line), "")
    system = f"{system or platform.system()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {system}"


def commit() -> str:
    """Return the commit that is checked out, with ``+`` where files differ from it."""
    short = _git("rev-parse", "--short", "HEAD")
    return short + ("+" if _git("status", "--porcelain", "--", "src", "lab", "tests") else "")


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def _git(*arguments: Sequence[str] | str) -> str:
    done = subprocess.run(["git", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
