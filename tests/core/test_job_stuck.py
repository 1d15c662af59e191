"""Which jobs are stuck, and what to do about each."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from fencepost.core.job import KNOWS_NO_TASK, Job, JobInfo
from fencepost.core.job_states import FAILED_OUTCOMES, JobOutcome, JobState
from fencepost.core.job_stuck import StuckKind, StuckTerms, stuck_job
from fencepost.core.states import Recovery

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
TERMS = StuckTerms(running=timedelta(hours=1), waiting=timedelta(minutes=5))


def before(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def job(age: float = 7200, due: float = 7200) -> Job:
    return Job(7, uuid4(), "mail", "send", None, {}, before(age), before(due))


def info(**changes: Any) -> JobInfo:
    return replace(
        JobInfo(
            job=job(),
            state=JobState.QUEUED,
            outcome=None,
            attempts=1,
            max_attempts=3,
            recovery=Recovery.AUTO,
            reclaim_count=0,
            fence=1,
            worker=None,
            reserved_at=None,
            heartbeat_at=None,
            lease_expires_at=None,
            progress=None,
            last_error=None,
            finished_at=None,
            seen_at=NOW,
        ),
        **changes,
    )


def running(beat: float, lease: float = 60, began: float | None = None, **changes: Any) -> JobInfo:
    """A job whose last heartbeat was so many seconds ago."""
    return info(
        state=JobState.PROCESSING,
        worker="w1",
        reserved_at=before(beat if began is None else began),
        heartbeat_at=before(beat),
        lease_expires_at=before(beat) + timedelta(seconds=lease),
        **changes,
    )


CASES: dict[str, tuple[JobInfo, StuckKind | None, float, str]] = {
    "it runs and beats": (running(20, began=3000), None, 0, ""),
    "half of its lease is over": (
        running(31, began=40),
        StuckKind.SILENT,
        31,
        "goes back to the queue at 12:00:29",
    ),
    "its lease is just over": (running(62), StuckKind.SILENT, 62, "goes back to the queue at 11:59:58"),
    "nobody reclaims it": (running(66), StuckKind.EXPIRED, 6, "fencepost work MODULE:JOBS"),
    "manual": (running(40, recovery=Recovery.MANUAL), StuckKind.SILENT, 40, "it fails (unknown_outcome)"),
    "verify": (running(40, recovery=Recovery.VERIFY), StuckKind.SILENT, 40, "goes back to the queue"),
    "its last attempt": (running(40, max_attempts=1), StuckKind.SILENT, 40, "it fails (crashed)"),
    "its last, verify": (
        running(40, max_attempts=1, recovery=Recovery.VERIFY),
        StuckKind.SILENT,
        40,
        "it fails (unknown_outcome)",
    ),
    "it runs for long": (running(5, began=3601), StuckKind.LONG, 3601, "wait, for its worker is alive"),
    "it runs again": (running(5, began=9, reclaim_count=2), StuckKind.CAME_BACK, 9, "jobs cancel 7"),
    "once is nothing": (running(5, reclaim_count=1), None, 0, ""),
    "it was due long ago": (info(), StuckKind.WAITING, 7200, "start workers for queue 'mail'"),
    "it is due for a while": (info(job=job(due=299)), None, 0, ""),
    "it is due later": (info(job=job(due=-60)), None, 0, ""),
    "its lane is full": (info(), StuckKind.LIMIT_REACHED, 7200, "2 of its task run: wait"),
    "it waits again": (info(reclaim_count=3), StuckKind.CAME_BACK, 7200, "its worker was lost 3 times"),
    "nobody knows its task": (
        info(job=job(due=-5), last_error=f"worker w{KNOWS_NO_TASK}'send': given back"),
        StuckKind.UNKNOWN_TASK,
        7200,
        "start a worker that has task 'send'",
    ),
    "nobody knows its task yet": (
        info(job=job(age=60, due=-5), last_error=f"worker w{KNOWS_NO_TASK}'send': given back"),
        None,
        0,
        "",
    ),
    "nobody knows what it did": (
        info(state=JobState.FAILED, outcome=JobOutcome.UNKNOWN_OUTCOME, finished_at=before(100)),
        StuckKind.UNKNOWN_OUTCOME,
        100,
        "fencepost jobs retry 7",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_the_matter_and_what_to_do(case: str) -> None:
    seen, kind, since, action = CASES[case]
    found = stuck_job(seen, TERMS, beside=2 if case == "its lane is full" else 0)
    if kind is None:
        assert found is None
        return
    assert found is not None
    assert (found.kind, found.for_how_long) == (kind, timedelta(seconds=since))
    assert action in found.action
    assert (found.id, found.worker, found.last_heartbeat) == (7, seen.worker, seen.heartbeat_at)


@pytest.mark.parametrize("outcome", sorted(FAILED_OUTCOMES - {JobOutcome.UNKNOWN_OUTCOME}))
def test_what_failed_for_a_reason_is_not_stuck(outcome: JobOutcome) -> None:
    assert stuck_job(info(state=JobState.FAILED, outcome=outcome, finished_at=NOW), TERMS) is None


def test_what_is_done_is_not_stuck() -> None:
    done = info(state=JobState.DONE, outcome=JobOutcome.COMPLETED, finished_at=before(9999), reclaim_count=5)
    assert stuck_job(done, TERMS) is None


def test_every_kind_is_found() -> None:
    assert {kind for _, kind, _, _ in CASES.values()} - {None} == set(StuckKind)


def test_a_running_job_without_its_instants_is_left_to_the_table_s_own_checks() -> None:
    assert stuck_job(info(state=JobState.PROCESSING, reserved_at=None), TERMS, beside=0) is None


def test_the_rest_of_a_lease_is_known_where_there_is_one() -> None:
    assert info().lease_left is None
    assert info(lease_expires_at=before(2)).lease_left == timedelta(seconds=-2)
