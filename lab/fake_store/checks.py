"""The tables' own checks, as far as a state can be impossible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from fencepost.core.job_states import JobOutcome, JobState
from fencepost.core.states import DEAD_OUTCOMES, DONE_OUTCOMES
from lab.fake_store.rows import FAR, JOB, OUTBOX, JobRow, OutboxRow, Table

_IS_POSSIBLE: Mapping[str, Callable[[OutboxRow], bool]] = {
    "pending": lambda row: (
        _is_unheld(row) and row.outcome is None and row.dead_at is None and row.available_at < FAR
    ),
    "processing": lambda row: (
        row.lease_until is not None
        and row.lease_owner is not None
        and row.lease_version > 0
        and row.attempts > 0
        and row.outcome is None
        and row.done_at is None
        and row.dead_at is None
        and row.available_at < FAR
    ),
    "blocked": lambda row: (
        _is_unheld(row)
        and row.outcome is None
        and row.dead_at is None
        and row.available_at == FAR
        and row.ordering_key is not None
    ),
    "done": lambda row: row.lease_until is None and row.done_at is not None and row.outcome in DONE_OUTCOMES,
    "dead": lambda row: (
        _is_unheld(row) and row.dead_at is not None and row.available_at == FAR and row.outcome in DEAD_OUTCOMES
    ),
}


def _is_unheld(row: OutboxRow) -> bool:
    return row.lease_until is None and row.done_at is None


def check_message(row: OutboxRow) -> None:
    """Refuse an impossible message.

    Raises:
        CheckViolation: as the table would.
    """
    if not _IS_POSSIBLE[row.status](row) or row.attempts < 0:
        raise psycopg.errors.CheckViolation(f"an impossible message: {row}")


def check_job(row: JobRow) -> None:
    """Refuse an impossible job.

    Raises:
        CheckViolation: as the table would.
    """
    is_leased = row.reserved_at is not None and row.lease_expires_at is not None
    is_free = row.reserved_at is None and row.lease_expires_at is None
    is_open = row.outcome is None and row.finished_at is None
    match row.status:
        case JobState.QUEUED:
            fine = is_free and is_open
        case JobState.PROCESSING:
            fine = is_leased and is_open and row.attempt_token is not None and row.attempts > 0 and row.fence > 0
        case JobState.DONE:
            fine = is_free and row.finished_at is not None and row.outcome == JobOutcome.COMPLETED
        case _:
            fine = is_free and row.finished_at is not None and row.outcome not in (None, JobOutcome.COMPLETED)
    if not fine or row.attempts < 0:
        raise psycopg.errors.CheckViolation(f"an impossible job: {row}")


CHECKS: Mapping[Table[Any], Callable[[Any], None]] = {OUTBOX: check_message, JOB: check_job}
