"""The conductor: starts a run, applies its plan, lets it drain, and hands the history to the checker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from fencepost import Outbox
from lab.chaos import places, terms
from lab.chaos.book import Book
from lab.chaos.broker import Broker
from lab.chaos.cluster import Cluster
from lab.chaos.faults import Faults
from lab.chaos.places import Kind, Place
from lab.chaos.process_faults import ProcessFaults
from lab.chaos.schedule import plan
from lab.chaos.server_faults import ServerFaults
from lab.chaos.tasks import LANES
from lab.chaos.watch import Watch
from lab.checker.recording import Recorder, install

TICK = 0.02
DRAIN_SECONDS = 60.0 * terms.SLOW
"""Far more than lease, polls and backoffs take together: what is open then stays open."""
SETTLE_SECONDS = 180.0
OBEDIENCE_SECONDS = 20.0
"""After its grace time a process is killed, for the run to go on: long after it should have ended."""
SAY_EVERY = 10.0
LOOK_AT_BROKER = 0.5
"""Seconds between two questions for what it still has: each makes a connection."""

_OPEN = "SELECT count(*) FROM outbox WHERE done_at IS NULL"
_OPEN_JOBS = "SELECT count(*) FROM outbox_job WHERE finished_at IS NULL OR status = 'failed'"
_LEFT = """
    SELECT 'message', id, status, ordering_key, attempts, lease_owner, lease_until::text, available_at::text,
           left(last_error, 80) FROM outbox WHERE done_at IS NULL
    UNION ALL SELECT 'job', id, status, task, attempts, reserved_by, lease_expires_at::text, available_at::text,
           left(last_error, 80) FROM outbox_job WHERE finished_at IS NULL OR status = 'failed' LIMIT 10
"""


@dataclass(frozen=True)
class Crew:
    """How many processes of each kind there are."""

    dispatchers: int = 3
    job_workers: int = 2
    producers: int = 2
    consumers: int = 1
    operators: int = 1
    sabotaged: bool = False
    """The dispatchers have no fence."""

    @classmethod
    def of(cls, counts: str, *, sabotaged: bool) -> Crew:
        """Read how many there are of each, such as ``3,2,2,1,1``."""
        dispatchers, job_workers, producers, consumers, operators = map(int, counts.split(","))
        return cls(dispatchers, job_workers, producers, consumers, operators, sabotaged)


@dataclass
class Outcome:
    """What a run did and what came of it, apart from what the checker says."""

    folder: Path
    seconds: float = 0.0
    drained_in: float | None = None
    applied: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    longest_end: float = 0.0
    """Seconds from SIGTERM to the end of a worker, at most."""
    problems: list[str] = field(default_factory=list)


class Conductor:
    """One run.

    Args:
        folder: of the history; empty.
        cluster: a database, running and empty.
        broker: a broker, running and empty.
        seed: of all chance.
        crew: how many processes.
        say: tells a person how it goes.
        patience: seconds for everything to drain after the faults.
    """

    def __init__(
        self, folder: Path, cluster: Cluster, broker: Broker, seed: int, crew: Crew, say: Callable[[str], None],
        *, patience: float = DRAIN_SECONDS,
    ) -> None:  # fmt: skip
        self._folder, self._cluster, self._broker, self._seed, self._say = folder, cluster, broker, seed, say
        self._patience = patience
        (folder / "logs").mkdir()
        self._recorder = Recorder(folder, "conductor")
        self._watch = Watch(cluster.connect, Recorder(folder, "watch"))
        self.outcome = Outcome(folder)
        self._places = [self._place(name, kind) for name, kind in _crew(crew)]
        self._book = Book(self._recorder)
        self._faults = Faults(
            ProcessFaults(self._places, cluster, self._book),
            ServerFaults(cluster, broker, self._places, self._book, self._watch),
            self._book,
        )
        self._keeps_starting = True

    def run(self, seconds: float, rate: float, kinds: Collection[str], *, covering: bool) -> Outcome:
        """Run it all, and return what came of it; the tables are left as they are then."""
        began = time.monotonic()
        try:
            self._prepare()
            self._start()
            self._fault(seconds, rate, kinds, covering)
            self._calm_down()
            self._drain()
            self._end()
        finally:
            self._watch.stop()
            for place in self._places:
                place.close()
        self._broker.write_history(self._folder)
        self._recorder.write("phase", name="end")
        self.outcome.applied, self.outcome.missed = +self._book.applied, +self._book.missed
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # --- the parts --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._recorder.write(
            "campaign",
            seed=self._seed,
            lease=terms.LEASE,
            publish_timeout=terms.PUBLISH_TIMEOUT,
            poll=terms.POLL,
            grace=terms.GRACE,
            max_attempts=terms.MAX_ATTEMPTS,
            lanes=LANES,
            job_lease=terms.JOB_LEASE,
            retention=terms.RETENTION,
            purge_limit=terms.PURGE_LIMIT,
        )
        with psycopg.connect(self._cluster.primary.url) as conn:
            Outbox().migrate(conn)
            install(conn)
            conn.execute("CREATE INDEX ON lab.business (ordering_key, number)")
            for queue in terms.QUEUES:
                Outbox().set_queue(conn, queue, actor="conductor", ledger=True, sequenced=True)
        self._watch.start()

    def _start(self) -> None:
        self._recorder.write("start", of="receiver", pid=0, role="receiver")
        self._recorder.write("start", of="watch", pid=0, role="sampler")
        for place in self._places:
            place.start()
        ends = time.monotonic() + SETTLE_SECONDS
        while not all(self._is_ready(place) for place in self._places):
            self._look_after_processes()
            if time.monotonic() > ends:
                raise TimeoutError("the processes of the run do not come up")
            time.sleep(TICK)

    def _is_ready(self, place: Place) -> bool:
        """Whether a process of it has come up; a worker of jobs writes nothing before its first job."""
        return place.kind.role == "job_worker" or any(self._folder.glob(f"{place.name}-*.jsonl"))

    def _fault(self, seconds: float, rate: float, kinds: Collection[str], covering: bool) -> None:
        self._recorder.write("phase", name="faults_begin")
        first = began = told_at = time.monotonic()
        for planned in plan(self._seed, seconds, rate, kinds, covering=covering):
            # A fault that took long, such as a failover, moves the others: they do not come all at once.
            began += max(0.0, time.monotonic() - (began + planned.at) - TICK)
            self._tick_until(began + planned.at)
            self._faults.apply(planned)
            if time.monotonic() - told_at > SAY_EVERY:
                told_at = time.monotonic()
                done = sum(self._book.applied.values())
                self._say(f"{told_at - first:.0f} s: {done} faults applied")
        self._tick_until(began + seconds)

    def _calm_down(self) -> None:
        """End all faults, and let nothing misbehave any more."""
        (self._folder / terms.CALM).touch()
        self._book.end_what_is_due(everything=True)
        for place in self._places:
            place.thaw()
            if place.skew is not None:
                place.set_clock("+0")
        self._recorder.write("phase", name="faults_end")

    def _drain(self) -> None:
        self._tell_to_end("producer")
        began = time.monotonic()
        with self._cluster.connect() as conn:
            while (left := self._left(conn)) and time.monotonic() - began < self._patience:
                self._tick()
            if left:
                rows = conn.execute(_LEFT.encode()).fetchall()
                self.outcome.problems.append(f"{left} are open {self._patience:g} s after the faults: {rows}")
            else:
                self.outcome.drained_in = time.monotonic() - began
        if self._has("consumer"):
            self._consume_the_rest()
        self._recorder.write("phase", name="drained")

    def _left(self, conn: psycopg.Connection[tuple[int]]) -> int:
        """Return how much is still to be done, by those who are there to do it."""
        queries = [_OPEN, *([_OPEN_JOBS] if self._has("job_worker") else [])]
        return sum(row[0] for query in queries for row in conn.execute(query.encode()).fetchall())

    def _consume_the_rest(self) -> None:
        """Let the one consumer take what the broker has for it: as long as it needs, while it gets on."""
        least, since = self._broker.unconsumed(), time.monotonic()
        while least and time.monotonic() - since < self._patience:
            self._tick(LOOK_AT_BROKER)
            if (left := self._broker.unconsumed()) < least:
                least, since = left, time.monotonic()
        if least:
            self.outcome.problems.append(f"{least} events are not consumed, for {self._patience:g} s no fewer")

    def _has(self, role: str) -> bool:
        return any(place.kind.role == role for place in self._places)

    def _end(self) -> None:
        self._keeps_starting = False
        for role in ("operator", "worker", "job_worker"):
            self._tell_to_end(role)
        for place in self._places:
            if place.alive and place.told_to_end is None:
                place.send(signal.SIGKILL)  # the consumer, which has nothing to finish
        ends = time.monotonic() + SETTLE_SECONDS
        while any(place.alive for place in self._places) and time.monotonic() < ends:
            self._tick()

    def _tell_to_end(self, role: str) -> None:
        for place in self._places:
            if place.kind.role == role and place.at_work:
                place.tell_to_end()

    # --- all the time -----------------------------------------------------------------------------------

    def _tick_until(self, instant: float) -> None:
        while (left := instant - time.monotonic()) > 0:
            self._tick(min(TICK, left))

    def _tick(self, pause: float = TICK) -> None:
        self._book.end_what_is_due()
        self._look_after_processes()
        time.sleep(pause)  # the rhythm of the conductor

    def _look_after_processes(self) -> None:
        for place in self._places:
            process = place.process_name
            self._check_obedience(place)
            code = place.look()
            if code is None:
                if not place.alive and self._keeps_starting and not self._is_over(place):
                    place.start()
                continue
            self._judge_exit(place, process, code, place.took_to_end)
            if self._keeps_starting and not self._is_over(place):
                place.start()

    def _is_over(self, place: Place) -> bool:
        return place.kind.role == "producer" and (self._folder / terms.CALM).exists()

    def _check_obedience(self, place: Place) -> None:
        """End a process that does not end when it is told to: that is a finding."""
        limit = terms.GRACE + OBEDIENCE_SECONDS
        if place.told_to_end is not None and place.alive and time.monotonic() - place.told_to_end > limit:
            self.outcome.problems.append(f"{place.process_name} does not end after SIGTERM")
            place.told_to_end = None
            place.send(signal.SIGKILL)

    def _judge_exit(self, place: Place, process: str, code: int, took: float | None) -> None:
        role = place.kind.role
        self.outcome.exits[f"{role} {code}"] += 1
        expected = {places.KILLED, places.POISONED, places.UNREACHABLE}
        if took is not None:
            # Before it has its handlers in place, the signal ends it.
            expected |= {0, 1, -signal.SIGTERM}
            if role in ("worker", "job_worker") and code in (0, 1):
                self.outcome.longest_end = max(self.outcome.longest_end, took)
                if took > terms.GRACE + 1.0:
                    self.outcome.problems.append(
                        f"{process} ended {took:.2f} s after SIGTERM, with a grace time of {terms.GRACE:g} s"
                    )
        if code not in expected:
            self.outcome.problems.append(f"{process} ended by itself with {code}: {place.log()[-1500:]}")

    def _place(self, name: str, kind: Kind) -> Place:
        skewed = name in ("w1", "j1") and places.FAKETIME.exists()
        return Place(
            name, kind, self._folder, self._seed, self._cluster.primary.url, self._broker.port, self._recorder,
            skewed=skewed,
        )  # fmt: skip


def _crew(crew: Crew) -> list[tuple[str, Kind]]:
    dispatcher = places.SABOTAGED if crew.sabotaged else places.DISPATCHER
    kinds = (
        ("w", dispatcher, crew.dispatchers),
        ("j", places.JOB_WORKER, crew.job_workers),
        ("p", places.PRODUCER, crew.producers),
        ("c", places.CONSUMER, crew.consumers),
        ("o", places.OPERATOR, crew.operators),
    )
    return [(f"{letter}{number + 1}", kind) for letter, kind, count in kinds for number in range(count)]


def keep_tables(folder: Path, url: str) -> None:
    """Write the tables beside the history, for whoever looks for a reason."""
    with psycopg.connect(url) as conn:
        for table in TABLES:
            with (folder / f"{table}.csv").open("wb") as file, conn.cursor() as cursor:
                query = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT (FORMAT csv, HEADER)")
                with cursor.copy(query.format(sql.Identifier(*table.split(".")))) as copy:
                    for data in copy:
                        file.write(data)


TABLES = (
    "lab.message_history",
    "lab.job_history",
    "lab.queue_history",
    "outbox",
    "outbox_job",
    "outbox_attempt",
    "outbox_audit",
    "outbox_queue",
)


def judge(folder: Path, url: str) -> dict[str, Any]:
    """Have the checker, a program of its own, judge the history and the tables; return what it says."""
    argv = [sys.executable, "-m", "lab.checker", str(folder), "--database", url, "--json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(terms.ROOT), os.environ.get("PYTHONPATH", "")))}
    found = subprocess.run(argv, cwd=terms.ROOT, env=environment, capture_output=True, text=True, check=False)
    verdict: dict[str, Any] = json.loads(found.stdout) if found.stdout else {"error": found.stderr}
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=2), encoding="utf-8")
    return verdict
