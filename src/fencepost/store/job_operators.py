"""What operators ask about jobs and do to them, as operations; every change is audited.

A change follows `fencepost.core.job_states.JOB_TRANSITIONS` and gives its row a token that nobody has, so that
whoever holds the job finds its lease lost.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost.core.error_text import storable
from fencepost.core.job import (
    KNOWS_NO_TASK,
    JobChanges,
    JobInfo,
    JobPage,
    JobQueueStats,
    JobStats,
    parsed,
)
from fencepost.core.job_states import JobOutcome, JobState
from fencepost.core.job_stuck import MANY_RECLAIMS, StuckJob, StuckKind, StuckReport, StuckTerms, stuck_job
from fencepost.core.operation import Operation, Row
from fencepost.core.records import instant
from fencepost.core.states import Recovery
from fencepost.errors import ConfigError
from fencepost.store.catalog import Catalog
from fencepost.store.jobs import JOB_COLUMNS, QUEUES_PER_LOOK, stored_job
from fencepost.store.limits import MAX_BATCH, seconds

SECTIONS: Mapping[JobState, tuple[str, ...]] = {
    JobState.PROCESSING: ("processing",),
    JobState.QUEUED: ("ready", "lanes", "suspects"),
    JobState.FAILED: ("failed",),
    JobState.DONE: ("done",),
}
"""The parts of a list, each read in the order of an index of its own."""

STUCK_WINDOW = 1_000
"""Rows at the front of an index that a report of stuck jobs looks at."""

MAX_FOUND = 10_000
"""Jobs of each kind that a report of stuck jobs has at most."""

INFO_COLUMNS = JOB_COLUMNS + 16

_Place = tuple[str, str, str, str, str, int]
"""Where a page begins: its section, then queue, task, lane, instant and id of the row before."""


# --- looking -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs; None for all of them."""

    state: JobState | None = None
    queue: str | None = None
    task: str | None = None
    outcome: JobOutcome | None = None

    @property
    def sections(self) -> list[str]:
        """The parts of the list that can hold such jobs."""
        states = list(SECTIONS) if self.state is None else [self.state]
        if self.outcome is not None:
            finished = JobState.DONE if self.outcome is JobOutcome.COMPLETED else JobState.FAILED
            states = [each for each in states if each is finished]
        return [section for state in states for section in SECTIONS[state]]


def list_jobs(catalog: Catalog, which: JobFilter, *, after: str | None, limit: int) -> Operation[JobPage]:
    """Return a page of jobs, without their arguments: what runs, what is queued, what failed, what is done.

    Raises:
        ConfigError: ``after`` is no place in this list.
    """
    limit = min(limit, MAX_BATCH)
    sections = which.sections
    place = _start(sections[0]) if after is None and sections else _place(after, sections)
    found: list[JobInfo] = []
    for section in sections[sections.index(place[0]) :] if sections else []:
        if section != place[0]:
            place = _start(section)
        # One more than asked for, to know whether there are more.
        rows = yield catalog.statement(f"job_list_{section}", _page_params(which, place, limit + 1 - len(found)))
        page = [_info(row) for row in rows]
        found += page
        if len(found) > limit:
            found = found[:limit]
            last = found[-1] if len(page) > 1 else None
            return JobPage(tuple(found), _cursor(place if last is None else _behind(section, last)))
    return JobPage(tuple(found))


def _page_params(which: JobFilter, place: _Place, limit: int) -> dict[str, Any]:
    section, queue, task, lane, at, row_id = place
    params: dict[str, Any] = {"queue": which.queue, "task": which.task, "limit": limit, "after_id": row_id}
    if section in ("failed", "done"):
        return params | {"after_at": at, "outcome": None if which.outcome is None else str(which.outcome)}
    if section in ("ready", "suspects"):
        return params | {"after_queue": queue, "after_at": at}
    if section == "lanes":
        return params | {"after_queue": queue, "after_task": task, "after_lane": lane, "after_at": at}
    return params


def _start(section: str) -> _Place:
    return (section, "", "", "", "-infinity", 0)


def _behind(section: str, info: JobInfo) -> _Place:
    job = info.job
    at = job.due_at if info.finished_at is None else info.finished_at
    return (section, job.queue, job.task, job.key or "", at.isoformat(), job.id)


def _cursor(place: _Place) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _place(cursor: str | None, sections: Sequence[str]) -> _Place:
    if cursor is None:
        return _start("")
    try:
        section, queue, task, lane, at, row_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        place = (str(section), str(queue), str(task), str(lane), str(at), int(row_id))
        is_one = section in sections and (at == "-infinity" or bool(datetime.fromisoformat(at)))
    except (ValueError, TypeError):
        is_one = False
    if not is_one:
        raise ConfigError("after: no place in this list: take it from the page before, with the same filters")
    return place


def show(catalog: Catalog, identity: int | UUID) -> Operation[JobInfo | None]:
    """Return one job with everything, by row id or by job id (which has no index); None where there is none."""
    if isinstance(identity, UUID):
        rows = yield catalog.statement("job_show_by_job_id", {"job_id": str(identity)})
    else:
        rows = yield catalog.statement("job_show", {"id": identity})
    return _info(rows[0]) if rows else None


def _info(row: Row) -> JobInfo:
    status, outcome, attempts, max_attempts, recovery, reclaims, fence, worker = row[JOB_COLUMNS : JOB_COLUMNS + 8]
    reserved, beat, lease, progress, last_error, finished, seen, result = row[JOB_COLUMNS + 8 : INFO_COLUMNS]
    return JobInfo(
        job=stored_job(row),
        state=JobState(status),
        outcome=None if outcome is None else JobOutcome(outcome),
        attempts=attempts,
        max_attempts=max_attempts,
        recovery=Recovery(recovery),
        reclaim_count=reclaims,
        fence=fence,
        worker=worker,
        reserved_at=None if reserved is None else instant(reserved),
        heartbeat_at=None if beat is None else instant(beat),
        lease_expires_at=None if lease is None else instant(lease),
        progress=parsed(progress),
        last_error=last_error,
        finished_at=None if finished is None else instant(finished),
        seen_at=instant(seen),
        result=parsed(result),
    )


def stats(catalog: Catalog) -> Operation[JobStats]:
    """Count the open jobs by queue, and the failed ones by outcome."""
    queues = yield catalog.statement("job_stats_queues")
    failed = yield catalog.statement("job_stats_failed")
    return JobStats(
        tuple(_queue_stats(row) for row in queues),
        {row[0]: row[1] for row in failed},
    )


def _queue_stats(row: Row) -> JobQueueStats:
    queue, queued, due, processing, expired, oldest = row
    return JobQueueStats(queue, queued, due, processing, expired, _span(oldest))


def _span(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else timedelta(microseconds=microseconds)


# --- what is stuck -------------------------------------------------------------------------------------


def stuck(catalog: Catalog, terms: StuckTerms, *, limit: int) -> Operation[StuckReport]:
    """Return what is stuck: of what is in flight, and of bounded fronts of what is queued and what failed.

    Args:
        limit: how many of each kind at most.
    """
    limit = min(limit, MAX_FOUND)
    running = {"running": seconds(terms.running), "reclaims": MANY_RECLAIMS, "limit": limit + 1}
    waiting = {
        "waiting": seconds(terms.waiting),
        "no_task": KNOWS_NO_TASK,
        "window": STUCK_WINDOW,
        "limit": limit + 1,
    }
    answers = [(yield catalog.statement("job_stuck_running", running))]
    names = yield catalog.statement("job_queues", {"limit": QUEUES_PER_LOOK})
    if names:
        queues = {"queues": [name for (name,) in names]}
        answers.append((yield catalog.statement("job_stuck_waiting", waiting | queues)))
        answers.append((yield catalog.statement("job_stuck_lanes", waiting)))
        answers.append(
            (yield catalog.statement("job_stuck_suspects", waiting | queues | {"reclaims": MANY_RECLAIMS}))
        )
    answers.append((yield catalog.statement("job_stuck_unknown", {"window": STUCK_WINDOW, "limit": limit + 1})))
    found = [
        each
        for rows in answers
        for row in rows[:limit]
        if (each := stuck_job(_info(row), terms, row[INFO_COLUMNS])) is not None
    ]
    return StuckReport(tuple(sorted(found, key=_worst_first)), any(len(rows) > limit for rows in answers))


_KINDS = list(StuckKind)


def _worst_first(each: StuckJob) -> tuple[Any, ...]:
    return (_KINDS.index(each.kind), each.since, each.id)


# --- changing ------------------------------------------------------------------------------------------


def retry(
    catalog: Catalog, ids: Sequence[int], *, actor: str, reason: str | None, notify: bool
) -> Operation[JobChanges]:
    """Put failed jobs back to their queues, with all their attempts.

    Refused is what is not failed, and what has a unique key that an open job of its task has. (Where that one is
    enqueued in the same instant, the database's unique index ends the transaction instead.)
    """
    rows = yield catalog.statement("job_retry", _audited(ids, actor, reason))
    if rows and notify:
        yield catalog.statement("notify", {"channel": catalog.names.job_channel})
    return (yield from _changes(catalog, ids, rows, JobState.FAILED))


def cancel(catalog: Catalog, ids: Sequence[int], *, actor: str, reason: str | None) -> Operation[JobChanges]:
    """End open jobs as cancelled. The worker of one that runs finds its lease lost at its next heartbeat."""
    return (yield from _end(catalog, ids, JobOutcome.CANCELLED, "cancel", actor, reason))


def fail(catalog: Catalog, ids: Sequence[int], *, actor: str, reason: str) -> Operation[JobChanges]:
    """End open jobs as failed, by hand; otherwise as `cancel`."""
    return (yield from _end(catalog, ids, JobOutcome.FAILED, "fail", actor, reason))


def _end(
    catalog: Catalog, ids: Sequence[int], outcome: JobOutcome, action: str, actor: str, reason: str | None
) -> Operation[JobChanges]:
    text = f"{outcome} by {actor}" + (f": {reason}" if reason else "")
    params = {"outcome": str(outcome), "action": action, "error": storable(text)}
    rows = yield catalog.statement("job_end", _audited(ids, actor, reason) | params)
    return (yield from _changes(catalog, ids, rows, JobState.QUEUED, JobState.PROCESSING))


def _changes(
    catalog: Catalog, ids: Sequence[int], rows: Sequence[Row], *needed: JobState
) -> Operation[JobChanges]:
    changed = {row[0] for row in rows}
    left = sorted(set(ids) - changed)
    if not left:
        return JobChanges(tuple(sorted(changed)))
    rows = yield catalog.statement("job_refused", {"ids": left})
    found = {row[0]: row for row in rows}
    return JobChanges(tuple(sorted(changed)), {each: _refusal(found.get(each), needed) for each in left})


def _refusal(row: Row | None, needed: Sequence[JobState]) -> str:
    if row is None:
        return "it is not there"
    _, status, outcome, unique_key, open_id = row
    if status in needed:
        if JobState.FAILED in needed and open_id is not None:
            return f"its unique key {unique_key!r} belongs to job {open_id}, which is open"
        return "somebody else changed it just now"
    return f"it is {status}" + (f" ({outcome})" if outcome else "")


def _audited(ids: Sequence[int], actor: str, reason: str | None) -> dict[str, Any]:
    return {"ids": list(ids), "actor": storable(actor), "reason": None if reason is None else storable(reason)}
