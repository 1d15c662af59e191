"""Forced stale finalizes of jobs: as `lab.chaos.stale`, with the writes that a worker has for its jobs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg

from fencepost import Jobs, Outbox
from fencepost.core.job import ClaimedJob
from fencepost.core.operation import Operation, run
from fencepost.core.outcome import DONE, Action, Dead, Release, Reschedule
from fencepost.core.states import Event, Outcome
from fencepost.drivers import driver_for
from fencepost.store import job_fenced
from fencepost.store import jobs as store
from lab.chaos.stale import BATCH, LONG, Connection, Tally
from lab.chaos.terms import seconds

T = TypeVar("T")

TASK = "t"
WRITES: dict[str, Action | None] = {
    "done": DONE,
    "retry": Reschedule(Event.RETRY, seconds(1), "late", refund_attempt=False),
    "defer": Reschedule(Event.DEFER, seconds(1), "late", refund_attempt=True),
    "fail": Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "late"),
    "release": Release(),
    "heartbeat": None,
}
"""What a holder can write; nothing, for a heartbeat."""

_STATE = "SELECT id, xmin::text, ctid::text, status, attempt_token FROM outbox_job WHERE id = ANY (%s) ORDER BY id"
_OVERDUE = "UPDATE outbox_job SET lease_expires_at = statement_timestamp() - interval '1 s' WHERE id = ANY (%s)"
_SUSPECTS = 20


class JobField:
    """The jobs, and who does what to them."""

    def __init__(self, conn: Connection, seed: int, batch: int) -> None:
        self.conn, self.batch, self.chance, self.tally = conn, batch, random.Random(seed), Tally()
        self.jobs = Jobs(notify=False)
        self.jobs.declare(TASK, lease=LONG, max_attempts=1_000_000)

    def run(self, operation: Operation[T]) -> T:
        """Send an operation in a transaction of its own."""
        with self.conn.transaction():
            return run(operation, driver_for(self.conn).execute)

    def claim(self, owner: str, *, suspects: bool = False) -> list[ClaimedJob]:
        """Claim what is due."""
        terms = store.JobTerms(owner, {TASK: self.jobs.registry.task(TASK).terms})
        ask = store.claim_suspects if suspects else store.claim
        return self.run(ask(self.jobs.catalog, terms, "default", self.batch)).claimed

    def write(self, action: Action | None, old: Sequence[ClaimedJob]) -> frozenset[int]:
        """Write with these tokens; return what is reported as lost."""
        if action is None:
            return self.run(job_fenced.heartbeat(self.jobs.catalog, old, LONG))
        finished = [job_fenced.Finished(each, action) for each in old]
        return self.run(job_fenced.finalize(self.jobs.catalog, finished))

    def held(self) -> list[ClaimedJob]:
        """Return jobs that somebody holds."""
        with self.conn.transaction():
            for number in range(self.batch):
                self.jobs.enqueue(self.conn, TASK, {"n": number})
        return self.claim("old")

    def try_all(self, loss: str, old: list[ClaimedJob]) -> None:
        """Write everything that a holder can write, with the old tokens."""
        ids = [each.id for each in old]
        for name, action in WRITES.items():
            before = self.conn.execute(_STATE, [ids]).fetchall()
            self.chance.shuffle(old)
            try:
                lost = self.write(action, old)
            except psycopg.errors.CheckViolation:
                self.tally.stopped += len(old)
                continue
            after = self.conn.execute(_STATE, [ids]).fetchall()
            self.tally.writes[f"job: {name} after {loss}"] += len(old)
            self.tally.changed += sum(one != other for one, other in zip(before, after, strict=True))
            self.tally.believed += len(old) - len(lost)


def _reclaimed(field: JobField, old: list[ClaimedJob]) -> None:
    """Taken back by upkeep, and some of them held by somebody else by then."""
    field.conn.execute(_OVERDUE, [[each.id for each in old]])
    field.run(store.reclaim(field.jobs.catalog, limit=field.batch))
    for _ in range(_SUSPECTS):
        field.claim("new", suspects=True)


def _claimed_anew(field: JobField, old: list[ClaimedJob]) -> None:
    field.write(Release(), old)
    field.claim("new")


def _failed_by_an_operator(field: JobField, old: list[ClaimedJob]) -> None:
    with field.conn.transaction():
        field.jobs.fail(field.conn, [each.id for each in old], actor="lab", reason="stale")


def _retried(field: JobField, old: list[ClaimedJob]) -> None:
    _failed_by_an_operator(field, old)
    with field.conn.transaction():
        field.jobs.retry(field.conn, [each.id for each in old], actor="lab")


LOSSES: dict[str, Callable[[JobField, list[ClaimedJob]], None]] = {
    "reclaimed": _reclaimed,
    "released and claimed anew": _claimed_anew,
    "failed by an operator": _failed_by_an_operator,
    "retried by an operator": _retried,
}


def force(url: str, seed: int, count: int, batch: int = BATCH) -> Tally:
    """Make at least ``count`` stale writes, and return what came of them."""
    with psycopg.connect(url, autocommit=True) as conn:
        with conn.transaction():
            Outbox().migrate(conn)
        field = JobField(conn, seed, batch)
        while sum(field.tally.writes.values()) < count:
            for loss, lose in LOSSES.items():
                old = field.held()
                lose(field, old)
                field.try_all(loss, old)
                conn.execute("TRUNCATE outbox_job")
        return field.tally
