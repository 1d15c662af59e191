"""One planted violation: the small run's history and its database, to be spoilt and judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
from lab.checker.evidence import Evidence
from lab.checker.history import History, Line, parsed, read_lines
from lab.checker.tables import Tables, read_tables
from lab.checker.verdict import Verdict, judge

from tests.lab.small_run import SmallRun

Plant = Callable[["Case"], None]
PLANTS: list[tuple[str, frozenset[str], Plant]] = []
"""The guarantee that each one breaks, and others that cannot but break with it."""


def planted(guarantee: str, *also: str) -> Callable[[Plant], Plant]:
    """Put a plant on the list; ``also``: guarantees that the same fault breaks."""

    def put(plant: Plant) -> Plant:
        PLANTS.append((guarantee, frozenset(also), plant))
        return plant

    return put


@dataclass(frozen=True)
class Told:
    """The run that was played, and what it left behind."""

    run: SmallRun
    lines: list[Line]
    tables: Tables


class Case:
    """What was told, to be spoilt: its lines, and by `run`, which goes on in its database, its tables as well."""

    def __init__(self, told: Told, folder: Path) -> None:
        self._told, self._folder = told, folder
        self.url, self.marks, self.message_ids = told.run.url, told.run.marks, told.run.message_ids
        self.lines = [line for line in told.lines if line.kind != "phase"]
        self.drained_in: float | None = 0.0
        """When the run counts as drained: seconds from the judgement on, None for never."""
        self.ends_in = 0.0
        self._moved: dict[int, int] = {}
        self.is_touched = False
        """Whether anything was done in the database."""

    @cached_property
    def run(self) -> SmallRun:
        """Go on with the run; its lines join the history."""
        self.is_touched = True
        return SmallRun(self.url, self._folder)

    @property
    def db(self) -> psycopg.Connection[Any]:
        return self.run.db

    def judge(self) -> Verdict:
        """End the run and judge it."""
        played = []
        if self.is_touched:
            self.run.tick()
            played = [replace(line, at=self._moved.get(line.at, line.at)) for line in read_lines(self._folder)]
        for name, seconds in (("drained", self.drained_in), ("end", self.ends_in)):
            if seconds is not None:
                self.add("conductor", "phase", name=name, at=later(seconds))
        tables = read_tables(self.db) if self.is_touched else self._told.tables
        return judge(Evidence(History(self.lines + played), tables))

    def close(self) -> None:
        if self.is_touched:
            self.run.close()
            put_back(self._told.run.db)

    # --- the history -----------------------------------------------------------------------------------------

    def find(self, kind: str, **fields: Any) -> list[Line]:
        """Return the lines of a kind that have these fields."""
        return [line for line in self.lines if line.kind == kind and self._has(line, fields)]

    def _has(self, line: Line, fields: dict[str, Any]) -> bool:
        return all(line.process == v if name == "process" else line.get(name) == v for name, v in fields.items())

    def change(
        self, found: Iterable[Line], at: int | None = None, process: str | None = None, **fields: Any
    ) -> None:
        """Give lines other fields."""
        for line in list(found):
            place = self.lines.index(line)
            self.lines[place] = Line(
                line.at if at is None else at, process or line.process, line.kind, line.fields | fields
            )

    def drop(self, found: Iterable[Line]) -> None:
        for line in list(found):
            self.lines.remove(line)

    def add(self, process: str, kind: str, at: int | None = None, **fields: Any) -> None:
        """Add a line, of now unless told otherwise."""
        at = time.monotonic_ns() if at is None else at
        self.lines.append(parsed({"at": at, "process": process, "kind": kind} | fields))

    def again(self, found: Iterable[Line], process: str | None = None, **fields: Any) -> None:
        """Add copies of lines, as of now."""
        for line in list(found):
            copied = line.fields | fields
            self.lines.append(Line(time.monotonic_ns(), process or line.process, line.kind, copied))

    def move(self, line: Line, seconds: float) -> None:
        """Have a line that was written since the run was over at another time."""
        self._moved[line.at] = line.at + round(seconds * 1e9)

    def played(self, kind: str) -> list[Line]:
        """Return what was written since the run was over."""
        return [line for line in read_lines(self._folder) if line.kind == kind]

    def of(self, part: str, nth: int = 0) -> str:
        """Return the message id of a part's message."""
        return self.message_ids[self.marks[part][nth]]

    # --- the rows --------------------------------------------------------------------------------------------

    def sql(self, query: str, *parameters: object) -> Any:
        """Do with plain SQL what a broken system would do; return the first column of the first row, if any."""
        cursor: psycopg.Cursor[Any] = self.db.execute(query.encode(), parameters)
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]

    def take(self, row_id: int, token: int = 1, charge: int = 1, reclaims: int = 0, owner: str = "w2") -> None:
        """Claim a row as a broken system would."""
        self.sql(
            "UPDATE outbox SET status = 'processing', lease_version = lease_version + %s,"
            " attempts = attempts + %s, reclaim_count = reclaim_count + %s, lease_owner = %s,"
            " available_at = created_at, lease_until = clock_timestamp() + interval '0.2 s' WHERE id = %s",
            *(token, charge, reclaims, owner, row_id),
        )

    def finish(self, row_id: int) -> None:
        """Close a row without asking whose it is."""
        self.sql(
            "UPDATE outbox SET status = 'done', outcome = 'delivered', done_at = statement_timestamp(),"
            " lease_until = NULL WHERE id = %s",
            row_id,
        )

    def give_back(self, row_id: int, refund: int = 0) -> None:
        self.sql(
            "UPDATE outbox SET status = 'pending', lease_until = NULL, attempts = attempts - %s WHERE id = %s",
            *(refund, row_id),
        )


KEPT = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('public', 'lab') ORDER BY 1, 2"


def keep(db: psycopg.Connection[Any]) -> None:
    """Keep all tables as they are now."""
    db.execute("CREATE SCHEMA kept")
    for schema, table in db.execute(KEPT).fetchall():
        db.execute(f"CREATE TABLE kept.{schema}_{table} AS TABLE {schema}.{table}".encode())


def put_back(db: psycopg.Connection[Any]) -> None:
    """Make all tables what they were; no trigger tells."""
    steps = ["SET LOCAL session_replication_role = replica"]
    for schema, table in db.execute(KEPT).fetchall():
        steps.append(f"DELETE FROM {schema}.{table}")
        copied = f"SELECT * FROM kept.{schema}_{table}"
        steps.append(f"INSERT INTO {schema}.{table} OVERRIDING SYSTEM VALUE {copied}")
    with db.transaction():
        db.execute("; ".join(steps).encode())


def later(seconds: float) -> int:
    """Return an instant of the history."""
    return time.monotonic_ns() + round(seconds * 1e9)
