"""What travels between the store and everybody else. All frozen; all instants are aware, in UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost.core.states import Outcome, Recovery, State

REPLAY_OF_HEADER = "replay-of"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(microseconds: int) -> datetime:
    """Return the instant that lies ``microseconds`` after 1970-01-01T00:00Z.

    The stores send instants as whole numbers, so that no session setting (time zone, date style) and no
    driver can bend them.
    """
    return EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True, slots=True)
class Message:
    """A committed event, byte for byte as it was enqueued."""

    id: int
    message_id: UUID
    queue: str
    event_type: str
    aggregate_type: str | None
    aggregate_id: str | None
    ordering_key: str | None
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    created_at: datetime
    key_sequence: int | None = None
    """The number of this message within its ordering key, without a gap, in queues that count (``sequenced``)."""

    def json(self) -> Any:
        """Return the payload parsed as JSON.

        Raises:
            ValueError: the payload is not JSON (it was enqueued as bytes).
        """
        return json.loads(self.payload)

    @property
    def replay_of(self) -> str | None:
        """The message id that an operator replayed into this message, if any."""
        return self.headers.get(REPLAY_OF_HEADER)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message under our lease. ``token`` (``lease_version``) is what every later write is fenced by."""

    message: Message
    token: int
    attempt: int
    max_attempts: int
    recovery: Recovery
    lease: timedelta
    age: timedelta
    """Time since ``created_at`` when it was claimed, by the database's clock."""
    reclaim_count: int = 0
    """How often this message was taken over from an expired lease; above 0 it is a crash suspect."""
    owner: str = ""

    @property
    def id(self) -> int:
        return self.message.id


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The receipt of an enqueue; ``created`` is False where a dedupe key found the message already there."""

    id: int
    message_id: UUID
    created: bool


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A dead message, or any other one that an operator looks at."""

    message: Message
    status: State
    outcome: Outcome | None
    attempts: int
    reclaim_count: int
    token: int
    lease_owner: str | None
    last_error: str | None
    dead_at: datetime | None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The open messages of one queue."""

    queue: str
    pending: int
    processing: int
    blocked: int
    dead: int
    expired: int
    """Leased messages whose lease has ended and that nobody has taken over yet."""
    oldest_age: timedelta | None
    """Time since the oldest undelivered message (dead ones left out) became due: the first thing to alarm on."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The outbox at one instant."""

    queues: tuple[QueueStats, ...]
    dead_by_outcome: Mapping[str, int]
    done: int
    """Delivered and skipped messages still kept, counted up to ``DONE_COUNT_CAP``."""
    done_is_capped: bool
    workers: Mapping[str, int] = field(default_factory=dict)
    """Live leases by owner."""

    def total(self, column: str) -> int:
        """Return the sum of one count (``pending``, ``processing``, ``blocked``, ``dead``, ``expired``)."""
        return sum(int(getattr(queue, column)) for queue in self.queues)

    @property
    def oldest_age(self) -> timedelta | None:
        return max((q.oldest_age for q in self.queues if q.oldest_age is not None), default=None)
