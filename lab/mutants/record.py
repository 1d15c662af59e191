"""What became of mutants, kept in a file: a run that is broken off goes on where it stopped.

One JSON object a line, appended as soon as a mutant is decided; the last line of a mutant counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.mutants.mutant import Mutant, mutated
from lab.mutants.trial import Verdict
from lab.mutants.warm import ROOT


@dataclass(frozen=True, slots=True)
class Record:
    """Verdicts of earlier runs, and the file in which new ones are kept; None keeps nothing."""

    file: Path | None

    def keep(self, verdict: Verdict) -> None:
        """Append what became of a mutant."""
        if self.file is None:
            return
        line = {
            "name": verdict.mutant.name,
            "text": _digest(verdict.mutant),
            "state": verdict.state,
            "by": verdict.by,
            "why": verdict.why[:300],
            "seconds": round(verdict.seconds, 1),
        }
        with self.file.open("a", encoding="utf-8") as kept:
            kept.write(json.dumps(line) + "\n")

    def decided(self, mutants: Sequence[Mutant]) -> list[Verdict]:
        """Return what is known of those that were noticed, or survived as expected, in the text of today.

        Whoever survived is tried again, since a test may have come since.
        """
        lines = self._lines()
        return [
            Verdict(each, line["state"], line["by"], line["why"], line["seconds"])
            for each in mutants
            if (line := lines.get(each.name))
            and line["text"] == _digest(each)
            and (line["state"] == "killed" or (line["state"] == "survived" and each.equivalent))
        ]

    def noticed_before(self, mutant: Mutant) -> str:
        """Return the test that noticed this mutant once, to be asked first; empty where none did."""
        line = self._lines().get(mutant.name, {"by": ""})
        by: str = line["by"]
        return by if (ROOT / by.partition("::")[0]).is_file() else ""

    def _lines(self) -> dict[str, dict[str, Any]]:
        if self.file is None or not self.file.exists():
            return {}
        lines = map(json.loads, self.file.read_text(encoding="utf-8").splitlines())
        return {line["name"]: line for line in lines}


def _digest(mutant: Mutant) -> str:
    """Say which text was tried: who changes a file has its mutants tried again."""
    return hashlib.sha256(mutated(mutant, ROOT / "src").encode()).hexdigest()[:16]
