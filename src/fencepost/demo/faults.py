"""What is done to the workers: one is killed, one is frozen past its lease, both in the middle of a publish.

"In the middle" is made certain, not hoped for. The receiver holds its answer back, so that the publish cannot
end; the worker is stopped, so that it can do nothing more; and only if its row then stands unfinalized under
the token that the receiver saw does the fault count. Otherwise the worker goes on and it is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import psycopg

from fencepost.demo.programs import Deadline, Program
from fencepost.demo.worker import application_name
from fencepost.errors import FencepostError

Connection = psycopg.Connection[Any]

ANSWERS_HELD = 3
GATHER_SECONDS = 0.5
"""After the first answer held back, how long to wait for more: well below the publish time-out."""

SOME_MORE = 3

_TRIES = 10
_LOOK_EVERY = 0.05

_BUSY = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state = 'active'"

_HELD = """
    SELECT id, message_id, lease_version, lease_until FROM fencepost_demo.outbox
    WHERE status = 'processing' AND lease_owner = %s ORDER BY id
"""

_NOTE_FAULT = "INSERT INTO fencepost_demo.fault (worker, kind, at) VALUES (%s, %s, clock_timestamp())"

_NOTE_HELD = "INSERT INTO fencepost_demo.held VALUES (%s, %s, %s, %s, %s)"

_NOT_TAKEN_OVER = """
    SELECT count(*) FROM fencepost_demo.held AS h JOIN fencepost_demo.outbox AS o ON o.id = h.outbox_id
    WHERE h.worker = %s AND NOT (o.lease_version > h.token AND o.status = 'done')
"""

_TAKEN_OVER_BY = """
    SELECT o.lease_owner || ' (' || count(*) || ')'
    FROM fencepost_demo.held AS h JOIN fencepost_demo.outbox AS o ON o.id = h.outbox_id
    WHERE h.worker = %s GROUP BY o.lease_owner ORDER BY o.lease_owner
"""

# Of the rows it held: those that it knew of. The answer to a claim may have been on its way when it froze.
_WAS_PUBLISHING = """
    SELECT count(*) FROM fencepost_demo.held AS h WHERE h.worker = %s AND EXISTS (
        SELECT FROM fencepost_demo.arrival AS a
        WHERE a.message_id = h.message_id AND a.worker = h.worker AND a.token = h.token)
"""

_NOTE_BEFORE_THAW = """
    INSERT INTO fencepost_demo.before_thaw (outbox_id, row_version, token, done_at)
    SELECT o.id, o.xmin::text, o.lease_version, o.done_at
    FROM fencepost_demo.held AS h JOIN fencepost_demo.outbox AS o ON o.id = h.outbox_id
    WHERE h.worker = %s
"""


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A row in a worker's hands."""

    outbox_id: int
    message_id: str
    token: int
    lease_until: datetime


@dataclass(slots=True)
class Faults:
    """The one who does it.

    Args:
        connection: in autocommit mode.
        check: raises when another part of the demonstration has failed, so that waiting is in vain.
    """

    connection: Connection
    receiver: Program
    check: Callable[[], None]
    _holds: int = 0

    def kill(self, worker: Program) -> list[HeldRow]:
        """Kill a worker in the middle of a publish; return the rows that it held."""
        held = self._stop_in_mid_publish(worker)
        self._note(worker, "killed", held)
        worker.kill()
        self._release_answers(worker)
        return held

    def freeze(self, worker: Program) -> list[HeldRow]:
        """Freeze a worker in the middle of a publish; return the rows that it held.

        The answers that it waited for are given now: it will find them when it wakes up.
        """
        held = self._stop_in_mid_publish(worker)
        self._note(worker, "frozen", held)
        self._release_answers(worker)
        return held

    def thaw(self, worker: Program) -> int:
        """Note the rows as others have finished them, wake the worker, return how many late writes were refused.

        The rows are finished, so whatever changes them now is the worker that slept.
        """
        self.connection.execute(_NOTE_BEFORE_THAW, [worker.name])
        publishing = self._count(_WAS_PUBLISHING, worker.name)
        worker.go_on()
        self._wait_for_counter(worker, "lost_leases", publishing)
        return _counter(worker, "lost_leases")

    def wait_until_at_work(self, worker: Program) -> None:
        """Wait until a worker has delivered some more."""
        self._wait_for_counter(worker, "delivered", _counter(worker, "delivered") + SOME_MORE)

    def wait_until_taken_over(self, worker: Program) -> str:
        """Wait until others have finished every row that a worker held; return who they are."""
        deadline = Deadline(f"the messages of {worker.name} were taken over")
        while self._count(_NOT_TAKEN_OVER, worker.name):
            self._look_again(deadline)
        rows = self.connection.execute(_TAKEN_OVER_BY, [worker.name]).fetchall()
        return ", ".join(row[0] for row in rows)

    # --- the middle of a publish -------------------------------------------------------------------------

    def _stop_in_mid_publish(self, worker: Program) -> list[HeldRow]:
        for _ in range(_TRIES):
            self._holds += 1
            self.receiver.tell(
                {"do": "hold", "worker": worker.name, "answers": ANSWERS_HELD, "number": self._holds}
            )
            unanswered = self._wait_for_held_answers(worker)
            worker.stop()
            self._wait_until_still(worker)
            held = self._rows_of(worker)
            if any((row.message_id, row.token) in unanswered for row in held):
                return held
            # So slow a machine that the publish timed out first: that would prove nothing.
            worker.go_on()
            self._release_answers(worker)
        raise FencepostError(f"{worker.name} was not caught in the middle of a publish: the machine is too busy")

    def _wait_for_held_answers(self, worker: Program) -> set[tuple[str, int]]:
        """Wait for the first answer held back, and a moment for more, as of a worker with much to do."""
        deadline = Deadline(f"the receiver held an answer to {worker.name}")
        unanswered: set[tuple[str, int]] = set()
        gathered_at = float("inf")
        while len(unanswered) < ANSWERS_HELD and time.monotonic() < gathered_at:
            self.check()
            deadline.check()
            report = self.receiver.next_report("held", _LOOK_EVERY)
            if report is not None and report["number"] == self._holds:
                unanswered.add((report["message_id"], report["token"]))
                gathered_at = min(gathered_at, time.monotonic() + GATHER_SECONDS)
        return unanswered

    def _wait_until_still(self, worker: Program) -> None:
        """Wait until the server has carried out what a stopped worker had sent: its rows stay as they are then.

        It must be idle at two looks in a row, since a request may be on its way between two processes.
        """
        deadline = Deadline(f"the server had done what {worker.name} asked for")
        idle_looks = 0
        while idle_looks < 2:
            self._look_again(deadline)
            busy = self._count(_BUSY, application_name(worker.name))
            idle_looks = 0 if busy else idle_looks + 1

    def _rows_of(self, worker: Program) -> list[HeldRow]:
        rows = self.connection.execute(_HELD, [worker.name]).fetchall()
        return [HeldRow(row_id, str(message_id), token, until) for row_id, message_id, token, until in rows]

    def _release_answers(self, worker: Program) -> None:
        self.receiver.tell({"do": "answer", "worker": worker.name})

    # --- noting and waiting ------------------------------------------------------------------------------

    def _note(self, worker: Program, kind: str, held: Iterable[HeldRow]) -> None:
        with self.connection.transaction():
            for row in held:
                values = [worker.name, row.outbox_id, row.message_id, row.token, row.lease_until]
                self.connection.execute(_NOTE_HELD, values)
            self.connection.execute(_NOTE_FAULT, [worker.name, kind])

    def _wait_for_counter(self, worker: Program, name: str, wanted: int) -> None:
        deadline = Deadline(f"{worker.name} counted {wanted} {name}")
        while _counter(worker, name) < wanted:
            worker.check()
            self._look_again(deadline)

    def _count(self, query: LiteralString, name: str) -> int:
        row = self.connection.execute(query, [name]).fetchone()
        return int(row[0]) if row else 0

    def _look_again(self, deadline: Deadline) -> None:
        self.check()
        deadline.check()
        time.sleep(_LOOK_EVERY)


def _counter(worker: Program, name: str) -> int:
    counters = worker.last_report("counters")
    return int(counters[name]) if counters else 0
