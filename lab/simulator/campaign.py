"""Many schedules, one after the other, and what is told of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.simulator import seams
from lab.simulator.kinds import simulate
from lab.simulator.plan import plan_of
from lab.simulator.run import Result
from lab.simulator.schedule import Schedule

COLLECT_EVERY = 50
"""Schedules between two collections of rubbish."""


@dataclass(slots=True)
class Totals:
    """What many schedules came to."""

    schedules: int = 0
    seconds: float = 0.0
    """Virtual ones."""
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """What was started, and what came of it."""
    faults: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)
    """The first violation of each schedule that has any, by its seed."""

    def add(self, result: Result) -> None:
        self.schedules += 1
        self.seconds += result.seconds
        self.steps += result.steps
        self.counts.update(result.counts)
        self.faults.update(result.faults)
        self.duplicates.update(result.duplicates)
        if result.violations:
            self.failed[result.plan.seed] = result.violations[0]

    def __iadd__(self, other: Totals) -> Totals:
        self.schedules += other.schedules
        self.seconds += other.seconds
        self.steps += other.steps
        self.counts.update(other.counts)
        self.faults.update(other.faults)
        self.duplicates.update(other.duplicates)
        self.cpu_seconds += other.cpu_seconds
        self.failed |= other.failed
        return self

    @property
    def rate(self) -> float:
        """Schedules a second of a processor's time."""
        return self.schedules / self.cpu_seconds if self.cpu_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "schedules": self.schedules,
            "virtual_hours": self.seconds / 3600,
            "steps": self.steps,
            "publishes": self.counts["publishes"],
            "accepted": self.counts["accepted"],
            "counts": dict(self.counts),
            "faults": dict(sorted(self.faults.items())),
            "duplicates": dict(sorted(self.duplicates.items())),
            "cpu_seconds": self.cpu_seconds,
            "schedules_a_second": self.rate,
            "failed": {str(seed): what for seed, what in self.failed.items()},
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Totals:
        """Read what `as_dict` has written."""
        return cls(
            **{name: record[name] for name in ("schedules", "steps", "cpu_seconds")},
            counts=Counter(record["counts"]),
            seconds=record["virtual_hours"] * 3600,
            faults=Counter(record["faults"]),
            duplicates=Counter(record["duplicates"]),
            failed={int(seed): what for seed, what in record["failed"].items()},
        )


def explore(
    seeds: Iterable[int],
    *,
    is_enough: Callable[[Totals], bool] = lambda _: False,
    make: Callable[[int], Schedule] = plan_of,
) -> Totals:
    """Simulate a schedule for each seed until it is enough."""
    totals = Totals()
    began = time.process_time()
    with seams.simulated():
        for seed in seeds:
            totals.add(simulate(make(seed)))
            if totals.schedules % COLLECT_EVERY == 0:
                seams.collect()
            if is_enough(totals):
                break
    totals.cpu_seconds = time.process_time() - began
    return totals
