"""What a long run found so far, a line of JSON each: one that was broken off goes on behind the last of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """A file to which lines are appended as they come.

    Args:
        path: of the file; None: nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.found: list[dict[str, Any]] = []
        """The lines that were there before."""
        if path is not None and path.exists():
            whole, _, _ = path.read_bytes().rpartition(b"\n")
            path.write_bytes(whole + b"\n" if whole else b"")  # the last may have been broken off in its midst
            self.found = [json.loads(line) for line in whole.splitlines() if line]

    def add(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
