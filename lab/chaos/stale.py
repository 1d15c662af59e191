"""Forced stale finalizes: a holder that lost its rows tries every kind of result write with its old tokens.

Rows are claimed, and then taken over after their lease, released and claimed anew, reaped, retried or skipped by
an operator. The old holder writes in batches; ``xmin`` of every row must stay as it was, and each write must be
reported as a lost lease.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from fencepost import Claimed, NewMessage, Outbox
from lab.chaos.terms import seconds

BATCH = 500
LONG = seconds(600)
KEYS = 7

Connection = psycopg.Connection[Any]
Write = Callable[[Outbox, Connection, Sequence[Claimed]], list[Claimed]]
Loss = Callable[["Field", list[Claimed]], None]

WRITES: dict[str, Write] = {
    "mark_done": lambda outbox, conn, old: outbox.mark_done(conn, old),
    "reschedule": lambda outbox, conn, old: outbox.reschedule(conn, old, seconds(1), "late"),
    "defer": lambda outbox, conn, old: outbox.reschedule(conn, old, seconds(1), "late", refund_attempt=True),
    "mark_dead": lambda outbox, conn, old: outbox.mark_dead(conn, old, "late"),
    "release": lambda outbox, conn, old: outbox.release(conn, old),
    "cancel": lambda outbox, conn, old: outbox.release(conn, old, refund_attempt=False),
    "heartbeat": lambda outbox, conn, old: outbox.heartbeat(conn, old, LONG),
}
"""What a holder can write. (A holder whose row stands in the very state that it writes is told that it stands.)"""

_STATE = "SELECT id, xmin::text, ctid::text, status, lease_version FROM outbox WHERE id = ANY (%s) ORDER BY id"
_OVERDUE = "UPDATE outbox SET lease_until = statement_timestamp() - interval '1 s' WHERE id = ANY (%s)"


@dataclass
class Tally:
    """What was tried, and what should not have been."""

    writes: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    believed: int = 0
    """Stale writes that were not reported as a lost lease."""
    stopped: int = 0
    """Stale writes that passed the fence, and only a constraint of the table stopped them."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.writes + other.writes,
            self.changed + other.changed,
            self.believed + other.believed,
            self.stopped + other.stopped,
        )

    @property
    def is_clean(self) -> bool:
        """Whether no row was changed, and each write reported as a lost lease."""
        return not (self.changed or self.believed or self.stopped)


class Field:
    """The rows, and who does what to them."""

    def __init__(self, conn: Connection, seed: int, batch: int) -> None:
        self.batch = batch
        self.conn, self.outbox = conn, Outbox(notify=False, allow_autocommit=True)
        self.chance = random.Random(seed)
        self.tally = Tally()

    def claimed(self) -> list[Claimed]:
        """Return rows that are held: half of them ordered, which are finalized by statements of their own."""
        with self.conn.transaction():
            self.outbox.enqueue_many(
                self.conn,
                [
                    NewMessage(event_type="e", payload=n, ordering_key=f"key {n % KEYS}" if n % 2 else None)
                    for n in range(self.batch)
                ],
            )
            return self.outbox.claim(self.conn, "old", batch=self.batch, lease=LONG)

    def overdue(self, held: Sequence[Claimed]) -> None:
        """Let the leases be over."""
        self.conn.execute(_OVERDUE, [[each.id for each in held]])

    def try_all(self, loss: str, old: list[Claimed]) -> None:
        """Write everything that a holder can write, with the old tokens."""
        ids = [each.id for each in old]
        for name, write in WRITES.items():
            before = self.conn.execute(_STATE, [ids]).fetchall()
            self.chance.shuffle(old)
            try:
                with self.conn.transaction():
                    lost = write(self.outbox, self.conn, old)
            except psycopg.errors.CheckViolation:
                self.tally.stopped += len(old)
                continue
            after = self.conn.execute(_STATE, [ids]).fetchall()
            self.tally.writes[f"{name} after {loss}"] += len(old)
            self.tally.changed += sum(one != other for one, other in zip(before, after, strict=True))
            self.tally.believed += len(old) - len(lost)


_BY_CLAIM = 20
_AS_A_CLAIM = """
    UPDATE outbox SET lease_version = lease_version + 1, attempts = attempts + 1, lease_owner = 'new',
        reclaim_count = reclaim_count + 1, lease_until = statement_timestamp() + interval '10 minutes'
    WHERE id = ANY (%s) AND lease_owner = 'old'
"""


def _taken_over(field: Field, old: list[Claimed]) -> None:
    """Somebody else holds them: some by claims, the others by what a claim writes.

    Claims hand out what may have crashed its worker one at a time, and of a key one behind the other.
    """
    field.overdue(old)
    for _ in range(_BY_CLAIM):
        with field.conn.transaction():
            field.outbox.claim(field.conn, "new", batch=field.batch, lease=LONG)
    field.conn.execute(_AS_A_CLAIM, [[each.id for each in old]])


def _released(field: Field, old: list[Claimed]) -> None:
    with field.conn.transaction():
        field.outbox.release(field.conn, old)


def _claimed_anew(field: Field, old: list[Claimed]) -> None:
    _released(field, old)
    with field.conn.transaction():
        field.outbox.claim(field.conn, "new", batch=field.batch, lease=LONG)


def _reaped(field: Field, old: list[Claimed]) -> None:
    field.overdue(old)
    with field.conn.transaction():
        field.outbox.reap(field.conn, max_attempts=1, limit=field.batch)


def _retried(field: Field, old: list[Claimed]) -> None:
    with field.conn.transaction():
        field.outbox.mark_dead(field.conn, old, "no", outcome="crashed")
    with field.conn.transaction():
        field.outbox.retry_dead(field.conn, [each.id for each in old], actor="lab")


def _skipped(field: Field, old: list[Claimed]) -> None:
    with field.conn.transaction():
        field.outbox.mark_dead(field.conn, old, "no", outcome="crashed")
    with field.conn.transaction():
        field.outbox.skip_dead(field.conn, [each.id for each in old], actor="lab")


LOSSES: dict[str, Loss] = {
    "taken over": _taken_over,
    "released and claimed anew": _claimed_anew,
    "reaped": _reaped,
    "retried by an operator": _retried,
    "skipped by an operator": _skipped,
}
"""How a holder loses a row. Each ends with tokens that rose, or with a state that no holder's write targets."""


def force(url: str, seed: int, count: int, batch: int = BATCH) -> Tally:
    """Make at least ``count`` stale writes, and return what came of them."""
    with psycopg.connect(url, autocommit=True) as conn:
        with conn.transaction():
            Outbox().migrate(conn)
        field = Field(conn, seed, batch)
        while sum(field.tally.writes.values()) < count:
            for loss, lose in LOSSES.items():
                old = field.claimed()
                lose(field, old)
                field.try_all(loss, old)
                # The next round begins with an empty table, so that its claims find its own rows.
                conn.execute("TRUNCATE outbox")
        return field.tally
