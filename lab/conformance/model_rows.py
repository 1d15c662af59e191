"""The model's own rows, what a transaction sees of them, and what an event makes of a row, by the one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fencepost.core.states import Event, State, attempts_after, transition
from lab.conformance.seen import MINUTE, Look, Seen, minutes

STEP_TAKES = 1_000
"""Microseconds that go by with each step."""


class Disagreement(AssertionError):
    """Two of the three do not agree."""


def demand(condition: object, why: str) -> None:
    """Require something of a step.

    Raises:
        Disagreement: it is not so.
    """
    if not condition:
        raise Disagreement(f"the model does not allow this: {why}")


class Row(NamedTuple):
    """A message; instants in microseconds, None where it is parked or dead."""

    id: int
    queue: str
    key: str | None
    number: int | None
    recovery: str
    created: int
    available: int | None
    dedupe: str | None = None
    payload: int = 0
    routed: bool = False
    status: State = State.PENDING
    outcome: str | None = None
    attempts: int = 0
    token: int = 0
    reclaims: int = 0
    owner: str | None = None
    lease_until: int | None = None
    closed: int | None = None

    @property
    def is_open(self) -> bool:
        return self.status is not State.DONE

    @property
    def place(self) -> tuple[int, int]:
        """Where it is served."""
        return self.available if self.available is not None else 2**62, self.id

    def is_due(self, now: int) -> bool:
        return self.available is not None and self.available <= now

    def is_expired(self, now: int) -> bool:
        return self.lease_until is not None and self.lease_until < now

    def is_fresh(self, now: int) -> bool:
        """It may be claimed by a normal claim, in its turn."""
        return self.status is State.PENDING and self.reclaims == 0 and self.is_due(now)

    def is_held(self, token: int) -> bool:
        """The fence."""
        return self.status is State.PROCESSING and self.token == token

    def after(self, event: Event, now: int, *, owner: str | None = None, span: int = 0) -> Row:
        """Return the row as an event leaves it.

        Args:
            owner: who claims.
            span: of the lease, or until it is due.

        Raises:
            Disagreement: the table does not allow the event in this state.
        """
        try:
            found = transition(self.status, event)
        except KeyError:
            raise Disagreement(f"the model does not allow this: {event} of {self}") from None
        row = self._replace(
            status=found.to,
            outcome=None if found.outcome is None else str(found.outcome),
            attempts=attempts_after(self.attempts, found.attempts),
            token=self.token + found.raises_token,
            reclaims=self.reclaims + (event is Event.RECLAIM),
            lease_until=None,
            closed=now if found.to in (State.DONE, State.DEAD) else None,
        )
        match found.to:
            case State.PROCESSING:
                available = self.created if self.status is State.BLOCKED else self.available
                return row._replace(owner=owner, lease_until=now + span, available=available)
            case State.BLOCKED | State.DEAD:
                return row._replace(available=None)
        match event:
            case Event.RETRY | Event.DEFER:
                return row._replace(available=now + span)
            case Event.PROMOTE:
                return row._replace(available=self.created)
            case Event.OPERATOR_RETRY:
                return row._replace(available=now, reclaims=0)
        return row

    def seen(self, now: int, beside: Seen) -> Seen:
        """Return the row as a store shows it; what the model does not know is as ``beside`` has it."""
        return Seen(
            *(self.id, self.queue, self.key, self.number, self.recovery, str(self.status), self.outcome),
            *(self.attempts, self.token, self.reclaims, self.owner),
            None if self.available is None else minutes(self.available - now),
            self.is_due(now),
            None if self.lease_until is None else minutes(self.lease_until - now),
            self.is_expired(now),
            None if self.closed is None else minutes(self.closed - now),
            beside.error,
            self.routed,
        )


class Queue(NamedTuple):
    """What holds for a queue, and its breaker."""

    paused: bool = False
    max_attempts: int | None = None
    sequenced: bool = False
    every: int | None = None
    """Minutes for each message; 0 where the rate is one that nothing exhausts, None without a rate."""
    used: int | None = None
    """The instant up to which the rate is used up."""
    ledger: bool = False
    seen: int = 0
    version: int = 0
    opened: bool = False
    probe_at: int = 0
    trips: int = 0


class Sight:
    """What one session sees, and writes: the others see it once it is committed."""

    def __init__(self, committed: dict[Any, Any], own: dict[Any, Any], now: int, turns: Iterator[int]) -> None:
        self._committed = committed
        self._own = own
        self.now = now
        self.turns = turns
        """Numbers for what is told in the order of its making, whoever makes it, and committed or not."""

    def get(self, key: Any, default: Any = None) -> Any:
        found = self._own[key] if key in self._own else self._committed.get(key)
        return default if found is None else found

    def put(self, key: Any, value: Any) -> None:
        self._own[key] = value

    def row(self, row_id: int) -> Row | None:
        """Return a message."""
        found: Row | None = self.get(("row", row_id))
        return found

    def write(self, row: Row) -> None:
        """Write a message."""
        self.put(("row", row.id), row)

    def happen(self, row_id: int, event: Event, *, owner: str | None = None, span: int = 0) -> None:
        """Let something happen to a message."""
        row = self.row(row_id)
        demand(row is not None, f"{event} of a message {row_id} that is not there")
        if row is not None:
            self.write(row.after(event, self.now, owner=owner, span=span))

    def queue(self, name: str) -> Queue:
        found: Queue = self.get(("queue", name), Queue())
        return found

    def is_shut(self, name: str) -> bool:
        """Nothing of the queue is claimed."""
        queue = self.queue(name)
        return queue.paused or queue.opened

    def rows(self) -> list[Row]:
        """Return all messages, by id."""
        return sorted(self.of("row"), key=lambda row: row.id)

    def of(self, kind: str) -> list[Any]:
        """Return all things of a kind that are there."""
        keys = self._committed | self._own  # in the order of their making: the same in each run
        return [found for key in keys if key[0] == kind and (found := self.get(key)) is not None]

    def open_of(self, queue: str, key: str | None) -> list[Row]:
        """Return the open messages of a key, in their order."""
        return [row for row in self.rows() if row.is_open and row.queue == queue and row.key == key]

    def heads(self) -> dict[tuple[str, str], Row]:
        """Return the first open message of each key."""
        found: dict[tuple[str, str], Row] = {}
        for row in self.rows():
            if row.is_open and row.key is not None:
                found.setdefault((row.queue, row.key), row)
        return found

    def promote(self, keys: Iterable[tuple[str, str]]) -> int:
        """Let the heads of keys go on that are parked; return how many."""
        heads = self.heads()
        parked = [heads[key] for key in set(keys) if key in heads and heads[key].status is State.BLOCKED]
        for row in parked:
            self.happen(row.id, Event.PROMOTE)
        return len(parked)

    def compare(self, look: Look) -> None:
        """Compare what is seen here with what a store shows.

        Raises:
            Disagreement: they differ.
        """
        rows = self.rows()
        ids = [row.id for row in rows]
        if ids != [row.id for row in look.rows]:
            raise Disagreement(f"the model has the messages {ids}, not {[row.id for row in look.rows]}")
        for row, shown in zip(rows, look.rows, strict=True):
            expected = row.seen(self.now, shown)
            if expected != shown:
                raise Disagreement(f"the model has {difference(expected, shown)}\n  {row}\n  {shown}")
        places = {row.id: row.available for row in rows if row.is_open and row.available is not None}
        theirs = [(places[row_id], row_id) for row_id in look.order if row_id in places]
        # (What one step wrote by several statements has one instant here.)
        if [at for at, _ in theirs] != sorted(places.values()):
            raise Disagreement(f"the model serves in the order {sorted(theirs)}, not {theirs}")


def difference(one: Seen, other: Seen) -> str:
    """Name the columns in which two rows differ."""
    pairs = zip(Seen._fields, one, other, strict=True)
    return f"message {one.id}: " + ", ".join(f"{name} {a!r}, not {b!r}" for name, a, b in pairs if a != b)


def micros(in_minutes: int) -> int:
    """Return minutes in microseconds."""
    return in_minutes * MINUTE
