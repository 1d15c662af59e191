"""PostgreSQL in a history: one database for all of them, two sessions, and a third one that looks on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any

import psycopg

from fencepost.core.operation import Operation, Rows, Statement, run
from fencepost.drivers.parameters import numbered
from fencepost.drivers.psycopg import PsycopgDriver
from fencepost.runtime.link import Limits
from fencepost.store.catalog import Catalog
from lab.conformance.seen import Look, Rest, Seen, SeenJob
from lab.conformance.store import Ended

Connection = psycopg.Connection[Any]

PATIENCE = 20.0
"""Seconds that anything may take which has to happen."""

_LIMITS = Limits(statement=PATIENCE, lock=PATIENCE, idle=60.0, transaction=60.0, answer=60.0)

# (numeric is rounded away from zero and Python to even: nothing here comes near a half.)
_ROWS = """
SELECT id, queue, ordering_key, key_sequence, recovery_policy, status, outcome, attempts, lease_version,
       reclaim_count, lease_owner,
       CASE WHEN available_at < timestamptz '9999-12-31 00:00:00+00'
            THEN round(extract(epoch FROM available_at - statement_timestamp()) / 60)::int END,
       available_at <= statement_timestamp(),
       round(extract(epoch FROM lease_until - statement_timestamp()) / 60)::int,
       coalesce(lease_until < statement_timestamp(), false),
       round(extract(epoch FROM coalesce(done_at, dead_at) - statement_timestamp()) / 60)::int,
       last_error, routed,
       CASE WHEN done_at IS NULL THEN row_number() OVER (ORDER BY done_at IS NULL DESC, available_at, id) END
FROM public.outbox ORDER BY id
"""

_JOBS = """
SELECT id, queue, task, unique_key, lane, recovery_policy, max_attempts, status, outcome, attempts, fence,
       reclaim_count, reserved_by,
       round(extract(epoch FROM available_at - statement_timestamp()) / 60)::int,
       available_at <= statement_timestamp(),
       round(extract(epoch FROM lease_expires_at - statement_timestamp()) / 60)::int,
       coalesce(lease_expires_at < statement_timestamp(), false),
       round(extract(epoch FROM heartbeat_at - statement_timestamp()) / 60)::int,
       round(extract(epoch FROM finished_at - statement_timestamp()) / 60)::int,
       progress::text, result::text, last_error
FROM public.outbox_job ORDER BY id
"""

_REST = """
SELECT (SELECT json_agg(json_build_array(queue, paused, max_attempts, sequenced, breaker_seen, breaker_version,
                                         breaker_opened_at IS NOT NULL, breaker_trips, ledger,
                                         round(extract(epoch FROM rate_spent_until - now()) / 60)::int)
                        ORDER BY queue)
        FROM public.outbox_queue),
       (SELECT json_agg(json_build_array(queue, ordering_key, last_sequence) ORDER BY queue, ordering_key)
        FROM public.outbox_key),
       (SELECT json_agg(json_build_array(message_id, fence) ORDER BY message_id) FROM public.outbox_inbox),
       (SELECT json_agg(json_build_array(key, last_sequence) ORDER BY key) FROM public.outbox_inbox_key),
       (SELECT json_agg(json_build_array(resource, token) ORDER BY resource) FROM public.outbox_fence),
       (SELECT json_agg(json_build_array(action, outbox_id, before->'attempts', before->'status') ORDER BY id)
        FROM public.outbox_audit),
       (SELECT json_agg(json_build_array(action, row_id, before->'attempts', before->'status', before->'fence')
                        ORDER BY id)
        FROM public.outbox_job_audit),
       (SELECT json_agg(json_build_array(name, task, expression, timezone,
                                         round(extract(epoch FROM last_tick - statement_timestamp()) / 60)::int,
                                         round(extract(epoch FROM seen_at - statement_timestamp()) / 60)::int)
                        ORDER BY name)
        FROM public.outbox_cron),
       (SELECT json_agg(json_build_array(kind, row_id, token, queue, attempt, worker, result, error, lease_lost)
                        ORDER BY id)
        FROM public.outbox_attempt)
"""

_TABLES = (
    *("outbox", "outbox_audit", "outbox_queue", "outbox_key", "outbox_inbox", "outbox_inbox_key", "outbox_fence"),
    *("outbox_job", "outbox_job_audit", "outbox_cron", "outbox_attempt"),
)

_COUNTED = ("outbox", "outbox_job", "outbox_attempt")
"""Tables whose ids say something."""

_DELETES = ", ".join(f"t{place} AS (DELETE FROM public.{table})" for place, table in enumerate(_TABLES))  # noqa: S608 - constants
_BEGINNINGS = ", ".join(f"setval(pg_get_serial_sequence('public.{table}', 'id'), 1, false)" for table in _COUNTED)
_EMPTY = f"WITH {_DELETES} SELECT {_BEGINNINGS}"

# Everything that is stored as an instant, and says something to somebody later.
_SHIFT = (
    "UPDATE public.outbox SET created_at = created_at - {by}, done_at = done_at - {by}, dead_at = dead_at - {by},"
    " lease_until = lease_until - {by}, available_at = CASE WHEN available_at < timestamptz"
    " '9999-12-31 00:00:00+00' THEN available_at - {by} ELSE available_at END",
    "UPDATE public.outbox_queue SET breaker_opened_at = breaker_opened_at - {by},"
    " breaker_probe_at = breaker_probe_at - {by}, rate_spent_until = rate_spent_until - {by}",
    "UPDATE public.outbox_inbox SET accepted_at = accepted_at - {by}",
    "UPDATE public.outbox_fence SET admitted_at = admitted_at - {by}",
    "UPDATE public.outbox_attempt SET started_at = started_at - {by}, ended_at = ended_at - {by}",
    "UPDATE public.outbox_audit SET at = at - {by}",
)
_SHIFT_JOBS = (
    "UPDATE public.outbox_job SET created_at = created_at - {by}, available_at = available_at - {by},"
    " reserved_at = reserved_at - {by}, heartbeat_at = heartbeat_at - {by},"
    " lease_expires_at = lease_expires_at - {by}, finished_at = finished_at - {by}",
    "UPDATE public.outbox_cron SET last_tick = last_tick - {by}, seen_at = seen_at - {by}",
    "UPDATE public.outbox_attempt SET started_at = started_at - {by}, ended_at = ended_at - {by}",
    "UPDATE public.outbox_job_audit SET at = at - {by}",
)

_WRITING = frozenset(
    [
        *("enqueue", "enqueue_many", "expand", "claim", "claim_suspects", "reap", "heartbeat", "promote", "purge"),
        *("mark_done", "mark_done_ordered", "mark_dead", "reschedule", "release", "dead_retry", "dead_skip"),
        *("job_enqueue", "job_claim", "job_claim_lanes", "job_claim_suspects", "job_reclaim", "job_heartbeat"),
        *("job_done", "job_requeue", "job_fail", "job_end", "job_retry", "job_purge"),
    ]
)
"""Statements after which the messages, or the jobs, may be others."""

_TRUNCATE_EVERY = 200
"""Histories: deleted rows are dead tuples, over which every statement would have to go."""


class PostgresStore:
    """Two sessions with a database that holds the tables."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._sessions = [self._connected(url) for _ in (0, 1)]
        self._observer = self._connected(url)
        self._looks: dict[int, psycopg.Cursor[Any]] = {}
        """What each session saw right after its last statement."""
        self._pool = ThreadPoolExecutor(2)
        self._waiting: dict[int, Future[Ended]] = {}
        self._emptied = 0
        self._is_of_jobs = False

    def _connected(self, url: str) -> Connection:
        connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        # As a dispatcher has it: one plan for each statement, made once.
        PsycopgDriver(connection).execute(_LIMITS.statement_for(Catalog(), local=False))
        # What we ask ourselves reads whole tables: by these settings that looks dear enough to be compiled first.
        connection.execute("SET jit = off")
        # Whoever closes a circle finds out, and nobody else: see `start`.
        connection.execute("SET deadlock_timeout = '30s'")
        return connection

    def close(self) -> None:
        """Close the sessions, also where one waits for the other."""
        for connection in (*self._sessions, self._observer):
            connection.cancel_safe(timeout=5)
        self._pool.shutdown(wait=True)
        for connection in (*self._sessions, self._observer):
            connection.close()

    def empty(self, *, jobs: bool) -> None:
        self._is_of_jobs = jobs
        for session in list(self._waiting):
            self._sessions[session].cancel_safe(timeout=5)
            self._waiting.pop(session).result(timeout=PATIENCE)
        for connection in self._sessions:
            connection.rollback()
        if self._emptied % _TRUNCATE_EVERY == 0:
            names = ", ".join(f"public.{table}" for table in _TABLES)
            self._observer.execute(f"TRUNCATE {names} RESTART IDENTITY")
        self._emptied += 1
        self._sessions[0].execute(_EMPTY)
        self._looks.clear()

    def begin(self, session: int) -> None:
        self._sessions[session].execute("BEGIN")

    def end(self, session: int, *, commits: bool) -> None:
        self._sessions[session].execute("COMMIT" if commits else "ROLLBACK")

    def start(self, session: int, operation: Operation[Any], *, atomic: bool, will_wait: bool) -> Ended | None:
        if not will_wait and self._waiting:
            return self._ended_soon(session, operation, atomic)
        if not will_wait:
            return self._ended(session, operation, atomic)
        future = self._pool.submit(self._ended, session, operation, atomic)
        pid = self._sessions[session].info.backend_pid
        deadline = monotonic() + PATIENCE
        while not future.done():
            found = self._observer.execute(
                "SELECT FROM pg_catalog.pg_locks WHERE pid = %s AND NOT granted", [pid]
            ).fetchone()
            if found is not None:
                self._waiting[session] = future
                return None
            if monotonic() > deadline:
                raise TimeoutError(f"{self.name}: an operation neither ends nor waits")
        return future.result()

    def _ended_soon(self, session: int, operation: Operation[Any], atomic: bool) -> Ended:
        """Run an operation while the other session waits, perhaps for this one: then this one is refused."""
        connection = self._sessions[session]
        connection.execute("SET deadlock_timeout = '5ms'")
        ended = self._ended(session, operation, atomic)
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.INERROR:
            connection.execute("SET deadlock_timeout = '30s'")
        return ended

    def settle(self, session: int) -> Ended | None:
        return self._waiting.pop(session).result(timeout=PATIENCE)

    def _ended(self, session: int, operation: Operation[Any], atomic: bool) -> Ended:
        connection = self._sessions[session]
        own = atomic and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        self._looks.pop(session, None)
        try:
            if own:
                connection.execute("BEGIN")
            result = run(operation, lambda statement: self._sent(session, statement))
            if own:
                connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - it is compared with that of another store
            self._looks.pop(session, None)
            if own:
                connection.rollback()
            return Ended(error=type(error).__name__)
        return Ended(result)

    def _sent(self, session: int, statement: Statement) -> Rows:
        """Send a statement; where it writes messages, in the same trip to the server a look at what it did."""
        connection = self._sessions[session]
        text, values = numbered(statement.sql, statement.params)
        cursor = psycopg.RawCursor(connection)
        if statement.name not in _WRITING:
            cursor.execute(text.encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []
        with connection.pipeline():
            cursor.execute(text.encode(), values or None)
            look = connection.execute(self._question)
        self._looks[session] = look
        return cursor.fetchall() if cursor.description is not None else []

    @property
    def _question(self) -> str:
        return _JOBS if self._is_of_jobs else _ROWS

    def look(self, session: int) -> Look:
        cursor = self._looks.pop(session, None) or self._sessions[session].execute(self._question)
        found = cursor.fetchall()
        if self._is_of_jobs:
            return Look((), (), tuple(SeenJob(*row) for row in found))
        order = sorted((row[-1], row[0]) for row in found if row[-1] is not None)
        return Look(tuple(Seen(*row[:-1]) for row in found), tuple(row_id for _, row_id in order))

    def rest(self) -> Rest:
        found = self._sessions[0].execute(_REST).fetchone() or ()
        return Rest(*(tuple(tuple(row) for row in rows or ()) for rows in found))

    def pass_time(self, minutes: int) -> None:
        by = f"interval '{minutes} minutes'"
        with self._sessions[0].pipeline():
            for text in _SHIFT_JOBS if self._is_of_jobs else _SHIFT:
                self._sessions[0].execute(text.replace("{by}", by))

    def lose(self, row_id: int) -> None:
        self._sessions[0].execute("DELETE FROM public.outbox WHERE id = %s", [row_id])
