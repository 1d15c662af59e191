"""Every scenario, every boundary: the whole of it, or every nth point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import psycopg

from fencepost import Outbox
from lab.crashes import callers, dispatching, producers, working
from lab.crashes.judge import Course, course_of, judged
from lab.crashes.operations import operations
from lab.crashes.points import Point
from lab.crashes.scenario import Scenario
from lab.crashes.world import World
from lab.journal import Journal

SCENARIOS: list[Scenario] = [
    each for part in (producers, dispatching, working, callers) for each in part.SCENARIOS.found
]


@dataclass
class Campaign:
    """What was cut, and what did not hold."""

    scenarios: int = 0
    statements: int = 0
    points: int = 0
    cut: int = 0
    problems: list[str] = field(default_factory=list)
    never_run: list[str] = field(default_factory=list)


@contextmanager
def world_at(url: str) -> Iterator[World]:
    """Put the tables into an empty database."""
    with psycopg.connect(url) as connection:
        Outbox().migrate(connection)
    world = World(url)
    try:
        yield world
    finally:
        world.close()


def courses(world: World) -> list[Course]:
    """Run every scenario undisturbed."""
    return [course_of(world, each) for each in SCENARIOS]


def never_run(found: list[Course]) -> list[str]:
    """Return the operations that no scenario runs."""
    called = {each.scenario.operation for each in found}
    codes = {code for each in found for code in each.codes}
    return sorted(
        name for name, function in operations().items() if name not in called and function.__code__ not in codes
    )


def points_of(found: list[Course]) -> list[tuple[Course, Point]]:
    """Return every boundary of every scenario with every way to recover, in a fixed order."""
    return [(course, point) for course in found for point in course.points]


def campaign(
    world: World,
    found: list[Course],
    journal: Journal,
    *,
    every: int = 1,
    offset: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> Campaign:
    """Cut at every nth point that the journal does not have yet, recover, judge."""
    chosen = points_of(found)
    result = Campaign(len(found), sum(len(each.names) for each in found), len(chosen), never_run=never_run(found))
    known = {line["point"]: line["problems"] for line in journal.found if line["part"] == "store"}
    last: Scenario | None = None
    for course, point in islice(chosen, offset % every, None, every):
        if course.scenario is not last:
            last = course.scenario
            tell(f"{last}: {len(course.names)} statements")
        name = f"{course.scenario}, {point.told(course.names)}"
        problems = known.get(name)
        if problems is None:
            problems = judged(world, course, point)
            journal.add({"part": "store", "point": name, "problems": problems})
        result.cut += 1
        for problem in problems:
            result.problems.append(f"{name}: {problem}")
            tell(f"  FAILED {result.problems[-1]}")
    return result
