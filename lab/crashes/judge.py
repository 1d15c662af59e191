"""Cuts a scenario at each of its boundaries, lets it recover, and says what did not hold."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from fencepost.core.operation import Operation, Rows, Statement, run
from fencepost.drivers.faults import Fault, fault_of
from fencepost.drivers.psycopg import PsycopgDriver
from fencepost.errors import SchemaError
from lab.crashes.operations import running
from lab.crashes.scenario import Make, Repeat, Scenario
from lab.crashes.world import MAX_ATTEMPTS, Row, Snapshot, World

BEGIN, COMMIT = Statement("BEGIN", "BEGIN"), Statement("COMMIT", "COMMIT")
CLOSED = {"outbox": ("done", "dead"), "outbox_job": ("done", "failed")}
TOKENS = {"outbox": "lease_version", "outbox_job": "fence"}


@dataclass(frozen=True, slots=True)
class Point:
    """Where a session ends: before or after the statement of this number, which counts from 1.

    Args:
        takeover: another worker takes over, instead of a repeat.
    """

    number: int
    is_after: bool
    takeover: bool = False

    def told(self, names: list[str]) -> str:
        where = f"{'after' if self.is_after else 'before'} statement {self.number} ({names[self.number - 1]})"
        return f"{where}, then {'a takeover' if self.takeover else 'a repeat'}"


class AnswerLost(psycopg.OperationalError):
    """The server has done it, and its answer does not come."""


class Session:
    """A connection on which statements are counted, and which ends at a point."""

    def __init__(self, world: World, point: Point | None = None) -> None:
        self._world, self._point = world, point
        # (Only what is cut needs a connection of its own: to connect costs more than most statements.)
        self._connection = world.spare if point is None else psycopg.connect(world.url, autocommit=True)
        self.names: list[str] = []
        self.states: list[Snapshot] = []
        self.codes: set[CodeType] = set()
        self.looks = False
        """Look at the tables after each statement."""

    def attempt(self, make: Make, *, alone: bool) -> Any:
        """Run the operation as its callers do."""
        try:
            operation = make()
            if alone:
                return run(operation, lambda statement: self._execute(statement, operation))
            self._execute(BEGIN)
            result = run(operation, lambda statement: self._execute(statement, operation))
            self._execute(COMMIT)
            return result
        finally:
            if self._point is not None:
                self._connection.close()
            elif self._connection.info.transaction_status != TransactionStatus.IDLE:
                self._connection.rollback()

    def _execute(self, statement: Statement, operation: Operation[Any] | None = None) -> Rows:
        self.names.append(statement.name)
        if operation is not None:
            self.codes |= running(operation)
        point = self._point
        mine = point is not None and point.number == len(self.names)
        if mine and point is not None and not point.is_after:
            self._end()
        rows = PsycopgDriver(self._connection).execute(statement)
        if mine:
            self._end()
            raise AnswerLost("the session ended before the answer came")
        if self.looks:
            self.states.append(self._world.look())
        return rows

    def _end(self) -> None:
        """End the session for real, by a signal or by its cable, and wait until the server has rolled back."""
        pid = self._connection.info.backend_pid
        if len(self.names) % 2:
            self._world.db.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            return
        with socket.socket(fileno=os.dup(self._connection.fileno())) as cut:
            cut.shutdown(socket.SHUT_RDWR)
        alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        while self._world.db.execute(alive, [pid]).fetchone() != (0,):
            pass


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
                yield Point(number, is_after=False, takeover=takeover)
                yield Point(number, is_after=True, takeover=takeover)


def course_of(world: World, scenario: Scenario) -> Course:
    """Run a scenario undisturbed."""
    world.empty()
    make = scenario.prepare(world)
    before = world.look()
    session = Session(world)
    session.looks = scenario.alone
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
        place = self._point.number - (not self._point.is_after)
        self._same(after, self._course.states[place], "what stands after the cut")
        if count := self._world.locks():
            self._found.append(f"{count} locks are left")
        self._guarded(before, after)
        is_there = after.plain != before.plain
        if self._point.takeover:
            self._take_over(after, lambda: self._late(make, after))
            self._late(make)
        else:
            self._repeat(make, after, is_there=is_there)
            if not self._scenario.apart:
                self._take_over(self._world.look())
        return self._found

    def _cut(self, make: Make) -> None:
        try:
            Session(self._world, self._point).attempt(make, alone=self._scenario.alone)
        except Exception as error:  # noqa: BLE001 - which one it is decides whether a worker repeats
            if fault_of(error) is not Fault.CONNECTION:
                self._found.append(f"a cut connection came out as {type(error).__name__}: {error}")
        else:
            self._found.append("the cut was not noticed")

    def _repeat(self, make: Make, after: Snapshot, *, is_there: bool) -> None:
        """Repeat as whoever asked does; where nothing was committed, all is as if there had been no cut."""
        repeat = self._scenario.repeat
        if is_there and repeat is Repeat.ONCE:
            return
        try:
            answer = _plain(Session(self._world).attempt(make, alone=self._scenario.alone))
        except SchemaError as error:
            if not (is_there and self._scenario.apart):
                raise
            answer = str(error)  # it is there already
        now = self._world.look()
        self._guarded(after, now)
        if not is_there or repeat is not Repeat.ANEW:
            self._same(now, self._course.states[-1], "what stands after the repeat")
        if (not is_there or repeat is Repeat.SAME) and answer != self._course.answer:
            self._found.append(f"the repeat answers {answer}, not {self._course.answer}")

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

    def _same(self, found: Snapshot, expected: Snapshot, what: str) -> None:
        for table, rows in expected.plain.items():
            if rows != found.plain[table]:
                self._found.append(f"{what}: {table} has {_differences(found.plain[table], rows)}")

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
