"""The rows of each table, as values: a change makes a new one. Instants are whole microseconds since 1970."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
FAR = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
"""Where parked and dead rows sit."""

MAX_TOKEN = 2**62
MAX_COUNT = 1_000_000_000


def micros(seconds: float) -> int:
    """Return a duration in microseconds, as intervals are rounded."""
    return round(seconds * SECOND)


def instant_of(text: str) -> int:
    """Read an instant from its text."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


class OutboxRow(NamedTuple):
    """A message."""

    id: int
    message_id: str
    queue: str
    event_type: str
    aggregate_type: str | None
    aggregate_id: str | None
    ordering_key: str | None
    payload: str | None
    payload_bytes: bytes | None
    content_type: str | None
    headers: str
    created_at: int
    key_sequence: int | None
    dedupe_key: str | None
    recovery_policy: str
    available_at: int
    routed: bool
    status: str = "pending"
    attempts: int = 0
    lease_owner: str | None = None
    lease_until: int | None = None
    lease_version: int = 0
    reclaim_count: int = 0
    last_error: str | None = None
    outcome: str | None = None
    done_at: int | None = None
    dead_at: int | None = None

    @property
    def is_open(self) -> bool:
        """It is not done: it counts in its key, and stands in the partial indexes."""
        return self.done_at is None


class QueueRow(NamedTuple):
    """What holds for a queue, and its breaker and rate."""

    queue: str
    paused: bool = False
    pause_reason: str | None = None
    weight: int = 1
    concurrency: int | None = None
    lease: float | None = None
    publish_timeout: float | None = None
    max_attempts: int | None = None
    backoff_base: float | None = None
    backoff_cap: float | None = None
    sequenced: bool = False
    ledger: bool = False
    rate: float | None = None
    breaker_failures: int | None = None
    breaker_cap: float | None = None
    changed_at: int = 0
    changed_by: str | None = None
    rate_spent_until: int | None = None
    breaker_seen: int = 0
    breaker_version: int = 0
    breaker_opened_at: int | None = None
    breaker_probe_at: int | None = None
    breaker_trips: int = 0
    breaker_error: str | None = None


class KeyRow(NamedTuple):
    """The last number of an ordering key."""

    queue: str
    ordering_key: str
    last_sequence: int


class AuditRow(NamedTuple):
    """What an operator did to a message or a job, with the state before."""

    id: int
    at: int
    actor: str
    action: str
    row_id: int
    identity: str
    reason: str | None
    before: dict[str, Any]


class InboxRow(NamedTuple):
    """A message that a consumer has taken in."""

    consumer: str
    message_id: str
    fence: int | None
    digest: bytes | None
    accepted_at: int


class InboxKeyRow(NamedTuple):
    """How far a consumer has come in a key."""

    consumer: str
    key: str
    last_sequence: int
    accepted_at: int


class FenceRow(NamedTuple):
    """The newest token that a receiver has seen of a resource."""

    receiver: str
    resource: str
    token: int
    admitted_at: int


class AttemptRow(NamedTuple):
    """One attempt, in a queue that keeps a ledger."""

    id: int
    kind: str
    row_id: int
    token: str
    queue: str
    attempt: int
    worker: str
    started_at: int
    ended_at: int | None = None
    result: str | None = None
    error: str | None = None
    lease_lost: bool = False


class JobRow(NamedTuple):
    """A job."""

    id: int
    job_id: str
    queue: str
    task: str
    args: str
    headers: str
    unique_key: str | None
    lane: str | None
    recovery_policy: str
    max_attempts: int
    created_at: int
    available_at: int
    status: str = "queued"
    attempts: int = 0
    attempt_token: str | None = None
    fence: int = 0
    reserved_by: str | None = None
    reserved_at: int | None = None
    heartbeat_at: int | None = None
    lease_expires_at: int | None = None
    reclaim_count: int = 0
    progress: str | None = None
    last_error: str | None = None
    outcome: str | None = None
    result: str | None = None
    finished_at: int | None = None


class CronRow(NamedTuple):
    """A schedule, and how far it has come."""

    name: str
    task: str
    expression: str
    timezone: str
    last_tick: int
    seen_at: int


R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Table(Generic[R]):
    """A table: its name, and what identifies a row."""

    name: str
    key: Callable[[R], Any]


OUTBOX: Table[OutboxRow] = Table("outbox", lambda row: row.id)
AUDIT: Table[AuditRow] = Table("audit", lambda row: row.id)
QUEUE: Table[QueueRow] = Table("queue", lambda row: row.queue)
KEY: Table[KeyRow] = Table("key", lambda row: row[:2])
INBOX: Table[InboxRow] = Table("inbox", lambda row: row[:2])
INBOX_KEY: Table[InboxKeyRow] = Table("inbox_key", lambda row: row[:2])
FENCE: Table[FenceRow] = Table("fence", lambda row: row[:2])
ATTEMPT: Table[AttemptRow] = Table("attempt", lambda row: row.id)
JOB: Table[JobRow] = Table("job", lambda row: row.id)
JOB_AUDIT: Table[AuditRow] = Table("job_audit", lambda row: row.id)
CRON: Table[CronRow] = Table("cron", lambda row: row.name)

TABLES = (OUTBOX, AUDIT, QUEUE, KEY, INBOX, INBOX_KEY, FENCE, ATTEMPT, JOB, JOB_AUDIT, CRON)
