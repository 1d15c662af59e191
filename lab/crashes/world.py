"""The database that scenarios run in: emptied before each run, looked at as a whole, drained by another worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from tests.store.job_rows import TERMS

from fencepost.core.job import ClaimedJob
from fencepost.core.operation import Operation, run
from fencepost.core.outcome import DONE
from fencepost.core.records import Claimed
from fencepost.drivers.psycopg import PsycopgDriver
from fencepost.store import finalize, job_fenced, jobs, keys, outbox
from fencepost.store.catalog import Catalog, Names
from fencepost.store.jobs import JobTerms, LaneWalk

T = TypeVar("T")
Row = dict[str, Any]

CATALOG = Catalog()
APART = Catalog(Names(schema="apart"))
"""For what changes the tables themselves."""

MAX_ATTEMPTS = 12
LEASE = timedelta(seconds=60)
ROUNDS = 100
"""Steps of a takeover past which something is stuck."""

_TABLES = (
    *("", "_audit", "_queue", "_key", "_inbox", "_inbox_key"),
    *("_job", "_job_audit", "_cron", "_attempt", "_fence"),
)
_EMPTY = "".join(f"DELETE FROM outbox{each};" for each in _TABLES)  # noqa: S608 - our own names
_EMPTY += "DROP SCHEMA IF EXISTS apart CASCADE"
_LOOK = " UNION ALL ".join(
    f"SELECT 'outbox{each}' AS name, pg_catalog.to_jsonb(t)::text AS row FROM outbox{each} AS t"  # noqa: S608 - our own names
    for each in _TABLES
)
_LOOK += """
UNION ALL SELECT 'apart', pg_catalog.to_jsonb(r)::text FROM (
    SELECT c.relname || ' ' || c.relkind::text || ' ' || coalesce(pg_get_expr(c.relpartbound, c.oid), '')
        AS relation
    FROM pg_class AS c WHERE c.relnamespace = to_regnamespace('apart')) AS r
UNION ALL SELECT 'now', pg_catalog.to_jsonb(clock_timestamp())::text
"""
# (Not those of autovacuum, which come and go.)
_LOCKS = """
SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE pid <> pg_backend_pid() AND a.datname = current_database() AND a.backend_type = 'client backend'
"""
# What is parked behind a dead message waits for a person, and says so.
_STUCK = """
SELECT 'message ' || o.id || ' is ' || o.status FROM outbox AS o
WHERE o.status NOT IN ('done', 'dead')
  AND NOT (o.status = 'blocked' AND EXISTS (
      SELECT FROM outbox AS d
      WHERE d.status = 'dead' AND d.queue = o.queue AND d.ordering_key = o.ordering_key AND d.id < o.id))
UNION ALL
SELECT 'job ' || id || ' is ' || status FROM outbox_job WHERE status NOT IN ('done', 'failed')
"""
_HAS_ROWS = "SELECT EXISTS (SELECT FROM outbox), EXISTS (SELECT FROM outbox_job)"
_TIME_PASSES = """
UPDATE outbox SET lease_until = statement_timestamp() - interval '1 s' WHERE status = 'processing';
UPDATE outbox SET available_at = statement_timestamp()
    WHERE status = 'pending' AND available_at > statement_timestamp();
UPDATE outbox_job SET lease_expires_at = statement_timestamp() - interval '1 s' WHERE status = 'processing';
UPDATE outbox_job SET available_at = statement_timestamp()
    WHERE status = 'queued' AND available_at > statement_timestamp();
UPDATE outbox_queue SET paused = false, breaker_opened_at = NULL, breaker_probe_at = NULL, rate_per_second = NULL;
"""


@dataclass(frozen=True)
class Snapshot:
    """Everything that stands in the tables.

    Args:
        rows: as they are, by table.
        plain: the same without what differs from run to run: ids are ranks, instants are past, future or far.
    """

    rows: dict[str, list[Row]]
    plain: dict[str, list[Row]] = field(repr=False)

    def by_id(self, table: str) -> dict[int, Row]:
        return {row["id"]: row for row in self.rows[table]}


class World:
    """One database with the tables in place."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stack = ExitStack()
        self.db = self._stack.enter_context(psycopg.connect(url, autocommit=True))

    def close(self) -> None:
        self._stack.close()

    @cached_property
    def spare(self) -> psycopg.Connection:
        """Another connection."""
        return self._stack.enter_context(psycopg.connect(self.url, autocommit=True))

    @cached_property
    def loop(self) -> asyncio.Runner:
        return self._stack.enter_context(asyncio.Runner())

    @cached_property
    def engine(self) -> AsyncEngine:
        """Connects anew each time."""
        return create_async_engine(self.url.replace("://", "+asyncpg://", 1), poolclass=NullPool)

    def empty(self) -> None:
        self.db.execute(_EMPTY)

    def do(self, operation: Operation[T]) -> T:
        """Run an operation in a transaction of its own."""
        with self.db.transaction():
            return run(operation, PsycopgDriver(self.db).execute)

    def wait_for_end(self, pid: int) -> None:
        """Wait until a session is no more, and with it what it had not committed."""
        while self.db.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).rowcount:
            pass

    def locks(self) -> int:
        """Count the locks of other sessions on anything of this database."""
        found = self.db.execute(_LOCKS).fetchone()
        return 0 if found is None else int(found[0])

    def look(self) -> Snapshot:
        names = (*(f"outbox{each}" for each in _TABLES), "apart", "now")
        rows: dict[str, list[Row]] = {name: [] for name in names}
        for name, text in self.db.execute(_LOOK).fetchall():
            rows[name].append(json.loads(text))
        (now,) = rows.pop("now")
        for found in rows.values():
            found.sort(key=lambda row: (row.get("id", 0), json.dumps(row, sort_keys=True)))
        return Snapshot(rows, _Plain(rows, datetime.fromisoformat(str(now))).tables())

    # --- what another worker makes of it -----------------------------------------------------------------

    def take_over(self, meanwhile: Callable[[], None] = lambda: None, *, strands: bool = False) -> list[str]:
        """Let leases and delays end, and let another worker finish everything; return what went wrong.

        Args:
            meanwhile: called while that one holds what it has claimed first.
            strands: that one also looks for what is parked with nothing before it.
        """
        self.db.execute(_TIME_PASSES)
        if strands:
            self.do(keys.promote_stranded(CATALOG, after=None, limit=100))
        other = _Other(self)
        other.claim()
        meanwhile()
        for _ in range(ROUNDS):
            other.finish()
            if not other.claim():
                return other.problems + self._unfinished()
        return [*other.problems, f"the takeover did not come to an end in {ROUNDS} rounds"]

    def _unfinished(self) -> list[str]:
        return [f"stuck: {text}" for (text,) in self.db.execute(_STUCK).fetchall()]


class _Other:
    """Another worker: it claims whatever it gets, and then finishes it."""

    def __init__(self, world: World) -> None:
        self._world, self._do = world, world.do
        self._messages: list[Claimed] = []
        self._jobs: list[ClaimedJob] = []
        self._last: dict[tuple[str, str], int] = {}
        self.problems: list[str] = []

    def claim(self) -> int:
        """Claim, reap and reclaim once; return how many rows that moved."""
        has_messages, has_jobs = self._world.db.execute(_HAS_ROWS).fetchone() or (True, True)
        return (self._claim_messages() if has_messages else 0) + (self._claim_jobs() if has_jobs else 0)

    def _claim_messages(self) -> int:
        terms = outbox.ClaimTerms("w2", LEASE, MAX_ATTEMPTS)
        moved = len(self._do(outbox.reap(CATALOG, queues=None, max_attempts=MAX_ATTEMPTS, limit=100)))
        taken = self._do(outbox.claim(CATALOG, terms, queues=None, batch=100))
        suspects = self._do(outbox.claim_suspects(CATALOG, terms, queues=None, batch=100))
        self._messages += taken.claimed + suspects.claimed
        return moved + len(self._messages) + taken.exhausted + suspects.exhausted + taken.parked

    def _claim_jobs(self) -> int:
        terms = JobTerms("w2", TERMS.tasks)
        moved = len(self._do(jobs.reclaim(CATALOG, limit=100)))
        for look in self._do(jobs.look(CATALOG, None)):
            for found in (
                self._do(jobs.claim(CATALOG, terms, look.queue, 100)),
                self._do(jobs.claim_lanes(CATALOG, terms, look.queue, 100, LaneWalk())),
                self._do(jobs.claim_suspects(CATALOG, terms, look.queue, 100)),
            ):
                self._jobs += found.claimed
                moved += found.exhausted
        return moved + len(self._jobs)

    def finish(self) -> None:
        """Close what is held."""
        if self._messages:
            self._finish_messages()
        if not self._jobs:
            return
        if lost := self._do(
            job_fenced.finalize(CATALOG, [job_fenced.Finished(each, DONE) for each in self._jobs])
        ):
            self.problems.append(f"the other worker lost jobs that it had claimed: {sorted(lost)}")
        self._jobs = []

    def _finish_messages(self) -> None:
        found = self._do(finalize.finalize(CATALOG, [(each, DONE) for each in self._messages]))
        if found.lost or found.out_of_turn:
            self.problems.append(f"the other worker could not close what it claimed: {found}")
        for each in sorted(self._messages, key=lambda each: each.id):
            self._note_order(each)
        self._messages = []

    def _note_order(self, each: Claimed) -> None:
        if each.message.ordering_key is None:
            return
        key = (each.message.queue, each.message.ordering_key)
        if each.id < self._last.get(key, 0):
            self.problems.append(f"message {each.id} of key {key} was delivered after {self._last[key]}")
        self._last[key] = each.id


_FAR = 9000


class _Plain:
    """Rows without what differs between two runs of one scenario."""

    def __init__(self, rows: dict[str, list[Row]], now: datetime) -> None:
        self._rows, self._now = rows, now
        self._ranks = {
            table: {row["id"]: rank for rank, row in enumerate(rows[table])} for table in ("outbox", "outbox_job")
        }
        self._identities: dict[str, int] = {}

    def tables(self) -> dict[str, list[Row]]:
        return {table: [self._row(table, row) for row in found] for table, found in self._rows.items()}

    def _row(self, table: str, row: Row) -> Row:
        return {name: self._value(table, row, name) for name in row if name != "before"}

    def _value(self, table: str, row: Row, name: str) -> Any:
        value = row[name]
        if value is None:
            return None
        if name in ("id", "outbox_id", "row_id"):
            return self._rank(table, row, name)
        if name in ("message_id", "job_id") and table != "outbox_inbox":
            return self._identities.setdefault(value, len(self._identities))
        if name == "attempt_token":
            return "a token"
        if name == "at" or name.endswith(("_at", "_until", "last_tick")):
            return self._instant(value)
        return value

    def _rank(self, table: str, row: Row, name: str) -> Any:
        if name == "id":
            return self._ranks[table][row[name]] if table in self._ranks else "a number"
        of_job = table == "outbox_job_audit" or row.get("kind") == "job"
        return self._ranks["outbox_job" if of_job else "outbox"].get(row[name], "gone")

    def _instant(self, value: str) -> str:
        at = datetime.fromisoformat(value)
        if at.year >= _FAR:
            return "far"
        return "past" if at <= self._now else "future"
