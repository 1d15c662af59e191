"""What is compared: rows and results in one form, whichever store they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from fencepost.core.job import ClaimedJob, ReclaimedJob
from fencepost.core.records import Claimed

MINUTE = 60_000_000
"""Microseconds."""


class Seen(NamedTuple):
    """A message as it stands; instants in whole minutes from now."""

    id: int
    queue: str
    key: str | None
    number: int | None
    recovery: str
    status: str
    outcome: str | None
    attempts: int
    token: int
    reclaims: int
    owner: str | None
    due_in: int | None
    """None where it is parked or dead."""
    is_due: bool
    lease_left: int | None
    is_expired: bool
    closed: int | None
    error: str | None
    routed: bool


class SeenJob(NamedTuple):
    """A job as it stands; its token is left out, as it is drawn at random: what it lets happen tells it."""

    id: int
    queue: str
    task: str
    unique: str | None
    lane: str | None
    recovery: str
    max_attempts: int
    status: str
    outcome: str | None
    attempts: int
    fence: int
    reclaims: int
    owner: str | None
    due_in: int
    is_due: bool
    lease_left: int | None
    is_expired: bool
    since_beat: int | None
    closed: int | None
    progress: str | None
    result: str | None
    error: str | None


class Look(NamedTuple):
    """All messages and jobs, by id, and the ids of the open messages in the order in which they are served."""

    rows: tuple[Seen, ...]
    order: tuple[int, ...]
    jobs: tuple[SeenJob, ...] = ()


class Rest(NamedTuple):
    """What stands in the other tables."""

    queues: tuple[Any, ...]
    keys: tuple[Any, ...]
    inbox: tuple[Any, ...]
    numbers: tuple[Any, ...]
    fences: tuple[Any, ...]
    audit: tuple[Any, ...]
    job_audit: tuple[Any, ...]
    schedules: tuple[Any, ...]
    attempts: tuple[Any, ...]
    """Kind, row, token, queue, attempt, worker, result, error, whether its lease was lost."""


_OWN_BUSINESS = frozenset(["lowest"])
"""Fields of results that are not compared."""


def minutes(microseconds: int) -> int:
    """Return a span in whole minutes, to the nearest."""
    return round(microseconds / MINUTE)


def plain(result: Any) -> Any:
    """Return what an operation returned, with spans in whole minutes, and without a store's own business."""
    form = _FORMS.get(type(result))
    if form is not None:
        return form(result)
    if isinstance(result, Enum):
        return result.name
    if is_dataclass(result) and not isinstance(result, type):
        names = (each.name for each in fields(result) if each.name not in _OWN_BUSINESS and each.name[0] != "_")
        return {name: plain(getattr(result, name)) for name in names}
    if isinstance(result, dict):
        return {plain(key): plain(value) for key, value in result.items()}
    if isinstance(result, (set, frozenset)):
        return sorted(result)
    if isinstance(result, Iterable) and not isinstance(result, (str, bytes)):
        return _plain_list(list(result))
    return result


def _plain_list(found: list[Any]) -> list[Any]:
    if all(isinstance(each, ReclaimedJob) for each in found):
        found.sort(key=lambda each: each.id)  # what was taken back has no order of its own
    return [plain(each) for each in found]


def _plain_message(claimed: Claimed) -> tuple[Any, ...]:
    message = claimed.message
    return (
        *("claimed", claimed.id, message.message_id_text, message.queue, message.ordering_key, message.payload),
        *(message.key_sequence, claimed.token, claimed.attempt, claimed.max_attempts, str(claimed.recovery)),
        *(minutes(claimed.age_microseconds), claimed.reclaim_count, claimed.owner, claimed.routed),
        claimed.ledger,
    )


def _plain_job(claimed: ClaimedJob) -> tuple[Any, ...]:
    job = claimed.job
    return (
        *("claimed", claimed.id, str(job.job_id), job.queue, job.task, job.args, job.unique_key, job.key),
        *(claimed.fence, claimed.attempt, claimed.max_attempts, str(claimed.recovery), plain(claimed.lease)),
        *(minutes(claimed.age_microseconds), claimed.reclaim_count, claimed.owner, claimed.ledger),
    )


def _plain_reclaimed(job: ReclaimedJob) -> tuple[Any, ...]:
    return "reclaimed", job.id, job.task, job.state, job.outcome, job.worker, job.attempt


_FORMS: Mapping[type, Callable[[Any], Any]] = {
    Claimed: _plain_message,
    ClaimedJob: _plain_job,
    ReclaimedJob: _plain_reclaimed,
    datetime: lambda _: "an instant",
    timedelta: lambda span: minutes(span // timedelta(microseconds=1)),
}
