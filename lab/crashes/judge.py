"""Cuts a scenario at each of its boundaries, lets it recover, and says what did not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from fencepost.drivers.faults import Fault, fault_of
from fencepost.errors import SchemaError
from lab.crashes.points import Point, Way
from lab.crashes.scenario import Make, Repeat, Scenario
from lab.crashes.sessions import AsyncSession, Session
from lab.crashes.world import MAX_ATTEMPTS, Row, Snapshot, World

CLOSED = {"outbox": ("done", "dead"), "outbox_job": ("done", "failed")}
TOKENS = {"outbox": "lease_version", "outbox_job": "fence"}


@dataclass
class Course:
    """A scenario's undisturbed run: its statements, what stood after each boundary, and its answer."""

    scenario: Scenario
    names: list[str]
    states: list[Snapshot]
    answer: Any
    codes: set[CodeType] = field(repr=False)

    @property
    def points(self) -> Iterator[Point]:
        """Every boundary, with every way to recover."""
        for takeover in (False,) if self.scenario.apart else (False, True):
            for number in range(1, len(self.names) + 1):
                yield from (Point(number, way, takeover) for way in Way)


def course_of(world: World, scenario: Scenario) -> Course:
    """Run a scenario undisturbed."""
    world.empty()
    make = scenario.prepare(world)
    before = world.look()
    session = Session(world, looks=scenario.alone)
    answer = session.attempt(make, alone=scenario.alone)
    after = world.look()
    states = [before, *session.states] if scenario.alone else [before] * len(session.names) + [after]
    return Course(scenario, session.names, states, _plain(answer), session.codes)


def judged(world: World, course: Course, point: Point) -> list[str]:
    """Cut at a point, recover, and return what did not hold."""
    try:
        return _Trial(world, course, point).problems()
    except Exception as error:  # noqa: BLE001 - what fails is what did not hold, and the others go on
        return [f"{type(error).__name__}: {error}"]


class _Trial:
    def __init__(self, world: World, course: Course, point: Point) -> None:
        self._world, self._course, self._point = world, course, point
        self._scenario = course.scenario
        self._found: list[str] = []

    def problems(self) -> list[str]:
        self._world.empty()
        make = self._scenario.prepare(self._world)
        before = self._world.look()
        self._cut(make)
        after = self._world.look()
        stands = [self._stands(after, place) for place in self._point.places]
        if all(stands):
            self._found += stands[-1]
        if count := self._world.locks():
            self._found.append(f"{count} locks are left")
        self._guarded(before, after)
        is_there = after.plain != before.plain
        if self._point.takeover:
            self._take_over(after, lambda: self._late(make, after))
            self._late(make)
        else:
            now = self._repeat(make, after, is_there=is_there)
            if not self._scenario.apart:
                self._take_over(now)
        return self._found

    def _stands(self, after: Snapshot, place: int) -> list[str]:
        return _unlike(after, self._course.states[place], "what stands after the cut")

    def _cut(self, make: Make) -> None:
        if self._point.way.is_sync:
            session: Session | AsyncSession = Session(self._world, self._point)
        else:
            session = AsyncSession.at(self._point, self._world)
        try:
            session.attempt(make, alone=self._scenario.alone)
        except asyncio.CancelledError:
            pass  # as it must be where the task was cancelled
        except Exception as error:  # noqa: BLE001 - which one it is decides whether a worker repeats
            if fault_of(error) is not Fault.CONNECTION:
                self._found.append(f"a cut connection came out as {type(error).__name__}: {error}")
        else:
            self._found.append("the cut was not noticed")
        if session.names != self._course.names[: self._point.number]:
            self._found.append(f"it was at another statement: {session.names}")

    def _repeat(self, make: Make, after: Snapshot, *, is_there: bool) -> Snapshot:
        """Repeat as whoever asked does; where nothing was committed, all is as if there had been no cut."""
        repeat = self._scenario.repeat
        if is_there and repeat is Repeat.ONCE:
            return after
        try:
            answer = _plain(Session(self._world).attempt(make, alone=self._scenario.alone))
        except SchemaError as error:
            if not (is_there and self._scenario.apart):
                raise
            answer = str(error)  # it is there already
        now = self._world.look()
        self._guarded(after, now)
        if not is_there or repeat is not Repeat.ANEW:
            self._found += _unlike(now, self._course.states[-1], "what stands after the repeat")
        if (not is_there or repeat is Repeat.SAME) and answer != self._course.answer:
            self._found.append(f"the repeat answers {answer}, not {self._course.answer}")
        return now

    def _take_over(self, before: Snapshot, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._found += self._world.take_over(meanwhile, strands=self._scenario.strands)
        self._guarded(before, self._world.look(), operator=False)

    def _late(self, make: Make, cut: Snapshot | None = None) -> None:
        """The one that was cut off comes back, and changes nothing of what is no longer its own.

        Args:
            cut: what stood when it was cut off. Rows that still have their token are still its own.
        """
        if not self._scenario.fenced:
            return
        before = self._world.look()
        Session(self._world).attempt(make, alone=self._scenario.alone)
        after = self._world.look()
        for table, token in TOKENS.items():
            was = {} if cut is None else cut.by_id(table)
            now = after.by_id(table)
            for row_id, row in before.by_id(table).items():
                is_its_own = row_id in was and was[row_id][token] == row[token]
                if not is_its_own and now.get(row_id) != row:
                    self._found.append(f"a stale holder has changed {table} {row_id}")
            if cut is None and len(now) > len(before.rows[table]):
                self._found.append(f"a stale holder has added to {table}")

    def _guarded(self, before: Snapshot, after: Snapshot, *, operator: bool | None = None) -> None:
        may = self._scenario.operator if operator is None else operator
        for table in CLOSED:
            now = after.by_id(table)
            for row_id, row in before.by_id(table).items():
                self._found += _broken(table, row, now.get(row_id), operator=may, removes=self._scenario.removes)


def _broken(table: str, row: Row, now: Row | None, *, operator: bool, removes: bool) -> list[str]:
    """Return which guarantee a row's change breaks."""
    who = f"{table} {row['id']}"
    if now is None:
        return [] if removes and row["status"] == "done" else [f"{who} ({row['status']}) is gone"]
    problems = []
    if now[TOKENS[table]] < row[TOKENS[table]]:
        problems.append(f"the token of {who} fell from {row[TOKENS[table]]} to {now[TOKENS[table]]}")
    if not 0 <= now["attempts"] <= MAX_ATTEMPTS:
        problems.append(f"{who} has {now['attempts']} attempts")
    is_final = row["status"] == "done" or (row["status"] in CLOSED[table] and not operator)
    if is_final and (now["status"], now["outcome"]) != (row["status"], row["outcome"]):
        problems.append(f"{who} was {row['status']} ({row['outcome']}) and is {now['status']}")
    return problems


def _unlike(found: Snapshot, expected: Snapshot, what: str) -> list[str]:
    return [
        f"{what}: {table} has {_differences(found.plain[table], rows)}"
        for table, rows in expected.plain.items()
        if rows != found.plain[table]
    ]


def _differences(found: list[Row], expected: list[Row]) -> str:
    if len(found) != len(expected):
        return f"{len(found)} rows, not {len(expected)}"
    return "; ".join(
        f"{name} {one[name]!r}, not {other[name]!r}"
        for one, other in zip(found, expected, strict=True)
        for name in other
        if one.get(name) != other[name]
    )


def _plain(answer: Any) -> Any:
    """Return how much an answer says, without ids that differ from run to run."""
    if isinstance(answer, list | tuple | frozenset | set):
        return (
            type(answer).__name__,
            len(answer),
            *[_plain(each) for each in answer if not isinstance(each, int)],
        )
    if hasattr(answer, "__dataclass_fields__"):
        return (type(answer).__name__, *[_plain(getattr(answer, name)) for name in answer.__dataclass_fields__])
    if isinstance(answer, bool) or answer is None:
        return answer
    return type(answer).__name__
