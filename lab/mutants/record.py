"""What became of mutants, kept in a file: a run that is broken off goes on where it stopped.

One JSON object a line, appended as soon as a mutant is decided; the last line of a mutant counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from lab.journal import Journal
from lab.mutants.mutant import Mutant, mutated
from lab.mutants.trial import Verdict
from lab.mutants.warm import ROOT


class Record:
    """Verdicts of earlier runs, and the file in which new ones are kept; None keeps nothing."""

    def __init__(self, file: Path | None) -> None:
        self._journal = Journal(file, "name", "text", "state")
        self._lines = {line["name"]: line for line in self._journal.found}

    def keep(self, verdict: Verdict) -> None:
        """Append what became of a mutant."""
        line = {
            "name": verdict.mutant.name,
            "text": _digest(verdict.mutant),
            "state": verdict.state,
            "by": verdict.by,
            "why": verdict.why[:300],
            "seconds": round(verdict.seconds, 1),
        }
        self._lines[verdict.mutant.name] = line
        self._journal.add(line)

    def decided(self, mutants: Sequence[Mutant]) -> list[Verdict]:
        """Return what is known of those that were noticed, or survived as expected, in the text of today.

        Whoever survived is tried again, since a test may have come since.
        """
        return [
            Verdict(each, line["state"], line["by"], line["why"], line["seconds"])
            for each in mutants
            if (line := self._lines.get(each.name))
            and line["text"] == _digest(each)
            and (line["state"] == "killed" or (line["state"] == "survived" and each.equivalent))
        ]

    def noticed_before(self, mutant: Mutant) -> str:
        """Return the test that noticed this mutant once, to be asked first; empty where none did."""
        line = self._lines.get(mutant.name, {"by": ""})
        by: str = line["by"]
        return by if (ROOT / by.partition("::")[0]).is_file() else ""


def _digest(mutant: Mutant) -> str:
    """Say which text was tried: who changes a file has its mutants tried again."""
    return hashlib.sha256(mutated(mutant, ROOT / "src").encode()).hexdigest()[:16]
