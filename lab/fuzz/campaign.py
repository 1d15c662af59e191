"""A run of the fuzzer: so many cases, shared out among the targets, and what became of them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from lab.fuzz.places import Places
from lab.fuzz.smaller import smaller
from lab.fuzz.target import Case, Result, Target, Verdict
from lab.journal import Journal

MOST_SHOWN = 5
"""Failures of one target that are made smaller and shown; the others are counted."""
KEEPING_SECONDS = 10.0
"""Between two lines about a target that is under way."""
ENOUGH_TO_SEE_BOTH = 60
"""Cases of a target from which on it is suspicious that all were accepted, or all refused."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that showed a fault, as small as it could be made."""

    target: str
    seed: int
    number: int
    why: str
    shown: str
    alone: bool
    """It fails without its neighbours too."""

    def __str__(self) -> str:
        beside = "" if self.alone else " (only beside its neighbours: run the whole target)"
        return (
            f"{self.target} case {self.number}: {self.why}{beside}\n    smallest: {self.shown}\n    again: "
            f"python -m lab.fuzz --target {self.target} --seed {self.seed} --case {self.number}"
        )


@dataclass(slots=True)
class Tally:
    """What became of the cases of one target."""

    target: str
    cases: int = 0
    seconds: float = 0.0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    blind: str | None = None
    """Why its oracle is not to be trusted, if so."""

    @property
    def holds(self) -> bool:
        return not self.verdicts[Verdict.FAILED] and self.blind is None

    def kept(self, seed: int) -> dict[str, Any]:
        """Return it as a line of a journal."""
        counts = {"verdicts": dict(self.verdicts), "refusals": dict(self.refusals)}
        return (
            {name: getattr(self, name) for name in ("target", "cases", "seconds", "blind")}
            | counts
            | {"seed": seed, "failures": [asdict(each) for each in self.failures]}
        )

    @staticmethod
    def restored(line: dict[str, Any]) -> Tally:
        """Return what such a line says."""
        values = {name: value for name, value in line.items() if name != "seed"}
        values["verdicts"] = Counter({Verdict(name): count for name, count in values["verdicts"].items()})
        values["refusals"] = Counter(values["refusals"])
        values["failures"] = [Failure(**each) for each in values["failures"]]
        return Tally(**values)


def numbered_case(target: Target, seed: int, number: int) -> Case:
    """Return the case of this number: the same for the same seed, whatever was run before."""
    return target.case(Random(f"{seed}/{target.name}/{number}"))


def shares(targets: Sequence[Target], cases: int) -> dict[str, int]:
    """Return how many cases each target gets: at least one, and together no fewer than were asked for."""
    whole = sum(target.share for target in targets)
    return {target.name: max(1, math.ceil(cases * target.share / whole)) for target in targets}


def run(
    targets: Sequence[Target],
    places: Places,
    journal: Journal,
    *,
    seed: int,
    cases: int,
    say: Callable[[str], Any],
) -> list[Tally]:
    """Run the targets one after another, behind what the journal has of the same run already."""
    found = []
    for target, count in zip(targets, shares(targets, cases).values(), strict=True):
        known = [each for each in journal.found if (each["seed"], each["target"]) == (seed, target.name)]
        tally = Tally.restored(known[-1]) if known else Tally(target.name)
        if tally.cases < count:
            with target.opened(places):
                run_target(target, seed, range(count), say, tally=tally, keep=journal.add)
        found.append(tally)
        say(line(tally))
    return found


def run_target(
    target: Target,
    seed: int,
    numbers: Sequence[int],
    say: Callable[[str], Any],
    *,
    shrink: bool = True,
    tally: Tally | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Tally:
    """Run the cases of these numbers; the target is open. Failures are made smaller, unless told otherwise.

    Args:
        tally: what became of the first of them already.
        keep: called with the tally from time to time, so that a run can go on with it.
    """
    tally = tally or Tally(target.name)
    before, began = tally.seconds, time.monotonic()
    said = began
    for start in range(tally.cases, len(numbers), target.batch):
        chosen = numbers[start : start + target.batch]
        cases = [numbered_case(target, seed, number) for number in chosen]
        results = target.judged(cases)
        for number, case, result in zip(chosen, cases, results, strict=True):
            _count(target, tally, seed, number, case, result, shrink=shrink)
        tally.seconds = before + time.monotonic() - began
        if time.monotonic() - said > KEEPING_SECONDS:
            said = time.monotonic()
            keep(tally.kept(seed))
            say(f"  {target.name}: {tally.cases} of {len(numbers)} cases")
    tally.blind = _blind(target, tally)
    keep(tally.kept(seed))
    return tally


def _count(
    target: Target, tally: Tally, seed: int, number: int, case: Case, result: Result, *, shrink: bool
) -> None:
    tally.cases += 1
    tally.verdicts[result.verdict] += 1
    if result.verdict is Verdict.REFUSED:
        tally.refusals[result.kind] += 1
    if result.verdict is not Verdict.FAILED:
        return
    kinds = {failure.why.partition(":")[0] for failure in tally.failures}
    if len(tally.failures) < MOST_SHOWN and result.kind not in kinds:
        tally.failures.append(_failure(target, seed, number, case, result, shrink=shrink))


def _failure(target: Target, seed: int, number: int, case: Case, result: Result, *, shrink: bool) -> Failure:
    def fails(candidate: Case) -> bool:
        again = target.judged([candidate])[0]
        return again.verdict is Verdict.FAILED and again.kind == result.kind

    alone = not shrink or fails(case)
    shown = repr(smaller(case, fails) if shrink and alone and not result.is_of_case else case)
    return Failure(
        target.name, seed, number, result.why, shown if len(shown) < 1_500 else f"{shown[:1_500]}…", alone
    )


def _blind(target: Target, tally: Tally) -> str | None:
    """Say why an oracle sees nothing, if all its cases ended alike where both ends are possible."""
    if not target.both or tally.cases < ENOUGH_TO_SEE_BOTH:
        return None
    missing = [verdict for verdict in (Verdict.ACCEPTED, Verdict.REFUSED) if not tally.verdicts[verdict]]
    return f"not one case was {missing[0]}" if missing else None


def line(tally: Tally) -> str:
    """Return one line about a target."""
    counts = "  ".join(f"{verdict} {tally.verdicts[verdict]:>6}" for verdict in Verdict)
    return (
        f"{tally.target:<16} {tally.cases:>6} cases  {counts} {tally.seconds:7.1f} s {tally.blind or ''}".rstrip()
    )


def report(tallies: Iterable[Tally], seed: int) -> dict[str, Any]:
    """Return the run for scripts."""
    found = list(tallies)
    return {
        "seed": seed,
        "cases": sum(tally.cases for tally in found),
        "holds": all(tally.holds for tally in found),
        "targets": [
            {
                "target": tally.target,
                "cases": tally.cases,
                **{str(verdict): tally.verdicts[verdict] for verdict in Verdict},
                "seconds": round(tally.seconds, 2),
                "refusals": dict(tally.refusals.most_common()),
                "failures": [str(failure) for failure in tally.failures],
                "blind": tally.blind,
            }
            for tally in found
        ],
    }
