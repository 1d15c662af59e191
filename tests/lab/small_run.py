"""A small, correct run on a real server, by the real library, recorded as a chaos run is.

Workers, receiver and consumer are played in this process, one after another, so that each thing that the checker
knows happens once and no more than a few seconds go by.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from lab.checker.recording import CLOCK, SAMPLE, Recorder, digest, headers_digest, install
from psycopg.rows import dict_row

from fencepost import Claimed, Inbox, InvalidMessage, Outbox
from tests.lab.small_jobs import play_jobs

LEASE, TIMEOUT, POLL, RETENTION, MAX_ATTEMPTS = 0.25, 0.2, 0.1, 0.05, 3
OUTBOX = Outbox(allow_autocommit=True)
INBOX = Inbox("billing", allow_autocommit=True)
Connection = psycopg.Connection[Any]


class SmallRun:
    """The parts of a run, to be played; ``marks`` keeps the ids of what each part was about."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.marks: dict[str, list[int]] = {}
        self.message_ids: dict[int, str] = {}
        self._recorders: dict[str, Recorder] = {}
        self._numbers: dict[str, int] = {}
        self._fault = 0
        self.db: Connection = psycopg.connect(url, autocommit=True)
        self._other = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def close(self) -> None:
        self.db.close()
        self._other.close()
        for recorder in self._recorders.values():
            recorder.close()

    def write(self, process: str, kind: str, /, **fields: object) -> None:
        """Write a line of a process."""
        if process not in self._recorders:
            self._recorders[process] = Recorder(self.folder, process)
        self._recorders[process].write(kind, **fields)

    # --- the run itself --------------------------------------------------------------------------------------

    def begin(self) -> None:
        with self.db.transaction():
            OUTBOX.migrate(self.db)
        install(self.db)
        terms = {
            "lease": LEASE,
            "publish_timeout": TIMEOUT,
            "poll": POLL,
            "grace": 1.0,
            "lease_margin": 0.0,
            "retention": RETENTION,
        }
        self.write(
            "conductor", "campaign", seed=1, max_attempts=MAX_ATTEMPTS, lanes={"keyed": {"per_key": 1}}, **terms
        )
        self.write("conductor", "phase", name="faults_begin")
        for worker in ("w1", "w2"):
            self.start(worker)
        self.tick()

    def end(self) -> None:
        self.tick()
        for name in ("faults_end", "drained", "end"):
            self.write("conductor", "phase", name=name)

    def start(self, process: str) -> None:
        self.write("conductor", "start", of=process, pid=1, role="worker", owner=process)
        self.write(process, "ready")

    def tick(self) -> None:
        """Compare the clocks."""
        before = time.monotonic_ns()
        database = self.one(CLOCK)
        self.write("conductor", "clock", database=database, at=(before + time.monotonic_ns()) // 2)

    @contextmanager
    def fault(self, fault: str, target: str) -> Iterator[None]:
        """Say that something is done to the run, and when it is over."""
        self._fault += 1
        self.write("conductor", "fault", fault_id=self._fault, fault=fault, target=target)
        yield
        self.write("conductor", "fault_end", fault_id=self._fault)

    def killed(self, process: str, fault: str = "sigkill", message_id: str | None = None) -> None:
        """Say that a process was killed."""
        self._fault += 1
        writer = process if fault == "poison" else "conductor"
        self.write(writer, "fault", fault_id=self._fault, fault=fault, target=process, message_id=message_id)
        self.write("conductor", "exit", of=process, pid=1, code=-9)

    # --- producers -------------------------------------------------------------------------------------------

    def enqueue(self, part: str, count: int = 1, *, key: str | None = None, **intent: Any) -> list[int]:
        """Commit messages of a part, which is also their queue."""
        ids = []
        for _ in range(count):
            with self.db.transaction():
                row_id, message_id = self.insert(part, key, **intent)
            self.write("producer", "commit", message_ids=[message_id])
            ids.append(row_id)
        self.marks.setdefault(part, []).extend(ids)
        return ids

    def insert(
        self, part: str, key: str | None = None, recovery: str = "auto", bad: str | None = None
    ) -> tuple[int, str]:
        """Write one message and its business change in the open transaction."""
        made = OUTBOX.enqueue(
            self.db,
            "order.created",
            {"of": part},
            queue=part,
            ordering_key=key,
            headers={"x": part},
            recovery=recovery,
        )
        message_id, payload = str(made.message_id), f'{{"of":"{part}"}}'.encode()
        number = None
        if key is not None:
            number = self._numbers[key] = self._numbers.get(key, 0) + 1
        self.db.execute("INSERT INTO lab.business VALUES (%s, %s, %s)", [message_id, key, number])
        about = {"message_id": message_id, "queue": part, "ordering_key": key, "number": number, "bad": bad}
        digests = {"payload": digest(payload), "headers": headers_digest({"x": part})}
        self.write("producer", "enqueue", transaction=message_id, **about, **digests)
        self.message_ids[made.id] = message_id
        return made.id, message_id

    def roll_back(self) -> None:
        """Roll back a whole transaction, and a savepoint of one that commits; have something refused."""
        for outer in (True, False):
            with self.db.transaction(force_rollback=outer):
                with self.db.transaction(force_rollback=True):
                    row_id, message_id = self.insert("undone")
                self.marks.setdefault("undone", []).append(row_id)
                self.write("producer", "rollback", message_ids=[message_id])
        refused = uuid4()
        try:
            OUTBOX.enqueue(self.db, "order.created", {"bad": "\0"}, message_id=refused)
        except InvalidMessage as error:
            self.write("producer", "refused", message_id=str(refused), why=str(error))

    # --- workers and receiver --------------------------------------------------------------------------------

    def claim(self, part: str, worker: str = "w1", batch: int = 100, lease: float = LEASE) -> list[Claimed]:
        terms: Any = {"lease": timedelta(seconds=lease), "max_attempts": MAX_ATTEMPTS, "batch": batch}
        return OUTBOX.claim(self.db, worker, queues=[part], **terms)

    def publish(
        self,
        held: Sequence[Claimed],
        worker: str = "w1",
        result: str | None = "delivered",
        *,
        arrives: bool | None = None,
        samples: int = 1,
    ) -> None:
        """Publish what was claimed; it arrives where delivered, or as told; without a result, no end is told."""
        for each in held:
            message = each.message
            about = {"message_id": str(message.message_id), "id": each.id, "token": each.token}
            digests = {"payload": digest(message.payload), "headers": headers_digest(message.headers)}
            more = {"queue": message.queue, "attempt": each.attempt, "owner": worker, "pid": 1}
            self.write(worker, "publish_start", **about, **more, **digests)
            for _ in range(samples):
                self.sample(each.id)
            if arrives or (arrives is None and result == "delivered"):
                arrival = {"message_id": about["message_id"], "token": each.token, "queue": message.queue}
                self.write("receiver", "accepted", **arrival, **digests, acknowledged=result != "retryable")
            if result is not None:
                self.write(worker, "publish_end", **about, result=result)

    def done(self, held: Sequence[Claimed]) -> list[Claimed]:
        """Finalize as delivered; return what was lost."""
        with self.db.transaction():
            return OUTBOX.mark_done(self.db, held)

    def deliver(self, part: str, worker: str = "w1") -> list[Claimed]:
        """Claim, publish and finalize what is due of a part."""
        held = self.claim(part, worker)
        self.publish(held, worker)
        assert not self.done(held)
        return held

    def until_expired(self, held: Sequence[Claimed]) -> None:
        """Wait until the database says that the leases are over."""
        ids = [each.id for each in held]
        query = "SELECT count(*) FROM outbox WHERE id = ANY (%s) AND lease_until > clock_timestamp()"
        while self.one(query, [ids]):
            self.one("SELECT pg_sleep(0.01)")

    def sample(self, publishing: int) -> None:
        """Look at the open transactions, and whether the row that is being published can be locked."""
        asked = time.monotonic_ns()
        open_rows = self._other.execute(SAMPLE).fetchall()
        free = self._other.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE SKIP LOCKED", [publishing])
        locked = [] if free.fetchall() else [publishing]
        self.write("sampler", "sample", open=open_rows, locked=locked, asked=asked)

    def row(self, row_id: int) -> dict[str, Any] | None:
        """Return what a stale write must leave as it is."""
        query = "SELECT xmin::text, lease_version AS token, status FROM outbox WHERE id = %s"
        with self.db.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, [row_id]).fetchone()

    def one(self, query: str, parameters: Sequence[object] = ()) -> Any:
        row = self.db.execute(query.encode(), parameters).fetchone()
        assert row is not None
        return row[0]


# --- the parts of the story ----------------------------------------------------------------------------------


def play(run: SmallRun) -> None:
    """Play all of it."""
    run.begin()
    OUTBOX.set_queue(run.db, "plain", actor="ann", ledger=True)
    run.enqueue("plain", 3)
    run.deliver("plain")
    run.roll_back()
    _ordered(run)
    _failures(run)
    _dead_head(run)
    _lost_workers(run)
    _poison(run)
    _consumer(run)
    _purge(run)
    play_jobs(run)
    run.end()


def _ordered(run: SmallRun) -> None:
    run.enqueue("ordered", 3, key="k")
    run.deliver("ordered")


def _failures(run: SmallRun) -> None:
    """Each way in which a publish ends, and what operators do about it."""
    run.enqueue("failing", bad="failing")
    held = run.claim("failing")
    run.publish(held, result="retryable", arrives=True)  # its acknowledgement is withheld
    OUTBOX.reschedule(run.db, held, timedelta(0), "no answer")
    held = run.claim("failing")
    run.publish(held, result="defer")
    OUTBOX.reschedule(run.db, held, timedelta(0), "not yet", refund_attempt=True)
    run.deliver("failing")
    run.enqueue("buried", 2, bad="permanent")
    held = run.claim("buried")
    run.publish(held, result="permanent")
    OUTBOX.mark_dead(run.db, held, "never")
    first, second = run.marks["buried"]
    OUTBOX.retry_dead(run.db, [first], actor="ann")
    run.deliver("buried")
    OUTBOX.skip_dead(run.db, [second], actor="ann")


def _dead_head(run: SmallRun) -> None:
    """A dead head blocks its key until it is skipped, and nobody else."""
    run.enqueue("head", key="dead")
    held = run.claim("head")
    run.publish(held, result="permanent")
    OUTBOX.mark_dead(run.db, held, "never")
    run.enqueue("head", 2, key="dead")
    run.enqueue("head", key="other")
    run.deliver("head")
    with run.db.transaction():
        OUTBOX.skip_dead(run.db, run.marks["head"][:1], actor="ann")
    run.deliver("head")
    # Another one stays as it is.
    run.enqueue("stuck", key="stuck")
    held = run.claim("stuck")
    run.publish(held, result="permanent")
    OUTBOX.mark_dead(run.db, held, "never")
    run.enqueue("stuck", 2, key="stuck")
    assert not run.claim("stuck")


def _lost_workers(run: SmallRun) -> None:
    """One worker is killed in mid-publish, one is frozen past its lease and comes back."""
    for process in ("killed", "frozen"):
        run.start(process)
        run.enqueue(process)
    killed, frozen = run.claim("killed", "killed"), run.claim("frozen", "frozen")
    run.publish(killed, "killed", result=None, arrives=True)
    run.killed("killed")
    with run.fault("sigstop", "frozen"):
        run.publish(frozen, "frozen", result=None)
        run.until_expired([*killed, *frozen])
        run.deliver("killed", "w2")
        run.deliver("frozen", "w2")
    (stale,) = frozen
    before = run.row(stale.id)
    lost = run.done(frozen)
    about = {"id": stale.id, "token": stale.token, "operation": "mark_done"}
    run.write(
        "frozen", "stale", **about, reported="lost" if lost else "held", before=before, after=run.row(stale.id)
    )
    run.tick()


def _poison(run: SmallRun) -> None:
    """It kills three workers and is buried; its neighbour of the first batch is delivered."""
    run.enqueue("poison", bad="poison")
    run.enqueue("poison")
    bad, neighbour = run.marks["poison"]
    for turn in range(MAX_ATTEMPTS):
        process = f"p{turn}"
        run.start(process)
        held = [each for _ in range(2) for each in run.claim("poison", process)]
        for each in held:
            if each.id == neighbour and turn:
                run.publish([each], process)
                run.done([each])
        held = [each for each in held if each.id == bad or not turn]
        run.publish([each for each in held if each.id == bad], process, result=None)
        run.killed(process, "poison", run.message_ids[bad])
        run.until_expired(held)
    assert OUTBOX.reap(run.db, max_attempts=MAX_ATTEMPTS, queues=["poison"]) == 1


def _consumer(run: SmallRun) -> None:
    """An effect, its repeat, a rolled-back one, and an older token."""
    message_id = run.message_ids[run.marks["plain"][0]]
    for token, undo in ((2, True), (2, False), (2, False), (1, False)):
        with run.db.transaction(force_rollback=undo):
            acceptance = INBOX.accept(run.db, message_id, fence=token)
            if acceptance:
                run.db.execute("INSERT INTO lab.effect (consumer, message_id, token) VALUES ('billing', %s, %s)",
                               [message_id, token])  # fmt: skip
        result = "rolled_back" if undo else "accepted" if acceptance else "stale" if token == 1 else "repeat"
        run.write("consumer", "inbox", consumer="billing", message_id=message_id, token=token, result=result)


def _purge(run: SmallRun) -> None:
    """A step takes the oldest that are done; their retention is over for long."""
    assert OUTBOX.purge(run.db, older_than=timedelta(seconds=RETENTION), limit=2) == 2
    run.enqueue("late", 2)
    run.deliver("late")
