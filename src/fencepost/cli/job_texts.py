"""How a job is shown: as a row of a list, in full, or as something that is stuck."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from fencepost.cli.messages import shortened
from fencepost.cli.output import Cell, ago
from fencepost.core.job import JobInfo, JobStats
from fencepost.core.job_stuck import StuckJob

HEADERS = ("id", "status", "queue", "task", "attempts", "outcome", "worker", "since", "last_error")
STUCK_HEADERS = ("id", "kind", "since", "task", "queue", "worker", "last_heartbeat", "action")
STATS_HEADERS = ("queue", "queued", "due", "processing", "expired", "oldest")


def since(info: JobInfo) -> datetime:
    """Return since when a job is in its state: when it was finished or claimed, or from when on it is due."""
    return info.finished_at or info.reserved_at or info.job.due_at


def summary(info: JobInfo) -> dict[str, Any]:
    """Return what a list tells of a job, in the order of `HEADERS`."""
    return {
        "id": info.id,
        "status": info.state,
        "queue": info.job.queue,
        "task": info.job.task,
        "attempts": info.attempts,
        "outcome": info.outcome,
        "worker": info.worker,
        "since": since(info),
        "last_error": info.last_error,
    }


def row(info: JobInfo, *, ages: bool) -> list[Cell]:
    """Return a row of the list; on a terminal, where room is short, with times from now."""
    cells: list[Cell] = list(summary(info).values())
    if ages:
        cells[HEADERS.index("since")] = _from_now(info.seen_at - since(info))
    cells[-1] = shortened(info.last_error)
    return cells


def details(info: JobInfo) -> dict[str, Any]:
    """Return everything there is to tell."""
    job = info.job
    return {
        "id": job.id,
        "job_id": job.job_id,
        "status": info.state,
        "outcome": info.outcome,
        "queue": job.queue,
        "task": job.task,
        "key": job.key,
        "unique_key": job.unique_key,
        "attempts": info.attempts,
        "max_attempts": info.max_attempts,
        "recovery": info.recovery,
        "reclaim_count": info.reclaim_count,
        "fence": info.fence,
        "worker": info.worker,
        "created_at": job.created_at,
        "due_at": job.due_at,
        "reserved_at": info.reserved_at,
        "heartbeat_at": info.heartbeat_at,
        "lease_expires_at": info.lease_expires_at,
        "finished_at": info.finished_at,
        "headers": dict(job.headers),
        "args": json.dumps(job.args),
        "progress": None if info.progress is None else json.dumps(info.progress),
        "result": None if info.result is None else json.dumps(info.result),
        "last_error": info.last_error,
    }


def stuck_row(stuck: StuckJob, *, ages: bool) -> list[Cell]:
    """Return a row of the report, in the order of `STUCK_HEADERS`."""
    began, beat = stuck.since, stuck.last_heartbeat
    now = stuck.info.seen_at
    return [
        stuck.id,
        str(stuck.kind),
        _from_now(now - began) if ages else began,
        stuck.info.job.task,
        stuck.info.job.queue,
        stuck.worker,
        beat if beat is None or not ages else _from_now(now - beat),
        stuck.action,
    ]


def stuck_as_json(stuck: StuckJob) -> dict[str, Any]:
    """Return a stuck job for programs."""
    info = stuck.info
    return {
        "id": stuck.id,
        "kind": stuck.kind,
        "since": stuck.since,
        "for_seconds": stuck.for_how_long,
        "status": info.state,
        "task": info.job.task,
        "queue": info.job.queue,
        "worker": stuck.worker,
        "last_heartbeat": stuck.last_heartbeat,
        "lease_left_seconds": info.lease_left,
        "reclaim_count": info.reclaim_count,
        "last_error": info.last_error,
        "action": stuck.action,
    }


def stats_as_json(stats: JobStats) -> dict[str, Any]:
    """Return counts for programs."""
    return {
        "queues": [
            {
                "queue": each.queue,
                "queued": each.queued,
                "due": each.due,
                "processing": each.processing,
                "expired": each.expired,
                "oldest_age_seconds": each.oldest_age,
            }
            for each in stats.queues
        ],
        "failed_by_outcome": dict(stats.failed_by_outcome),
    }


def _from_now(age: timedelta) -> str:
    return f"in {ago(-age)}" if age < timedelta(0) else ago(age)
