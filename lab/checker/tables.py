"""The tables of a run, read with plain SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, LiteralString, TypeVar

import psycopg
from psycopg import sql

S = TypeVar("S")

FAR = 253402214400_000_000
"""9999-12-31T00:00Z in microseconds: where parked and dead rows stand."""


@dataclass(frozen=True, slots=True)
class State:
    """A message's row at one moment; instants in microseconds since 1970."""

    message_id: str
    queue: str
    key: str | None
    recovery: str
    status: str
    attempts: int
    token: int
    owner: str | None
    lease_until: int | None
    reclaims: int
    outcome: str | None
    available_at: int
    created_at: int
    done_at: int | None
    dead_at: int | None

    @property
    def is_open(self) -> bool:
        """Whether it still stands before what follows in its key: dead ones do."""
        return self.status != "done"


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's row at one moment."""

    job_id: str
    queue: str
    task: str
    lane: str | None
    recovery: str
    max_attempts: int
    status: str
    attempts: int
    fence: int
    token: str | None
    owner: str | None
    lease_until: int | None
    reclaims: int
    outcome: str | None
    available_at: int
    finished_at: int | None


@dataclass(frozen=True, slots=True)
class Change(Generic[S]):
    """One committed change of a row; ``n`` orders the changes of a row, and of rows that lock each other out."""

    n: int
    at: int
    statement_at: int
    txid: int
    application: str
    op: str
    id: int
    old: S | None
    new: S | None
    payload: str | None = None
    is_altered: bool = False


@dataclass(frozen=True, slots=True)
class QueueChange:
    """What a queue's settings were from an instant on."""

    at: int
    queue: str
    is_held: bool
    """Paused, behind an open breaker, or under a rate: nobody has to claim from it."""
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class Audit:
    """What an operator did to a row; ``at`` is the instant of the statement."""

    at: int
    row_id: int
    action: str
    actor: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """What fencepost's own ledger says of an attempt at a message or a job; ``token``: of a job its fence."""

    kind: str
    row_id: int
    token: int
    result: str | None
    lease_lost: bool


@dataclass(slots=True)
class Tables:
    """Everything the checker reads of a database."""

    changes: list[Change[State]] = field(default_factory=list)
    rows: dict[int, State] = field(default_factory=dict)
    """The outbox as it stands."""
    audits: list[Audit] = field(default_factory=list)
    queues: list[QueueChange] = field(default_factory=list)
    business: dict[str, tuple[str | None, int | None]] = field(default_factory=dict)
    """Key and number of every message whose business change committed and survived."""
    effects: list[tuple[str, str, int | None]] = field(default_factory=list)
    inbox: set[tuple[str, str]] = field(default_factory=set)
    jobs: list[Change[JobState]] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    job_rows: dict[int, JobState] = field(default_factory=dict)
    job_audits: list[Audit] = field(default_factory=list)
    job_business: set[str] = field(default_factory=set)


def read_tables(connection: psycopg.Connection[Any], schema: str | None = None) -> Tables:
    """Read them all in one snapshot.

    Args:
        schema: of fencepost's tables, where it is not on the search path.
    """
    prefix = "" if schema is None else sql.Identifier(schema).as_string(connection) + "."

    def rows(query: LiteralString) -> Iterable[tuple[Any, ...]]:
        # The prefix comes quoted.
        return connection.execute(query.replace("{s}", prefix).encode()).fetchall()

    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return Tables(
            changes=[_change(State, *row) for row in rows(_HISTORY)],
            rows={row_id: State(**state) for row_id, state in rows(_ROWS)},
            audits=[Audit(*row) for row in rows(_AUDIT)],
            queues=[QueueChange(*row) for row in rows(_QUEUES)],
            business={message_id: (key, number) for message_id, key, number in rows(_BUSINESS)},
            effects=[(consumer, message_id, token) for consumer, message_id, token in rows(_EFFECTS)],
            inbox={(consumer, message_id) for consumer, message_id in rows(_INBOX)},
            jobs=[_change(JobState, *row) for row in rows(_JOB_HISTORY)],
            attempts=[Attempt(*row) for row in rows(_ATTEMPTS)],
            job_rows={row_id: JobState(**state) for row_id, state in rows(_JOB_ROWS)},
            job_audits=[Audit(*row) for row in rows(_JOB_AUDIT)],
            job_business={job_id for (job_id,) in rows("SELECT job_id::text FROM lab.job_business")},
        )


def _change(
    state: type[S],
    n: int,
    at: int,
    statement_at: int,
    txid: int,
    application: str,
    op: str,
    row_id: int | None,
    old: dict[str, Any] | None,
    new: dict[str, Any] | None,
    payload: str | None,
    is_altered: bool,
) -> Change[S]:
    before = None if old is None else state(**old)
    after = None if new is None else state(**new)
    # A TRUNCATE has no row.
    return Change(n, at, statement_at, txid, application, op, row_id or 0, before, after, payload, is_altered)


_HISTORY: LiteralString = """
    SELECT n, at, statement_at, txid, application, op, id, old, new, payload, is_altered
    FROM lab.message_history ORDER BY n
"""
_JOB_HISTORY: LiteralString = """
    SELECT n, at, statement_at, txid, application, op, id, old, new, payload, is_altered
    FROM lab.job_history ORDER BY n
"""
_ROWS: LiteralString = "SELECT o.id, lab.message_state(o) FROM {s}outbox AS o"
_JOB_ROWS: LiteralString = "SELECT o.id, lab.job_state(o) FROM {s}outbox_job AS o"
_AUDIT: LiteralString = "SELECT lab.micros(at), outbox_id, action, actor FROM {s}outbox_audit ORDER BY id"
_JOB_AUDIT: LiteralString = "SELECT lab.micros(at), row_id, action, actor FROM {s}outbox_job_audit ORDER BY id"
_ATTEMPTS: LiteralString = (
    "SELECT kind, row_id, token::bigint, result, lease_lost FROM {s}outbox_attempt ORDER BY id"
)
_QUEUES: LiteralString = """
    SELECT at, queue, paused OR breaker_open OR rated, max_attempts FROM lab.queue_history ORDER BY n
"""
_BUSINESS: LiteralString = "SELECT message_id::text, ordering_key, number FROM lab.business"
_EFFECTS: LiteralString = "SELECT consumer, message_id, token FROM lab.effect ORDER BY n"
_INBOX: LiteralString = "SELECT consumer, message_id FROM {s}outbox_inbox"
