"""The lines of a history, read and checked for shape."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.checker.fields import misfits

NEEDED: dict[str, tuple[str, ...]] = {
    "campaign": ("lease", "publish_timeout", "poll", "grace", "max_attempts"),
    "phase": ("name",),
    "clock": ("database",),
    "start": ("of", "pid", "role"),
    "ready": (),
    "exit": ("of", "pid", "code"),
    "fault": ("fault_id", "fault", "target"),
    "fault_end": ("fault_id",),
    "operator": ("action",),
    "starved": ("of", "since", "seconds"),
    "enqueue": ("message_id", "queue", "ordering_key", "payload", "headers"),
    "commit": ("message_ids",),
    "rollback": ("message_ids",),
    "commit_unknown": ("message_ids",),
    "refused": ("message_id", "why"),
    "publish_start": ("message_id", "id", "queue", "attempt", "token", "owner", "payload", "headers"),
    "publish_end": ("message_id", "id", "token", "result"),
    "accepted": ("message_id", "token", "payload"),
    "inbox": ("consumer", "message_id", "token", "result"),
    "stale": ("id", "token", "operation", "reported", "before", "after"),
    "sample": ("open", "asked"),
    "job_enqueue": ("job_id", "task", "recovery"),
    "job_commit": ("job_ids",),
    "job_rollback": ("job_ids",),
    "job_commit_unknown": ("job_ids",),
    "job_start": ("job_id", "id", "attempt", "fence", "owner", "task"),
    "job_end": ("job_id", "id", "fence", "result"),
}
"""The kinds of lines, and the fields that each must have besides ``at``, ``process`` and ``kind``."""


class HistoryError(ValueError):
    """The history is not what FORMAT.md says: nothing can be judged by it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line; ``at`` in nanoseconds of the machine's one monotonic clock."""

    at: int
    process: str
    kind: str
    fields: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)


class History:
    """All lines of a run, in the order of their instants, by kind."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._by_kind: dict[str, list[Line]] = defaultdict(list)
        # The sort is stable: lines of one process keep their order.
        for line in sorted(lines, key=lambda each: each.at):
            self._by_kind[line.kind].append(line)
        if len(self._by_kind["campaign"]) != 1:
            raise HistoryError(f"{len(self._by_kind['campaign'])} campaign lines, and there must be one")

    def of(self, kind: str) -> Sequence[Line]:
        """Return the lines of a kind."""
        if kind not in NEEDED:
            raise KeyError(kind)
        return self._by_kind[kind]

    @property
    def campaign(self) -> Line:
        return self._by_kind["campaign"][0]

    def phase(self, name: str) -> int | None:
        """Return when a phase began."""
        return next((line.at for line in self.of("phase") if line["name"] == name), None)

    @property
    def last_at(self) -> int:
        return max(lines[-1].at for lines in self._by_kind.values() if lines)

    def __len__(self) -> int:
        return sum(len(lines) for lines in self._by_kind.values())


def read_lines(folder: Path) -> list[Line]:
    """Read every file of a run.

    Raises:
        HistoryError: a line is not one that FORMAT.md describes.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise HistoryError(f"no history in {folder}: there is no *.jsonl file")
    return [line for file in files for line in _lines_of(file)]


def _lines_of(file: Path) -> Iterator[Line]:
    texts = file.read_bytes().split(b"\n")
    for number, text in enumerate(texts, 1):
        if number == len(texts) or not text.strip():
            # What follows the last line end is empty, or a line that a kill has cut short.
            continue
        try:
            yield parsed(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise HistoryError(f"{file.name}, line {number}: {error}") from error


def parsed(found: Any) -> Line:
    """Return a line that has all it needs, each field of its type.

    Raises:
        HistoryError: it has not.
    """
    if not isinstance(found, dict):
        raise HistoryError("not an object")
    missing = [name for name in ("at", "process", "kind") if name not in found]
    kind = found.get("kind")
    if not missing and kind not in NEEDED:
        raise HistoryError(f"unknown kind {kind!r}")
    missing += [name for name in NEEDED.get(str(kind), ()) if name not in found]
    if missing:
        raise HistoryError(f"{kind} without {', '.join(missing)}")
    if wrong := misfits(str(kind), found):
        raise HistoryError(f"{kind}: {'; '.join(wrong)}")
    rest = {name: value for name, value in found.items() if name not in ("at", "process", "kind")}
    return Line(found["at"], found["process"], str(kind), rest)
