"""The loop that the dispatcher is held against: claim and finalize in bare SQL, nothing published.

Run as ``python -m fencepost.bench.bare``; see `fencepost.bench.contender`.
"""

from __future__ import annotations

import time
from datetime import timedelta

import psycopg

from fencepost.bench.contender import BATCH, Assignment, Drained, report
from fencepost.store import outbox as store
from fencepost.store.catalog import Catalog

# Where a claimed row has its fencing token: see the fragment claim_returning.sql.
_TOKEN = 13


def drain(assignment: Assignment) -> Drained:
    """Claim and finalize until nothing is left, a commit for each step."""
    catalog = Catalog()
    terms = store.ClaimTerms("bare", timedelta(seconds=60), max_attempts=12)
    claim = next(store.claim(catalog, terms, queues=["default"], batch=BATCH))
    claim_sql, claim_params = claim.sql.encode(), dict(claim.params)
    done_sql = catalog.statement("mark_done").sql.encode()
    messages = 0
    with psycopg.connect(assignment.url) as connection:
        started = time.monotonic()
        while rows := connection.execute(claim_sql, claim_params).fetchall():
            connection.commit()
            ids = [row[0] for row in rows]
            messages += len(connection.execute(done_sql, {"ids": ids, "token": rows[0][_TOKEN]}).fetchall())
            connection.commit()
        connection.commit()
        return Drained(messages, time.monotonic() - started)


if __name__ == "__main__":
    report(drain)
