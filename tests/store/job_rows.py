"""What a test sees of a job, and the few things that it does to jobs behind the store's back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg.rows import class_row

from fencepost import Jobs
from fencepost.core.job import ClaimedJob
from fencepost.core.operation import Operation, run
from fencepost.core.outcome import DONE, Action, Dead, Release, Reschedule
from fencepost.core.states import Event, Outcome
from fencepost.drivers import driver_for
from fencepost.store import job_fenced, jobs
from fencepost.store.jobs import JobClaim, JobTerms, LaneWalk, TaskTerms
from tests.store.rows import Connection

JOBS = Jobs(allow_autocommit=True)
JOBS.declare("plain")
JOBS.declare("manual", recovery="manual")
JOBS.declare("verify", recovery="verify")
JOBS.declare("few", max_running=2)
JOBS.declare("keyed", max_running_per_key=1)
JOBS.declare("both", max_running=3, max_running_per_key=2)

LEASE = timedelta(seconds=60)
TERMS = JobTerms("w1", {name: task.terms for name, task in JOBS.registry.tasks.items()})
CATALOG = JOBS.catalog


@dataclass(frozen=True)
class SeenJob:
    """One row as it stands; ``xmin`` changes with every write to it."""

    id: int
    task: str
    status: str
    outcome: str | None
    attempts: int
    fence: int
    token: str | None
    reclaim_count: int
    reserved_by: str | None
    lease_left: float | None
    """Seconds until the lease ends, by the database's clock; negative where it has ended."""
    due_in: float
    last_error: str | None
    progress: Any
    result: Any
    xmin: str


_SEEN = """
SELECT id, task, status, outcome, attempts, fence, attempt_token::text AS token, reclaim_count, reserved_by,
       extract(epoch FROM lease_expires_at - clock_timestamp())::float8 AS lease_left,
       extract(epoch FROM available_at - clock_timestamp())::float8 AS due_in,
       last_error, progress, result, xmin::text
FROM outbox_job
"""


def all_jobs(db: Connection) -> list[SeenJob]:
    """Every row, in id order."""
    with db.cursor(row_factory=class_row(SeenJob)) as cursor:
        return cursor.execute(f"{_SEEN} ORDER BY id").fetchall()


def job_row(db: Connection, row_id: int) -> SeenJob:
    """The row with this id, which must exist."""
    with db.cursor(row_factory=class_row(SeenJob)) as cursor:
        found = cursor.execute(f"{_SEEN} WHERE id = %s", [row_id]).fetchone()
    assert found is not None, f"job {row_id} is gone"
    return found


def do(db: Connection, operation: Operation[Any]) -> Any:
    """Run an operation and commit."""
    with db.transaction():
        return run(operation, driver_for(db).execute)


def add_jobs(db: Connection, count: int = 1, task: str = "plain", **options: Any) -> list[int]:
    """Commit jobs; return their ids."""
    with db.transaction():
        return [JOBS.enqueue(db, task, {"n": n}, **options).id for n in range(count)]


def claim_jobs(
    db: Connection, batch: int = 100, queue: str = "default", terms: JobTerms = TERMS
) -> list[ClaimedJob]:
    """Claim jobs without a limit, and commit."""
    found: JobClaim = do(db, jobs.claim(CATALOG, terms, queue, batch))
    return found.claimed


def claim_one_job(db: Connection, terms: JobTerms = TERMS) -> ClaimedJob:
    """Claim exactly one job, and commit."""
    (claimed,) = claim_jobs(db, terms=terms)
    return claimed


def claim_in_lanes(
    db: Connection, batch: int = 100, walk: LaneWalk | None = None, terms: JobTerms = TERMS
) -> list[ClaimedJob]:
    """Claim jobs in lanes, and commit."""
    found: JobClaim = do(db, jobs.claim_lanes(CATALOG, terms, "default", batch, walk or LaneWalk()))
    assert not found.is_busy
    return found.claimed


def claim_suspects(db: Connection, batch: int = 1, **options: Any) -> list[ClaimedJob]:
    """Claim jobs that a worker may have crashed on, and commit."""
    found: JobClaim = do(db, jobs.claim_suspects(CATALOG, TERMS, "default", batch, **options))
    assert not found.is_busy
    return found.claimed


def terms(owner: str = "w1", **tasks: TaskTerms) -> JobTerms:
    """Terms of a worker that knows these tasks only."""
    return JobTerms(owner, tasks)


def expire_jobs(db: Connection, ids: Sequence[int] | None = None) -> None:
    """End the leases of jobs (of all of them by default) as if their time were over."""
    db.execute(
        "UPDATE outbox_job SET lease_expires_at = statement_timestamp() - interval '1 ms'"
        " WHERE status = 'processing' AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))",
        {"ids": None if ids is None else list(ids)},
    )


def finish(
    db: Connection, held: Sequence[ClaimedJob], action: Action, result: str | None = None
) -> frozenset[int]:
    """Write one result for all of them; return what was lost."""
    lost: frozenset[int] = do(
        db, job_fenced.finalize(CATALOG, [job_fenced.Finished(each, action, result) for each in held])
    )
    return lost


ACTIONS: Mapping[str, Action] = {
    "done": DONE,
    "retry": Reschedule(Event.RETRY, timedelta(seconds=5), "retry", refund_attempt=False),
    "defer": Reschedule(Event.DEFER, timedelta(hours=1), "defer", refund_attempt=True),
    "cut off": Reschedule(Event.CANCELLED, timedelta(0), "cut off", refund_attempt=True, is_unknown=True),
    "release": Release(),
    "fail": Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "dead"),
}

Write = Callable[[Connection, Sequence[ClaimedJob]], frozenset[int]]


def _finishing(action: Action) -> Write:
    return lambda db, held: finish(db, held, action)


WRITES: Mapping[str, Write] = {
    **{name: _finishing(action) for name, action in ACTIONS.items()},
    "heartbeat": lambda db, held: do(db, job_fenced.heartbeat(CATALOG, held, LEASE)),
}
"""A holder's writes; each returns the ids that were lost."""
