"""Which jobs are stuck, and what to do about each: the rules of the report, without a database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from fencepost.core.job import KNOWS_NO_TASK, JobInfo
from fencepost.core.job_states import JobOutcome, JobState
from fencepost.core.states import Recovery

RECLAIM_PATIENCE = timedelta(seconds=5)
"""How long a lease may be over before somebody should have taken the job back: a few poll intervals."""

MANY_RECLAIMS = 2
"""Workers that a job may have crashed before it is suspected of it."""


class StuckKind(StrEnum):
    """Why a job is in the report; where several hold, the first one."""

    EXPIRED = "expired"
    """Its lease is over and nobody takes it back."""
    SILENT = "silent"
    """Half of its lease went by without a heartbeat."""
    UNKNOWN_OUTCOME = "unknown_outcome"
    """It failed and nobody knows what it did: a person decides."""
    CAME_BACK = "came_back"
    """Its worker was lost more than once."""
    LONG = "long"
    """It runs and beats, but for long."""
    UNKNOWN_TASK = "unknown_task"
    """It waits, and a worker that took it knows no such task."""
    LIMIT_REACHED = "limit_reached"
    """It waits for others of its task, whose limit is reached."""
    WAITING = "waiting"
    """It was due long ago and nobody claims it."""


@dataclass(frozen=True, slots=True)
class StuckTerms:
    """What counts as long.

    Args:
        running: of a job that runs and beats.
        waiting: of a job that is due.
    """

    running: timedelta = timedelta(hours=1)
    waiting: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class StuckJob:
    """One line of the report.

    Args:
        info: the job; without its arguments and its result.
        kind: why it is here.
        since: since when that is so.
        action: what to do, for people.
    """

    info: JobInfo
    kind: StuckKind
    since: datetime
    action: str

    @property
    def id(self) -> int:
        return self.info.id

    @property
    def worker(self) -> str | None:
        """Who holds the job, or held it last."""
        return self.info.worker

    @property
    def last_heartbeat(self) -> datetime | None:
        return self.info.heartbeat_at

    @property
    def for_how_long(self) -> timedelta:
        return max(timedelta(0), self.info.seen_at - self.since)


@dataclass(frozen=True, slots=True)
class StuckReport:
    """What is stuck, the worst kind first; ``is_capped`` where there may be more."""

    jobs: tuple[StuckJob, ...]
    is_capped: bool = False


def stuck_job(info: JobInfo, terms: StuckTerms, beside: int = 0) -> StuckJob | None:
    """Return what is the matter with a job; None where nothing is.

    Args:
        beside: jobs of its task that run, where the task has a limit.
    """
    match info.state:
        case JobState.PROCESSING:
            return _running(info, terms)
        case JobState.QUEUED:
            return _waiting(info, terms, beside)
        case JobState.FAILED if info.outcome is JobOutcome.UNKNOWN_OUTCOME:
            return StuckJob(
                info,
                StuckKind.UNKNOWN_OUTCOME,
                info.finished_at or info.seen_at,
                f"find out whether it was done: if not, `fencepost jobs retry {info.id}`; if so, leave it",
            )
        case _:
            return None


def _running(info: JobInfo, terms: StuckTerms) -> StuckJob | None:
    beat_at, ends_at, began_at = info.heartbeat_at, info.lease_expires_at, info.reserved_at
    if beat_at is None or ends_at is None or began_at is None:
        return None  # which the table does not allow
    if info.seen_at - ends_at > RECLAIM_PATIENCE:
        return StuckJob(
            info, StuckKind.EXPIRED, ends_at, "nobody takes it back: start a worker, `fencepost work MODULE:JOBS`"
        )
    if info.seen_at - beat_at > (ends_at - beat_at) / 2:
        return StuckJob(info, StuckKind.SILENT, beat_at, _of_silent(info, ends_at))
    if info.reclaim_count >= MANY_RECLAIMS:
        return _came_back(info, began_at, "watch it")
    if info.seen_at - began_at > terms.running:
        return StuckJob(
            info,
            StuckKind.LONG,
            began_at,
            f"wait, for its worker is alive; or `fencepost jobs cancel {info.id}`",
        )
    return None


def _of_silent(info: JobInfo, ends_at: datetime) -> str:
    if info.recovery is not Recovery.MANUAL and info.attempts < info.max_attempts:
        after = "it goes back to the queue"
    else:
        outcome = JobOutcome.CRASHED if info.recovery is Recovery.AUTO else JobOutcome.UNKNOWN_OUTCOME
        after = f"it fails ({outcome})"
    return f"its worker is frozen or cut off: {after} at {ends_at:%H:%M:%S} UTC"


def _waiting(info: JobInfo, terms: StuckTerms, beside: int) -> StuckJob | None:
    if info.reclaim_count >= MANY_RECLAIMS:
        return _came_back(info, info.job.due_at, "look at its worker's log before it is claimed again")
    no_task = KNOWS_NO_TASK in (info.last_error or "")
    if no_task and info.seen_at - info.job.created_at > terms.waiting:
        return StuckJob(
            info,
            StuckKind.UNKNOWN_TASK,
            info.job.created_at,
            f"start a worker that has task {info.job.task!r}, or `fencepost jobs cancel {info.id}`",
        )
    if info.seen_at - info.job.due_at <= terms.waiting:
        return None
    if beside:
        return StuckJob(
            info,
            StuckKind.LIMIT_REACHED,
            info.job.due_at,
            f"{beside} of its task {'runs' if beside == 1 else 'run'}: wait, or raise the task's max_running",
        )
    return StuckJob(
        info,
        StuckKind.WAITING,
        info.job.due_at,
        f"start workers for queue {info.job.queue!r}: none serves it, or all of them are busy",
    )


def _came_back(info: JobInfo, since: datetime, meanwhile: str) -> StuckJob:
    return StuckJob(
        info,
        StuckKind.CAME_BACK,
        since,
        f"its worker was lost {info.reclaim_count} times, it may crash them: {meanwhile}, "
        f"or `fencepost jobs cancel {info.id}`",
    )
