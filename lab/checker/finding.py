"""What the judgement of one guarantee comes to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Finding:
    """What was looked at, and what was wrong with it.

    Args:
        name: of the guarantee, as in the specification.
        rule: it, in a few words.
        judged: what was looked at that could have been a violation; without any, nothing is known.
        seen: other counts that say how much the verdict is worth.
    """

    name: str
    rule: str
    judged: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.violations:
            return "violated"
        return "held" if self.judged else "not seen"

    def violated(self, text: str) -> None:
        self.violations.append(text)
