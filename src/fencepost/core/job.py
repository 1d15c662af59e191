"""A job: what it is before it is enqueued, with every check, and what travels once it is there. All frozen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

from fencepost.core.draft import (
    MAX_DEDUPE_KEY_BYTES,
    MAX_EVENT_TYPE_BYTES,
    checked_available_at,
    checked_delay,
    checked_headers,
    checked_queue,
    checked_recovery,
    json_text,
)
from fencepost.core.job_states import JobOutcome, JobState
from fencepost.core.records import StoredRow, instant
from fencepost.core.states import Recovery
from fencepost.core.text import checked_text, utf8
from fencepost.errors import InvalidMessage

MAX_TASK_BYTES = MAX_EVENT_TYPE_BYTES
MAX_UNIQUE_KEY_BYTES = MAX_DEDUPE_KEY_BYTES
MAX_KEY_BYTES = 1024
MAX_ARGS_BYTES = 1024 * 1024
MAX_RESULT_BYTES = 1024 * 1024
MAX_PROGRESS_BYTES = 4096
MAX_ATTEMPTS = 1_000_000

SCHEDULED_FOR = "scheduled-for"
"""The header that holds the instant of the tick that a job was enqueued for, ISO 8601 in UTC."""

KNOWS_NO_TASK = " knows no task "
"""What stands in the error of a job that was given back by a worker that does not know its task."""


class JobOptions(TypedDict, total=False):
    """The optional arguments of ``Jobs.enqueue``.

    Args:
        queue: another one than the task's own; a worker takes its queues in the order of their priority.
        delay: time until it is due, counted by the database; or ``available_at``, an aware instant.
        unique_key: at most one open job of the task has it; a repeat finds that one.
        key: what the task's limit for each key (``max_running_per_key``) counts by.
        max_attempts, recovery: other ones than the task's own.
        job_id: the stable id; drawn at random where left out.
        headers: text to text; handlers see them.
    """

    queue: str | None
    delay: timedelta | None
    available_at: datetime | None
    unique_key: str | None
    key: str | None
    max_attempts: int | None
    recovery: str | None
    job_id: UUID | None
    headers: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A checked job, ready to be inserted."""

    job_id: UUID
    queue: str
    task: str
    args: str
    headers: str
    unique_key: str | None
    lane: str | None
    recovery: Recovery
    max_attempts: int
    available_at: str | None
    """ISO 8601 with its offset, or None."""
    delay: float
    """Seconds from the database's own "now"; used where ``available_at`` is None."""


def job_draft(
    task: str,
    args: Any,
    job_id: UUID,
    *,
    queue: str,
    lane: str | None,
    recovery: str,
    max_attempts: int,
    options: JobOptions,
) -> JobDraft:
    """Check one job and encode its arguments and headers.

    Args:
        task: its name.
        args: anything that JSON can hold, or JSON text already (`fencepost.JsonText`).
        queue, recovery, max_attempts: what holds for it, the task's own or the options'.
        lane: the key that its limit counts by, empty where it is the task's own; None where it has no limit.

    Raises:
        InvalidMessage: what is wrong, with the argument and the limit named.
    """
    if not isinstance(job_id, UUID):
        raise InvalidMessage(f"job_id must be a uuid.UUID, not {type(job_id).__name__}")
    unique_key = options.get("unique_key")
    return JobDraft(
        job_id=job_id,
        queue=checked_queue(queue),
        task=checked_task(task),
        args=_small_json("args", args, MAX_ARGS_BYTES),
        headers=checked_headers(options.get("headers")),
        unique_key=None if unique_key is None else checked_text("unique_key", unique_key, MAX_UNIQUE_KEY_BYTES),
        lane=checked_text("key", lane, MAX_KEY_BYTES) if lane else lane,
        recovery=checked_recovery(recovery),
        max_attempts=checked_attempts(max_attempts),
        available_at=checked_available_at(options.get("available_at"), options.get("delay")),
        delay=checked_delay(options.get("delay")),
    )


def checked_task(name: object) -> str:
    """Return the name of a task, of 1 to 255 bytes; see `checked_text`."""
    return checked_text("task", name, MAX_TASK_BYTES)


def checked_attempts(value: object) -> int:
    """Return a limit of attempts.

    Raises:
        InvalidMessage: it is no whole number from 1 to 1,000,000.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ATTEMPTS:
        raise InvalidMessage(f"max_attempts must be a whole number from 1 to {MAX_ATTEMPTS}, not {value!r}")
    return int(value)


def result_json(value: Any) -> str:
    """Return what a handler returned as JSON text, to be kept.

    Raises:
        InvalidMessage: JSON cannot hold it, or it has more than 1 MiB.
    """
    return _small_json("result", value, MAX_RESULT_BYTES)


def progress_json(value: Any) -> str:
    """Return how far a job has come as JSON text.

    Raises:
        InvalidMessage: JSON cannot hold it, or it has more than 4 KiB.
    """
    return _small_json("progress", value, MAX_PROGRESS_BYTES)


def _small_json(name: str, value: Any, limit: int) -> str:
    text = json_text(value, name)
    size = len(utf8(name, text))
    if size > limit:
        raise InvalidMessage(f"{name} has {size} bytes as JSON, more than the limit of {limit}")
    return text


@dataclass(frozen=True, slots=True)
class Job:
    """A committed job, as its handler sees it.

    Args:
        id: its row.
        job_id: the stable id: the idempotency key of whatever the handler does outside.
        queue: the queue that it was taken from.
        task: the name of its task.
        args: its arguments, of the type that the task declares, or as JSON has them.
        headers: text to text.
        created_at: when it was enqueued.
        due_at: when it was due last.
        unique_key: its unique key.
        key: what its limit counts by.
    """

    id: int
    job_id: UUID
    queue: str
    task: str
    args: Any
    headers: Mapping[str, str]
    created_at: datetime
    due_at: datetime
    unique_key: str | None = None
    key: str | None = None
    _row: StoredRow | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def stored(cls, row: StoredRow) -> Job:
        """Make a job of a store's row, each field of it decoded when it is first asked for.

        Of the thousands of jobs a second, hardly one is asked for everything.
        """
        job: Job = object.__new__(cls)
        _set_row(job, row)
        _set_id(job, row[0])
        _set_task(job, row[3])
        return job

    def with_args(self, args: Any) -> Job:
        """Return this job with arguments of the type that its task declares."""
        if self._row is None:
            return replace(self, args=args)
        job = Job.stored(self._row)
        _set_args(job, args)
        return job

    def __getattr__(self, name: str) -> Any:
        """Decode a field that is not there yet."""
        decode = _DECODERS.get(name)
        if decode is None or self._row is None:
            raise AttributeError(f"a job has no {name!r}")
        value = decode(self._row)
        object.__setattr__(self, name, value)
        return value

    @property
    def scheduled_for(self) -> datetime | None:
        """The tick of its schedule; None where it is of none."""
        try:
            tick = datetime.fromisoformat(self.headers.get(SCHEDULED_FOR, ""))
        except ValueError:
            return None  # a header of somebody else's
        return tick if tick.tzinfo is not None else None


_set_row, _set_id, _set_task, _set_args = (getattr(Job, name).__set__ for name in ("_row", "id", "task", "args"))

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_DECODERS: Mapping[str, Callable[[StoredRow], Any]] = {
    "job_id": lambda row: UUID(row[1]),
    "queue": lambda row: row[2],
    "args": lambda row: json.loads(row[4]),
    "headers": lambda row: _NO_HEADERS if row[5] == "{}" else MappingProxyType(json.loads(row[5])),
    "created_at": lambda row: instant(row[6]),
    "due_at": lambda row: instant(row[7]),
    "unique_key": lambda row: row[8],
    "key": lambda row: row[9] or None,
}
"""The columns of a job as a store sends them; what a statement adds comes behind."""


class ClaimedJob(NamedTuple):
    """A job under our lease. ``token`` is what every later write is fenced by; it is new on every claim."""

    job: Job
    args_json: str
    token: str
    fence: int
    """Rises with every claim and never falls: a receiver can refuse an older holder by it."""
    attempt: int
    max_attempts: int
    recovery: Recovery
    lease: timedelta
    age_microseconds: int
    reclaim_count: int
    owner: str
    ledger: bool = False
    """Its attempts are written down."""

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def may_be_repeat(self) -> bool:
        """Whether somebody held it before, so that its effect may be there."""
        return self.fence > 1

    @property
    def is_to_verify(self) -> bool:
        """Whether its verifier is asked first, as an earlier attempt may have had its effect.

        The attempt tells, not the fence: an operator's retry begins anew, since a person has decided then.
        """
        return self.recovery is Recovery.VERIFY and self.attempt > 1

    @property
    def age(self) -> timedelta:
        """Time since it was enqueued when it was claimed, by the database's clock."""
        return timedelta(microseconds=self.age_microseconds)


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """The receipt of an enqueue; ``created`` is False where an open job has the unique key already."""

    id: int
    job_id: UUID
    created: bool


@dataclass(frozen=True, slots=True)
class ReclaimedJob:
    """A job whose lease had expired: back in its queue, or failed."""

    id: int
    task: str
    state: JobState
    outcome: JobOutcome | None
    worker: str
    attempt: int
    token: str


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as an operator sees it; lists leave out ``job.args`` and ``result``."""

    job: Job
    state: JobState
    outcome: JobOutcome | None
    attempts: int
    max_attempts: int
    recovery: Recovery
    reclaim_count: int
    fence: int
    worker: str | None
    """Who holds it, or held it last."""
    reserved_at: datetime | None
    heartbeat_at: datetime | None
    lease_expires_at: datetime | None
    progress: Any
    last_error: str | None
    finished_at: datetime | None
    seen_at: datetime
    """When it was so, by the database's clock."""
    result: Any = None

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def lease_left(self) -> timedelta | None:
        """Time until the lease ends; negative where it has ended."""
        return None if self.lease_expires_at is None else self.lease_expires_at - self.seen_at


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs of a list; ``after`` is where to go on, None at its end."""

    jobs: tuple[JobInfo, ...]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class JobChanges:
    """What an operator's action changed, by id, and what it left alone, with the reason."""

    changed: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobQueueStats:
    """The open jobs of one queue."""

    queue: str
    queued: int
    due: int
    processing: int
    expired: int
    oldest_age: timedelta | None
    """Time since the oldest queued job became due."""


@dataclass(frozen=True, slots=True)
class JobStats:
    """The jobs at one instant."""

    queues: tuple[JobQueueStats, ...]
    failed_by_outcome: Mapping[str, int] = field(default_factory=dict)


def parsed(text: str | None) -> Any:
    """Return what a JSON column holds."""
    return None if text is None else json.loads(text)
