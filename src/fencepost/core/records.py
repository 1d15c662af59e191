"""What travels between the store and everybody else. All frozen; all instants are aware, in UTC."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from fencepost.core.draft import BYTES_CONTENT_TYPE, JSON_CONTENT_TYPE
from fencepost.core.states import Outcome, Recovery, State

REPLAY_OF_HEADER = "replay-of"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(microseconds: int) -> datetime:
    """Return the instant that lies ``microseconds`` after 1970-01-01T00:00Z.

    The stores send instants as whole numbers, so that no session setting (time zone, date style) and no
    driver can bend them.
    """
    return EPOCH + timedelta(microseconds=microseconds)


STORED_COLUMNS = 13
"""How many columns of a message a store sends, in the order of `_DECODERS`; what a statement adds comes behind."""

StoredRow = Sequence[Any]


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
    _row: StoredRow | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def stored(cls, row: StoredRow) -> Message:
        """Make a message of a store's row, each field of it decoded when it is first asked for.

        Of the tens of thousands of messages a second, hardly one is asked for everything.
        """
        message: Message = object.__new__(cls)
        _set_row(message, row)
        _set_id(message, row[0])
        _set_event_type(message, row[3])
        _set_ordering_key(message, row[6])
        return message

    def __getattr__(self, name: str) -> Any:
        """Decode a field that is not there yet."""
        decode = _DECODERS.get(name)
        if decode is None or self._row is None:
            raise AttributeError(f"a message has no {name!r}")
        value = decode(self._row)
        object.__setattr__(self, name, value)
        return value

    def json(self) -> Any:
        """Return the payload parsed as JSON.

        Raises:
            ValueError: the payload is not JSON (it was enqueued as bytes).
        """
        return json.loads(self.payload)

    @property
    def message_id_text(self) -> str:
        """The message id as text; of a stored message it is at hand, which a `UUID` is not."""
        return str(self.message_id) if self._row is None else str(self._row[1])

    @property
    def replay_of(self) -> str | None:
        """The message id that an operator replayed into this message, if any."""
        if self._row is not None and self._row[10] == "{}":
            return None
        return self.headers.get(REPLAY_OF_HEADER)


_set_row, _set_id, _set_event_type, _set_ordering_key = (
    getattr(Message, name).__set__ for name in ("_row", "id", "event_type", "ordering_key")
)

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_DECODERS: Mapping[str, Callable[[StoredRow], Any]] = {
    "message_id": lambda row: UUID(row[1]),
    "queue": lambda row: row[2],
    "aggregate_type": lambda row: row[4],
    "aggregate_id": lambda row: row[5],
    "payload": lambda row: bytes(row[8]) if row[7] is None else row[7].encode("utf-8"),
    "content_type": lambda row: row[9] or (BYTES_CONTENT_TYPE if row[7] is None else JSON_CONTENT_TYPE),
    "headers": lambda row: _NO_HEADERS if row[10] == "{}" else MappingProxyType(json.loads(row[10])),
    "created_at": lambda row: instant(row[11]),
    "key_sequence": lambda row: row[12],
}


class Claimed(NamedTuple):
    """A message under our lease. ``token`` (``lease_version``) is what every later write is fenced by."""

    message: Message
    token: int
    attempt: int
    max_attempts: int
    recovery: Recovery
    lease: timedelta
    age_microseconds: int
    reclaim_count: int = 0
    """How often this message was taken over from an expired lease; above 0 it is a crash suspect."""
    owner: str = ""
    routed: bool = False
    """It was made for the destination whose queue it is in."""
    ledger: bool = False
    """Its queue keeps a ledger of attempts: the end of this one belongs there."""

    @property
    def id(self) -> int:
        return self.message.id

    @property
    def is_to_verify(self) -> bool:
        """Whether its publisher is asked before it publishes, as an earlier attempt may have arrived.

        The attempt tells, not the token: attempts that surely did not arrive are given back, and an operator's
        retry begins anew, since a person has decided then.
        """
        return self.recovery is Recovery.VERIFY and self.attempt > 1

    @property
    def age(self) -> timedelta:
        """Time since ``created_at`` when it was claimed, by the database's clock."""
        return timedelta(microseconds=self.age_microseconds)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The receipt of an enqueue; ``created`` is False where a dedupe key found the message already there.

    Where the producer knows the routes (``Outbox(routing=…)``) and they lead to several destinations, ``id`` is
    the first one's row, and ``destinations`` has each one's by its name.
    """

    id: int
    message_id: UUID
    created: bool
    destinations: Mapping[str, int] = field(default_factory=dict, hash=False)


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


class BlockReason(StrEnum):
    """Why an ordering key does not move: what its first open message waits for."""

    DEAD = "dead"
    """An operator's retry or skip."""
    BACKOFF = "backoff"
    """Its next attempt, after a failure."""
    DEFERRED = "deferred"
    """The time to which a publisher deferred it."""
    DELAYED = "delayed"
    """The time that its producer said."""
    LEASED = "leased"
    """The end of its publish."""
    EXPIRED = "expired"
    """A worker that takes it over: its lease has ended."""
    SUSPECT = "suspect"
    """A worker that takes it alone: a worker may have crashed on it."""
    STRANDED = "stranded"
    """Nothing at all: it is parked although nothing is before it."""


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """An ordering key that does not move, and the message at its head."""

    queue: str
    ordering_key: str
    head_id: int
    reason: BlockReason
    outcome: Outcome | None
    last_error: str | None
    age: timedelta
    """Time since the head, which is the oldest open message of the key, was created."""
    due_in: timedelta | None
    """Time until the head is due, where that is what it waits for."""
    lease_owner: str | None
    """Who holds the head, or held it last."""
    lease_left: timedelta | None
    """Time until the lease of the head ends; negative where it has ended."""
    followers: int
    """Open messages that wait behind the head, counted up to a cap."""
    followers_are_capped: bool


@dataclass(frozen=True, slots=True)
class BlockedKeys:
    """A page of blocked keys; ``after`` is the (queue, key) behind which to go on, None at the end."""

    keys: tuple[BlockedKey, ...]
    after: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Freed:
    """What an operator's change let move again: ordering keys, and messages that waited in them."""

    keys: int = 0
    messages: int = 0
    is_capped: bool = False
    """There are more messages than were counted."""


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    UNKNOWN = "unknown"
    """It cannot be seen, mostly for want of a privilege."""
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of `doctor` found."""

    check: str
    severity: Severity
    text: str
    remedy: str | None = None
