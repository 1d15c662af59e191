"""All judgements of a run, and how they are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.checker.evidence import Evidence
from lab.checker.finding import Finding
from lab.checker.guarantees.attempts import i3
from lab.checker.guarantees.delivery import i1, i6, i11
from lab.checker.guarantees.duplicates import i15
from lab.checker.guarantees.fence import i2, i7, i9, i12, table
from lab.checker.guarantees.inbox import i8
from lab.checker.guarantees.ledger import ledger
from lab.checker.guarantees.neighbours import i13
from lab.checker.guarantees.order import i4, i5
from lab.checker.guarantees.purge import i16
from lab.checker.guarantees.takeover import i10
from lab.checker.guarantees.transactions import i14
from lab.checker.jobs import JOB_RULES

RULES: Sequence[Callable[[Evidence], Finding]] = (
    *(table, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13, i14, i15, i16, ledger),
    *JOB_RULES,
)
MAX_SHOWN = 20
"""Violations of a guarantee that are printed; all are counted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run comes to."""

    findings: Sequence[Finding]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is violated; what was not seen is not held either, and is said."""
        return not self.is_empty and not any(finding.violations for finding in self.findings)

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to be judged at all: such a run is not clean."""
        return not any(finding.judged or finding.violations for finding in self.findings)

    def violated(self) -> set[str]:
        """Return the names of the guarantees that are violated."""
        return {finding.name for finding in self.findings if finding.violations}

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    def as_json(self) -> dict[str, Any]:
        return {
            "clean": self.is_clean,
            "guarantees": [
                {
                    "name": finding.name,
                    "rule": finding.rule,
                    "verdict": finding.verdict,
                    "judged": finding.judged,
                    "seen": dict(finding.seen),
                    "violations": finding.violations,
                }
                for finding in self.findings
            ],
        }

    def as_text(self) -> str:
        lines = [text for finding in self.findings for text in _told(finding)]
        count = sum(len(finding.violations) for finding in self.findings)
        unseen = [finding.name for finding in self.findings if finding.verdict == "not seen"]
        lines.append("")
        lines.append(f"{count} violations" if count else "nothing was judged" if self.is_empty else "no violation")
        if unseen:
            lines.append(f"not seen, so nothing is said of them: {', '.join(unseen)}")
        return "\n".join(lines)


def judge(evidence: Evidence) -> Verdict:
    """Judge every guarantee."""
    return Verdict([rule(evidence) for rule in RULES])


def _told(finding: Finding) -> list[str]:
    lines = [f"{finding.name:<6} {finding.verdict:<9} {finding.judged:>8}  {finding.rule}"]
    counts = [f"{count} {name}" for name, count in sorted(finding.seen.items()) if count]
    separate = [each for each in counts if "again: " in each]
    shared = ", ".join(each for each in counts if each not in separate)
    lines += [f"{'':27}{text}" for text in ([shared] if shared else []) + separate]
    lines += [f"{'':17}! {violation}" for violation in finding.violations[:MAX_SHOWN]]
    if len(finding.violations) > MAX_SHOWN:
        lines.append(f"{'':17}! and {len(finding.violations) - MAX_SHOWN} more")
    return lines
