"""The scenes of the race: two workers, one message, real connections.

Each worker is a thread that runs its loop from top to bottom; only the order in which the two take their
steps is arranged (`Turns`), so that a scene comes out the same way every time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import psycopg

from fencepost.core.records import Claimed
from fencepost.demo.tables import outbox
from fencepost.demo.turns import PATIENCE, OutOfOrder, Turns

Connection = psycopg.Connection[Any]

LONG = timedelta(minutes=1)
SHORT = timedelta(seconds=1)


class Mood(Enum):
    """How a moment is to be seen."""

    PLAIN = "plain"
    SENT = "sent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that a worker did."""

    milliseconds: int
    worker: str
    text: str
    mood: Mood


@dataclass(frozen=True, slots=True)
class Actor:
    """One worker in a scene, with its connection and a way to the outside world."""

    name: str
    connection: Connection
    outside: Connection
    scene: Scene

    def turn(self, step: str) -> AbstractContextManager[None]:
        return self.scene.turns.take(self.name, step)

    def note(self, text: str, mood: Mood = Mood.PLAIN) -> None:
        milliseconds = round((time.monotonic() - self.scene.started) * 1000)
        self.scene.moments.append(Moment(milliseconds, self.name, text, mood))

    def publish(self, row_id: int, message_id: UUID, token: int | None = None) -> None:
        """Tell the outside world; nothing can take that back."""
        self.outside.execute(
            "INSERT INTO fencepost_demo.sent (scene, worker, message_id, token) VALUES (%s, %s, %s, %s)",
            [self.scene.name, self.name, message_id, token],
        )
        self.note(f"publishes message {row_id}" + (f", token {token}" if token else ""), Mood.SENT)


@dataclass(slots=True)
class Scene:
    """One scene: what each worker does, and the order of their steps."""

    name: str
    title: str
    parts: dict[str, Callable[[Actor], None]]
    turns: Turns
    started: float = 0.0
    moments: list[Moment] = field(default_factory=list)

    def play(self, url: str) -> None:
        """Play it to its end.

        Raises:
            Exception: what went wrong in a part.
        """
        everybody_there = threading.Barrier(len(self.parts), action=self._begin)
        with ThreadPoolExecutor(len(self.parts)) as threads:
            playing = [
                threads.submit(self._play_part, name, part, url, everybody_there)
                for name, part in self.parts.items()
            ]
        failures = [error for error in (part.exception() for part in playing) if error is not None]
        consequences = (OutOfOrder, threading.BrokenBarrierError)
        for error in sorted(failures, key=lambda error: isinstance(error, consequences)):
            raise error

    def _begin(self) -> None:
        self.started = time.monotonic()

    def _play_part(
        self, name: str, part: Callable[[Actor], None], url: str, everybody_there: threading.Barrier
    ) -> None:
        try:
            with psycopg.connect(url) as connection, psycopg.connect(url, autocommit=True) as outside:
                everybody_there.wait(PATIENCE)
                part(Actor(name, connection, outside, self))
        except BaseException:
            everybody_there.abort()
            self.turns.give_up()
            raise


# --- the dispatcher that everybody writes first -----------------------------------------------------------

_NAIVE_SELECT = """
    SELECT id, message_id FROM fencepost_demo.naive_outbox
    WHERE done_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_NAIVE_DONE = "UPDATE fencepost_demo.naive_outbox SET done_at = statement_timestamp() WHERE id = %s"


def usual_dispatcher(actor: Actor) -> None:
    """Lock a row, commit, publish, mark it done."""
    row = None
    while row is None:
        with actor.turn("select"):
            row = actor.connection.execute(_NAIVE_SELECT).fetchone()
            actor.note("SELECT … SKIP LOCKED: " + (f"message {row[0]}" if row else "nothing, the row is locked"))
        with actor.turn("commit"):
            actor.connection.commit()
            actor.note("COMMIT: its row lock is gone" if row else "COMMIT")
    row_id, message_id = row
    with actor.turn("publish"):
        actor.publish(row_id, message_id)
    with actor.turn("finish"):
        actor.connection.execute(_NAIVE_DONE, [row_id])
        actor.connection.commit()
        actor.note("marks it done")


# --- a claim that is data ---------------------------------------------------------------------------------


def _claim(actor: Actor, lease: timedelta) -> Claimed | None:
    claimed = outbox().claim(actor.connection, owner=actor.name, batch=1, lease=lease)
    actor.connection.commit()
    if not claimed:
        actor.note("claim, COMMIT: nothing is free")
        return None
    message = claimed[0]
    actor.note(f"claim, COMMIT: message {message.id}, token {message.token}, lease {lease.total_seconds():g} s")
    return message


def _mark_done(actor: Actor, claimed: Claimed) -> bool:
    lost = outbox().mark_done(actor.connection, claimed)
    actor.connection.commit()
    if lost:
        actor.note(f"mark_done, token {claimed.token}: refused, lease lost", Mood.REFUSED)
    else:
        actor.note(f"mark_done, token {claimed.token}: done")
    return not lost


def leasing_dispatcher(actor: Actor) -> None:
    """Claim with a lease, commit, publish, mark done; look for work three times at most."""
    for _ in range(3):
        with actor.turn("claim"):
            claimed = _claim(actor, LONG)
        if claimed is not None:
            with actor.turn("publish"):
                actor.publish(claimed.id, claimed.message.message_id, claimed.token)
            with actor.turn("finish"):
                _mark_done(actor, claimed)
            return


# --- a worker that pauses past its lease ------------------------------------------------------------------

_ROW = "SELECT xmin::text, lease_version, done_at FROM fencepost_demo.outbox WHERE id = %s"
_NOTE_LATE_WRITE = "INSERT INTO fencepost_demo.late_write VALUES (%s, %s, %s, %s, %s)"
_UNTIL_EXPIRED = "SELECT pg_sleep_until(max(lease_until)) FROM fencepost_demo.outbox WHERE status = 'processing'"


def pausing_worker(actor: Actor) -> None:
    """Claim, publish, and come back too late to say so."""
    with actor.turn("claim"):
        claimed = _claim(actor, SHORT)
    assert claimed is not None  # noqa: S101 - it comes first, and the message is there
    with actor.turn("publish"):
        actor.publish(claimed.id, claimed.message.message_id, claimed.token)
        actor.note("pauses: a full disk, a suspended machine")
    with actor.turn("finish"):
        before = actor.outside.execute(_ROW, [claimed.id]).fetchone()
        assert before is not None  # noqa: S101 - nothing deletes it
        actor.note("goes on")
        refused = not _mark_done(actor, claimed)
        actor.outside.execute(_NOTE_LATE_WRITE, [claimed.id, *before, refused])


def patient_worker(actor: Actor) -> None:
    """Find nothing, wait until the other's lease has run out, take over."""
    with actor.turn("claim"):
        _claim(actor, LONG)
    with actor.turn("wait"):
        actor.outside.execute(_UNTIL_EXPIRED)  # by the database's clock, which alone decides
        actor.note("the lease has run out")
    with actor.turn("claim"):
        claimed = _claim(actor, LONG)
    assert claimed is not None  # noqa: S101 - the lease has run out
    with actor.turn("publish"):
        actor.publish(claimed.id, claimed.message.message_id, claimed.token)
    with actor.turn("finish"):
        _mark_done(actor, claimed)


# --- the orders of their steps ----------------------------------------------------------------------------

USUAL, LEASED, PAUSED = "usual", "leased", "paused"

_ORDERS: dict[str, Sequence[str]] = {
    USUAL: (
        *("A select", "B select", "B commit", "A commit", "B select", "B commit"),
        *("A publish", "B publish", "A finish", "B finish"),
    ),
    LEASED: ("A claim", "B claim", "A publish", "B claim", "A finish", "B claim"),
    PAUSED: ("A claim", "A publish", "B claim", "B wait", "B claim", "B publish", "B finish", "A finish"),
}


def _turns(name: str) -> Turns:
    return Turns([(step[0], step[2:]) for step in _ORDERS[name]])


def usual_scene() -> Scene:
    return Scene(
        USUAL,
        "The usual dispatcher: SELECT … FOR UPDATE SKIP LOCKED, COMMIT, publish",
        {"A": usual_dispatcher, "B": usual_dispatcher},
        _turns(USUAL),
    )


def leased_scene() -> Scene:
    return Scene(
        LEASED,
        "fencepost: claim with a lease, COMMIT, publish",
        {"A": leasing_dispatcher, "B": leasing_dispatcher},
        _turns(LEASED),
    )


def paused_scene() -> Scene:
    return Scene(
        PAUSED,
        "fencepost, when a worker pauses past its lease",
        {"A": pausing_worker, "B": patient_worker},
        _turns(PAUSED),
    )
