"""Fills the table of jobs with one statement."""

from __future__ import annotations

from fencepost.bench.tables import PAYLOAD, Connection

TASK, THREADED_TASK = "bench.async", "bench.thread"

_QUEUED = """
INSERT INTO outbox_job (task, args, created_at, available_at)
SELECT %(task)s, %(args)s::json, t, t
FROM generate_series(1, %(jobs)s::int) AS n,
     LATERAL (SELECT statement_timestamp() - (%(jobs)s::int - n) * interval '1 microsecond') AS made (t)
"""


def fill(connection: Connection, jobs: int, task: str) -> None:
    """Leave so many due jobs of 200 bytes, and nothing else."""
    connection.execute("TRUNCATE outbox_job")
    connection.execute(_QUEUED, {"task": task, "args": PAYLOAD, "jobs": jobs})
    connection.execute("VACUUM (ANALYZE) outbox_job")
