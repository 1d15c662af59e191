"""What a test sees of a row, and the few things that it does to rows behind the store's back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row

from fencepost import Claimed, NewMessage, Outbox

Connection = psycopg.Connection[Any]

OUTBOX = Outbox(allow_autocommit=True)
LEASE = timedelta(seconds=60)

Write = Callable[[Connection, Sequence[Claimed]], list[Claimed]]
"""A holder's write; it returns what was lost."""

FINALIZES: Mapping[str, Write] = {
    "mark_done": OUTBOX.mark_done,
    "retry": lambda db, held: OUTBOX.reschedule(db, held, delay=timedelta(seconds=5), error="retry"),
    "defer": lambda db, held: OUTBOX.reschedule(
        db, held, delay=timedelta(hours=1), error="defer", refund_attempt=True
    ),
    "mark_dead": lambda db, held: OUTBOX.mark_dead(db, held, error="dead"),
    "release": OUTBOX.release,
    "release, attempt kept": lambda db, held: OUTBOX.release(db, held, refund_attempt=False),
}
WRITES: Mapping[str, Write] = {**FINALIZES, "heartbeat": OUTBOX.heartbeat}


@dataclass(frozen=True)
class Seen:
    """One row as it stands; ``xmin`` changes with every write to it."""

    id: int
    status: str
    outcome: str | None
    attempts: int
    token: int
    reclaim_count: int
    lease_owner: str | None
    lease_left: float | None
    """Seconds until the lease ends, by the database's clock; negative where it has ended."""
    due_in: float
    """Seconds until the row is due; negative where it is."""
    last_error: str | None
    xmin: str


_SEEN = """
SELECT id, status, outcome, attempts, lease_version AS token, reclaim_count, lease_owner,
       extract(epoch FROM lease_until - clock_timestamp())::float8 AS lease_left,
       extract(epoch FROM available_at - clock_timestamp())::float8 AS due_in,
       last_error, xmin::text
FROM outbox
"""


def all_rows(connection: Connection) -> list[Seen]:
    """Every row, in id order."""
    with connection.cursor(row_factory=class_row(Seen)) as cursor:
        return cursor.execute(f"{_SEEN} ORDER BY id").fetchall()


def row(connection: Connection, row_id: int) -> Seen:
    """The row with this id, which must exist."""
    with connection.cursor(row_factory=class_row(Seen)) as cursor:
        found = cursor.execute(f"{_SEEN} WHERE id = %s", [row_id]).fetchone()
    assert found is not None, f"row {row_id} is gone"
    return found


def add(connection: Connection, count: int = 1, **options: Any) -> list[int]:
    """Commit ``count`` messages through the library, all due at once unless the options say otherwise."""
    with connection.transaction():
        receipts = OUTBOX.enqueue_many(
            connection, [NewMessage(event_type="test.event", payload={"n": n}, **options) for n in range(count)]
        )
    return [receipt.id for receipt in receipts]


def claim(
    connection: Connection,
    *,
    outbox: Outbox = OUTBOX,
    owner: str = "w1",
    batch: int = 100,
    lease: timedelta = LEASE,
    max_attempts: int = 12,
    queues: Sequence[str] | None = None,
) -> list[Claimed]:
    """Claim and commit."""
    with connection.transaction():
        return outbox.claim(
            connection, owner=owner, batch=batch, lease=lease, max_attempts=max_attempts, queues=queues
        )


def claim_one(connection: Connection, **options: Any) -> Claimed:
    """Claim exactly one message, and commit."""
    (claimed,) = claim(connection, **options)
    return claimed


def expire(connection: Connection, ids: Sequence[int] | None = None) -> None:
    """End the leases of rows (of all of them by default) as if their time were over."""
    connection.execute(
        "UPDATE outbox SET lease_until = statement_timestamp() - interval '1 ms'"
        " WHERE status = 'processing' AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))",
        {"ids": None if ids is None else list(ids)},
    )


def value(connection: Connection, query: str, params: Sequence[Any] = ()) -> Any:
    """The one value that a query returns."""
    found = connection.execute(query, list(params)).fetchone()
    assert found is not None
    return found[0]


def wait_for(connection: Connection, condition: str, params: Sequence[Any] = (), *, seconds: float = 20.0) -> None:
    """Ask the database until the condition holds."""
    deadline = time.monotonic() + seconds
    while True:
        if value(connection, f"SELECT {condition}", params):
            return
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition} with {params}"
        time.sleep(0.005)
