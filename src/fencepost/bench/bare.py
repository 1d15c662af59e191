"""The loops that the dispatcher is held against: claim and finalize in bare SQL, nothing published.

Run as ``python -m fencepost.bench.bare``; see `fencepost.bench.contender`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from fencepost.bench.contender import Assignment, Drained, Start, report
from fencepost.core.records import STORED_COLUMNS
from fencepost.core.states import Outcome
from fencepost.store import outbox as store
from fencepost.store.catalog import Catalog
from fencepost.store.fenced import uuid_array

TRANSACTIONS = "transactions"
"""The store's own statements, each between BEGIN and COMMIT."""
AUTOCOMMIT = "autocommit"
"""The store's own statements, each a transaction of its own: two round trips less a step."""
TEXTBOOK = "textbook"
"""The same with a claim as one writes it by hand: no order, no crash suspects, no limit of attempts."""

# Where a claimed row has its fencing token: see the fragment claim_returning.sql.
_TOKEN = STORED_COLUMNS + 1

_TEXTBOOK_CLAIM = b"""
WITH due AS MATERIALIZED (
    SELECT id FROM outbox
    WHERE queue = 'default' AND done_at IS NULL AND available_at <= statement_timestamp()
      AND lease_until IS NULL AND status = 'pending'
    ORDER BY available_at, id
    LIMIT %(batch)s::int
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox AS o
SET status = 'processing', attempts = attempts + 1, lease_owner = 'bare', lease_version = lease_version + 1,
    lease_until = statement_timestamp() + interval '60 seconds'
WHERE id = ANY (ARRAY(SELECT id FROM due))
RETURNING lease_version, o.id, message_id::text, event_type, payload::text, headers::text
"""


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim's statement, and where its rows have their ids and the token."""

    sql: bytes
    params: Mapping[str, Any]
    id: int
    message_id: int
    token: int


def drain(assignment: Assignment, start: Start) -> Drained:
    """Claim and finalize until nothing is left, a commit for each step."""
    claim = _claim(assignment)
    done_sql = Catalog().statement("mark_done").sql.encode()
    messages = 0
    with psycopg.connect(assignment.url, autocommit=assignment.kind != TRANSACTIONS) as connection:
        start()
        started = time.monotonic()
        # The store's claim answers with a row of NULLs where it found nothing.
        while (rows := connection.execute(claim.sql, claim.params).fetchall()) and rows[0][claim.id] is not None:
            connection.commit()
            ids = [row[claim.id] for row in rows]
            token = rows[0][claim.token]
            message_ids = uuid_array(row[claim.message_id] for row in rows)
            params = {"ids": ids, "token": token, "message_ids": message_ids, "outcome": str(Outcome.DELIVERED)}
            messages += len(connection.execute(done_sql, params).fetchall())
            connection.commit()
        connection.commit()
        return Drained(messages, time.monotonic() - started)


def _claim(assignment: Assignment) -> _Claim:
    if assignment.kind == TEXTBOOK:
        return _Claim(_TEXTBOOK_CLAIM, {"batch": assignment.batch}, id=1, message_id=2, token=0)
    terms = store.ClaimTerms("bare", timedelta(seconds=60), max_attempts=12)
    claim = next(store.claim(Catalog(), terms, queues=["default"], batch=assignment.batch))
    return _Claim(claim.sql.encode(), dict(claim.params), id=0, message_id=1, token=_TOKEN)


if __name__ == "__main__":
    report(drain)
