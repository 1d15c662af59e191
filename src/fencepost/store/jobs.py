"""Who enqueues jobs and who takes them, as operations: enqueue, claims, reclaim, purge.

(What a holder writes is in `fencepost.store.job_fenced`, what operators ask in `fencepost.store.job_operators`.)
None of these operations begins or ends a transaction: that is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from fencepost.core.error_text import storable
from fencepost.core.job import ClaimedJob, EnqueuedJob, Job, JobDraft, ReclaimedJob
from fencepost.core.job_states import JobOutcome, JobState
from fencepost.core.ledger import Begun, Kind
from fencepost.core.operation import Operation, Row
from fencepost.core.states import Recovery
from fencepost.errors import DedupeConflict, SchemaError
from fencepost.store.catalog import Catalog
from fencepost.store.ledger import open_attempts
from fencepost.store.limits import MAX_BATCH, seconds

UNIQUE_TRIES = 5
"""For what comes and goes between two statements of one operation."""

LANES_PER_LOOK = 500
"""Lanes that one claim walks through; the next one goes on behind them."""

QUEUES_PER_LOOK = 1_000

NO_LIMIT = 1_000_000_000

JOB_COLUMNS = 10
"""How many columns of a job a store sends; what a statement adds comes behind."""


def enqueue(catalog: Catalog, job: JobDraft, *, notify: bool) -> Operation[EnqueuedJob]:
    """Insert a job, or find the open one that has its unique key.

    Raises:
        DedupeConflict: that one has other arguments.
        SchemaError: something in the database made the INSERT write nothing.
    """
    for _ in range(UNIQUE_TRIES):
        rows = yield catalog.statement(
            "job_enqueue", _params(job) | {"channel": catalog.names.job_channel if notify else None}
        )
        if rows:
            return EnqueuedJob(rows[0][0], job.job_id, created=True)
        if job.unique_key is None:
            break
        rows = yield catalog.statement(
            "job_unique_find", {"task": job.task, "unique_key": job.unique_key, "args": job.args}
        )
        if rows:
            return _existing(job, rows[0])
        # It finished between the two statements.
    raise SchemaError(
        f"an INSERT into {catalog.names.placeholders()['job']} answers with no row, and nothing stands in its "
        "way: remove the trigger or the rule that swallows it, and roll this transaction back"
    )


def _existing(job: JobDraft, row: Row) -> EnqueuedJob:
    row_id, job_id, is_same = row
    if not is_same:
        raise DedupeConflict(
            f"unique key {job.unique_key!r} of task {job.task!r} belongs to job {row_id}, which is open and has "
            "other arguments: use another key, or enqueue again once that one is finished"
        )
    return EnqueuedJob(row_id, UUID(job_id), created=False)


def _params(job: JobDraft) -> dict[str, Any]:
    return {
        "job_id": str(job.job_id),
        "queue": job.queue,
        "task": job.task,
        "args": job.args,
        "headers": job.headers,
        "unique_key": job.unique_key,
        "lane": job.lane,
        "recovery": str(job.recovery),
        "max_attempts": job.max_attempts,
        "available_at": job.available_at,
        "delay": job.delay,
    }


# --- claims --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """What the claims of a worker must know of a task.

    Args:
        lease: of its jobs.
        per_key: how many jobs of one key may run at once, anywhere.
        at_once: how many jobs of it may run at once, anywhere.
        ledger: every attempt is written down, in the transaction of its claim.
    """

    lease: timedelta
    per_key: int = NO_LIMIT
    at_once: int = NO_LIMIT
    ledger: bool = False


@dataclass(frozen=True, slots=True)
class JobTerms:
    """Who claims, and the tasks that it knows, by name; ``lease`` is for the others, which it only gives back."""

    owner: str
    tasks: Mapping[str, TaskTerms]
    lease: timedelta = timedelta(seconds=60)

    @property
    def needs_transaction(self) -> bool:
        """Whether a claim and what the ledger says of it are one."""
        return any(each.ledger for each in self.tasks.values())

    def params(self) -> dict[str, Any]:
        return {
            "owner": storable(self.owner),
            "lease": seconds(self.lease),
            "tasks": list(self.tasks),
            "leases": [seconds(each.lease) for each in self.tasks.values()],
        }

    def lane_params(self) -> dict[str, Any]:
        return {
            "widths": [min(each.per_key, NO_LIMIT) for each in self.tasks.values()],
            "limits": [min(each.at_once, NO_LIMIT) for each in self.tasks.values()],
        }


@dataclass(frozen=True, slots=True)
class Look:
    """What there is to claim in a queue; ``has_lanes``: perhaps, in lanes that have room."""

    queue: str
    is_due: bool
    has_lanes: bool
    has_suspects: bool


@dataclass(frozen=True, slots=True)
class JobClaim:
    """What a claim took, and how many jobs over their limit of attempts it failed instead."""

    claimed: list[ClaimedJob] = field(default_factory=list)
    exhausted: int = 0
    is_busy: bool = False
    """Another worker is counting what runs just now; ask again in a moment."""


@dataclass(slots=True)
class LaneWalk:
    """Where the last walk through the lanes of a queue was cut short; the next one goes on from there."""

    task: str = ""
    lane: str = ""

    @property
    def is_at_its_start(self) -> bool:
        return self.task == ""


def look(catalog: Catalog, queues: Sequence[str] | None) -> Operation[list[Look]]:
    """Return what there is in these queues, in their order; in all of them, by name, where None is given."""
    if queues is None:
        rows = yield catalog.statement("job_queues", {"limit": QUEUES_PER_LOOK})
        queues = [name for (name,) in rows]
    if not queues:
        return []
    rows = yield catalog.statement("job_look", {"queues": list(queues)})
    return [Look(*row) for row in rows]


def claim(catalog: Catalog, terms: JobTerms, queue: str, batch: int) -> Operation[JobClaim]:
    """Claim up to ``batch`` due jobs that have no limit and that no worker may have crashed on.

    It needs a transaction around it where a task keeps a ledger (`JobTerms.needs_transaction`).
    """
    rows = yield catalog.statement("job_claim", terms.params() | {"queue": queue, "batch": min(batch, MAX_BATCH)})
    return (yield from _claim(catalog, rows, terms))


def claim_lanes(catalog: Catalog, terms: JobTerms, queue: str, batch: int, walk: LaneWalk) -> Operation[JobClaim]:
    """Claim due jobs of tasks that have a limit, as far as that goes. It needs a transaction around it."""
    if not (yield from _have_lanes(catalog)):
        return JobClaim(is_busy=True)
    params = terms.params() | terms.lane_params() | {"queue": queue, "batch": min(batch, MAX_BATCH)}
    where = {"after_task": walk.task, "after_lane": walk.lane, "lanes": LANES_PER_LOOK}
    rows = yield catalog.statement("job_claim_lanes", params | where)
    task, lane = rows[0][-2:]
    walk.task, walk.lane = task or "", lane or ""
    return (yield from _claim(catalog, [row for row in rows if row[0] is not None], terms))


def claim_suspects(
    catalog: Catalog,
    terms: JobTerms,
    queue: str,
    batch: int = 1,
    max_reclaims: int = NO_LIMIT,
    spare_attempts: int = 0,
) -> Operation[JobClaim]:
    """Claim jobs that a worker may have crashed on, as far as limits allow. It needs a transaction around it.

    Args:
        max_reclaims: leave out what was taken over more often than this.
        spare_attempts: leave out what would have fewer attempts left than this after the one that it begins.
    """
    if not (yield from _have_lanes(catalog)):
        return JobClaim(is_busy=True)
    params = terms.params() | terms.lane_params()
    rows = yield catalog.statement(
        "job_claim_suspects",
        params
        | {
            "queue": queue,
            "batch": min(batch, MAX_BATCH),
            "max_reclaims": max_reclaims,
            "spare_attempts": spare_attempts,
        },
    )
    return (yield from _claim(catalog, rows, terms))


def _have_lanes(catalog: Catalog) -> Operation[bool]:
    rows = yield catalog.statement("job_lanes_lock", {"table": catalog.names.placeholders()["job"]})
    is_ours: bool = rows[0][0]
    return is_ours


def _claim(catalog: Catalog, rows: Iterable[Row], terms: JobTerms) -> Operation[JobClaim]:
    found = _claimed(rows, terms)
    kept = [each for each in found.claimed if each.ledger]
    begun = [Begun(each.id, str(each.fence), each.job.queue, each.attempt, each.owner) for each in kept]
    yield from open_attempts(catalog, Kind.JOB, begun)
    return found


def _claimed(rows: Iterable[Row], terms: JobTerms) -> JobClaim:
    claimed, exhausted = [], 0
    for row in sorted(rows, key=lambda each: (each[7], each[0])):
        status, token, fence, attempt, max_attempts, recovery, reclaims, age = row[JOB_COLUMNS : JOB_COLUMNS + 8]
        if status != JobState.PROCESSING:
            exhausted += 1
            continue
        known = terms.tasks.get(row[3])
        claimed.append(
            ClaimedJob(
                stored_job(row),
                row[4],
                token,
                fence,
                attempt,
                max_attempts,
                Recovery(recovery),
                terms.lease if known is None else known.lease,
                age,
                reclaims,
                terms.owner,
                known is not None and known.ledger,
            )
        )
    return JobClaim(claimed, exhausted)


def stored_job(row: Row) -> Job:
    """Return the job of a row that begins with the columns of ``job_columns.sql``."""
    return Job.stored(row)


# --- upkeep --------------------------------------------------------------------------------------------


def reclaim(catalog: Catalog, *, limit: int) -> Operation[list[ReclaimedJob]]:
    """Take back at most ``limit`` jobs whose lease has expired, longest ago first."""
    rows = yield catalog.statement("job_reclaim", {"limit": min(limit, MAX_BATCH)})
    return [
        ReclaimedJob(
            row_id,
            task,
            JobState(status),
            None if outcome is None else JobOutcome(outcome),
            worker,
            attempt,
            token,
        )
        for row_id, task, status, outcome, worker, attempt, token in rows
    ]


def purge(catalog: Catalog, *, older_than: timedelta, limit: int) -> Operation[int]:
    """Delete at most ``limit`` jobs that were done longer ago than ``older_than``; return how many."""
    rows = yield catalog.statement(
        "job_purge", {"older_than": seconds(older_than), "limit": min(limit, MAX_BATCH)}
    )
    gone: int = rows[0][0]
    return gone
