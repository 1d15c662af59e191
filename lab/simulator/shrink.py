"""Makes a failing schedule short: leaves out faults, messages or jobs, and processes while it still fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from lab.simulator.schedule import Schedule

P = TypeVar("P", bound=Schedule)

MOST_TRIES = 400


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is left out of the schedule of a seed, so that the command line can say it again."""

    faults: frozenset[int] = frozenset()
    messages: frozenset[int] = frozenset()
    processes: int = 0

    def of(self, plan: P) -> P:
        return plan.without(self.faults, self.messages, range(self.processes))

    def __str__(self) -> str:
        parts = [f"f{each}" for each in sorted(self.faults)] + [f"m{each}" for each in sorted(self.messages)]
        return ",".join(parts + [f"p{self.processes}"] * (self.processes > 0))

    @classmethod
    def read(cls, text: str) -> LeftOut:
        """Read what `str` has written.

        Raises:
            ValueError: it was not written by that.
        """
        parts = [each for each in text.split(",") if each]
        if wrong := [each for each in parts if re.fullmatch(r"[fmp]\d+", each) is None]:
            raise ValueError(
                f"{wrong[0]!r} is nothing that can be left out: such as f0,m2,p1, as a failure prints it"
            )
        numbers = {kind: [int(each[1:]) for each in parts if each[0] == kind] for kind in "fmp"}
        return cls(frozenset(numbers["f"]), frozenset(numbers["m"]), sum(numbers["p"]))


def shrunk(plan: P, fails: Callable[[P], bool]) -> LeftOut:
    """Return what can be left out of a plan that fails, so that it still does."""
    left_out = LeftOut()
    tries = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(plan, left_out):
            tries += 1
            if tries > MOST_TRIES:
                return left_out
            if fails(candidate.of(plan)):
                left_out, is_smaller = candidate, True
                break
    return left_out


def _smaller(plan: Schedule, left_out: LeftOut) -> Iterator[LeftOut]:
    """Yield what leaves out more: halves first, then one thing after the other."""
    faults = [each for each in range(len(plan.faults)) if each not in left_out.faults]
    messages = [each for each in plan.numbers if each not in left_out.messages]
    for some in _parts(faults):
        yield LeftOut(left_out.faults | set(some), left_out.messages, left_out.processes)
    if plan.processes - left_out.processes > 1:
        yield LeftOut(left_out.faults, left_out.messages, left_out.processes + 1)
    for some in _parts(messages):
        if len(some) < len(messages):
            yield LeftOut(left_out.faults, left_out.messages | set(some), left_out.processes)


def _parts(things: list[int]) -> Iterator[list[int]]:
    size = len(things)
    while size >= 1:
        for start in range(0, len(things), size):
            yield things[start : start + size]
        size //= 2
