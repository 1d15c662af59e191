"""What a long run found so far, a line of JSON each: one that was broken off goes on behind the last of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lab.ending import Refused


class Journal:
    """A file to which lines are appended as they come.

    Args:
        path: of the file; None: nothing is kept.
        fields: what each line has, by which it is known as one of this command's; the first comes first in it.

    Raises:
        Refused: it cannot be written, or is another file: nothing of it was changed.
    """

    def __init__(self, path: Path | None, *fields: str) -> None:
        self._path, self._fields = path, fields
        self.found: list[dict[str, Any]] = []
        """The lines that were there before."""
        if path is None:
            return
        try:
            with path.open("ab"):
                pass  # it can be written
            text = path.read_bytes()
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}: nothing could be kept there") from None
        whole, newline, rest = text.rpartition(b"\n")
        self.found = [self._read(line, number) for number, line in enumerate(whole.splitlines(), 1) if line]
        if not self._is_torn(rest):
            self.found.append(self._read(rest, len(self.found) + 1))
            self._append("\n")
        elif rest:
            os.truncate(path, len(whole) + len(newline))

    def add(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            self._append(json.dumps(line) + "\n")

    def _append(self, text: str) -> None:
        assert self._path is not None  # noqa: S101 - for the type checker: whoever calls it has a file
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)

    def _is_torn(self, rest: bytes) -> bool:
        """Whether what stands behind the last newline is nothing, or a line of ours that was broken off."""
        start = f'{{"{self._fields[0]}": '.encode()
        if not rest.startswith(start[: len(rest)]):
            return False
        try:
            json.loads(rest)
        except ValueError:
            return True
        return False

    def _read(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(field in found for field in self._fields):
            raise Refused(f"{self._path}, line {number}: none of this command's: give another file with --into")
        return found
