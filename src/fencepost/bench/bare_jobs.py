"""The loop that the worker is held against: claim and finalize jobs in bare SQL, nothing run.

Run as ``python -m fencepost.bench.bare_jobs``; see `fencepost.bench.contender`.
"""

from __future__ import annotations

import time
from datetime import timedelta

import psycopg

from fencepost.bench.contender import Assignment, Drained, Start, report
from fencepost.bench.job_tables import TASK, THREADED_TASK
from fencepost.store import jobs as store
from fencepost.store.catalog import Catalog

# Where a claimed row has its token: see the fragment job_claim_returning.sql.
_TOKEN = store.JOB_COLUMNS + 1


def drain(assignment: Assignment, start: Start) -> Drained:
    """Claim and finalize until nothing is left, a commit for each step."""
    tasks = {name: store.TaskTerms(timedelta(seconds=60)) for name in (TASK, THREADED_TASK)}
    claim = next(store.claim(Catalog(), store.JobTerms("bare", tasks), "default", assignment.batch))
    claim_sql, done_sql = claim.sql.encode(), Catalog().statement("job_done").sql.encode()
    jobs = 0
    with psycopg.connect(assignment.url) as connection:
        start()
        started = time.monotonic()
        while rows := connection.execute(claim_sql, claim.params).fetchall():
            connection.commit()
            params = {"ids": [row[0] for row in rows], "tokens": [row[_TOKEN] for row in rows], "results": None}
            jobs += len(connection.execute(done_sql, params).fetchall())
            connection.commit()
        connection.commit()
        return Drained(jobs, time.monotonic() - started)


if __name__ == "__main__":
    report(drain)
