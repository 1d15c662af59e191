"""One schedule, from its plan to its verdict."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from fencepost.config import DispatcherSettings
from fencepost.runtime.link import Limits
from fencepost.store.catalog import Catalog, Names
from lab.fake_store.rows import QUEUE, QueueRow, micros
from lab.fake_store.turn import Answer
from lab.simulator import seams
from lab.simulator.judge import Judge
from lab.simulator.loop import Endless, World
from lab.simulator.outside import MessageOperator, MessageProducers, Operator, Producers
from lab.simulator.plan import POISON, STATEMENTS, Fault, Plan
from lab.simulator.process import DispatcherProcess, Process
from lab.simulator.schedule import Schedule
from lab.simulator.seen import Publish
from lab.simulator.server import Server, ServerSession
from lab.simulator.store import TIME_OF_START, WatchedDatabase
from lab.simulator.watch import Watch

CATALOG = Catalog(Names())

FASTEST = 0.0002
"""Seconds that a statement, or an answer, travels at the least."""

MOST_STEPS = 150_000

CONNECT_LIMIT = Limits.below(timedelta(seconds=1)).connect

PATIENCE = 10.0
"""Seconds past all faults, a lease and a poll in which everything must be settled: links that were down for long
come back within that."""


@dataclass(slots=True)
class Result:
    """What came of one schedule."""

    plan: Schedule
    violations: list[str]
    seconds: float
    """Virtual ones."""
    steps: int
    counts: Mapping[str, int]
    """What was started, and what came of it."""
    faults: Counter[str]
    duplicates: Counter[str]
    trace: list[tuple[Any, ...]] = field(repr=False)

    def digest(self) -> str:
        """Return a hash of the whole trace."""
        text = "\n".join(map(repr, self.trace))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Run(ABC):
    """Everything that one schedule is made of, whatever works in it; see `simulate`."""

    watch: Judge
    producers: Producers[Any]
    operator: Operator
    processes: Sequence[Process]

    def __init__(
        self, plan: Schedule, *, keeps_trace: bool, statements: Mapping[str, Answer] | None = None
    ) -> None:
        self.plan = plan
        self.keeps_trace = keeps_trace
        self.chance = random.Random(plan.chances)
        self._draw, self._spread = self.chance.random, plan.spread
        self.world = World(self.chance, MOST_STEPS)
        self.catalog = CATALOG
        self.is_finished = self.is_over = False
        self.events: list[tuple[Any, ...]] = []
        self.faults: Counter[str] = Counter()
        self.hurt: list[tuple[float, str]] = []
        """What happened to all processes at once; see `Process.hurt`."""
        self.rolled_back: set[int] = set()
        self.listeners: list[ServerSession] = []
        self.writer: ServerSession | None = None
        self.statement_faults = {
            (each.place, each.target, each.nth): each for each in plan.faults if each.place in STATEMENTS
        }
        self.begun_at = self.world.now
        self.poison = next((each.target for each in plan.faults if each.kind == POISON), None)
        self.server = Server(self)
        self.database = WatchedDatabase(self, statements)
        self._resolved = not plan.resolves

    # --- what its parts ask ---

    def trace(self, *what: Any) -> None:
        """Note something that happened, in the order of all things."""
        if self.keeps_trace and not self.is_over:
            self.events.append((round(self.world.now - self.begun_at, 6), *what))

    def latency(self) -> float:
        return FASTEST + self._spread * self._draw()

    def seconds_of(self, micros: int) -> float:
        """Return an instant of the database on the world's clock."""
        return micros / 1_000_000 - TIME_OF_START

    def notice_seconds(self) -> float:
        """Return how long the server takes to notice that a process is gone: nothing, or part of a lease."""
        return 0.0 if self.chance.random() < 0.7 else self.plan.lease * self.chance.random()

    @property
    def are_faults_over(self) -> bool:
        return self.world.now >= self.begun_at + self.plan.faults_end

    def fault_happens(self, fault: Fault, process: Any) -> None:
        """Note that a fault takes place, at a process or at none."""
        self.faults[fault.kind] += 1
        self.trace("fault", str(fault))
        if process is not None and fault.place in STATEMENTS:
            # (A silence while it connects is noticed after that limit, however short the lease is.)
            seconds = CONNECT_LIMIT if fault.kind.startswith("hole") else fault.seconds
            process.note(f"{fault.kind} a statement", seconds)

    # --- running ---

    def go(self) -> None:
        """Run it to its end."""
        plan, world = self.plan, self.world
        self.producers.start()
        for process in self.processes:
            world.call_later(0.0, process.start)
        for fault in plan.faults:
            if fault.place == "process":
                world.call_later(fault.at, self._happen, fault)
            elif fault.place == "operator":
                self.operator.plan(fault)
        deadline = plan.faults_end + 2.5 * plan.lease + plan.lease + 1 + plan.poll + PATIENCE + _poisoned(plan)
        world.call_later(deadline, self._out_of_time)
        self.world.run(self._is_settled)

    def _happen(self, fault: Fault) -> None:
        process = self.processes[min(fault.target, len(self.processes) - 1)]
        if not process.is_up:
            return
        self.fault_happens(fault, process)
        act: dict[str, Callable[[], None]] = {
            "crash": lambda: process.crash("killed"),
            "pause": lambda: process.pause(fault.seconds),
            "stop": process.stop,
            "hurry": lambda: process.stop(hurries=True),
            "vanish": process.vanish,
            "restart": lambda: self._restart(fault.seconds),
        }
        act[fault.kind]()

    def _restart(self, seconds: float) -> None:
        self.hurt.append((self.world.now + seconds + self.plan.lease, "server restart"))
        self.server.restart(seconds)

    def _out_of_time(self) -> None:
        if not self.is_finished:
            busy = [f"{each.name} holds {each.held}" for each in self.processes if each.is_up and each.held]
            busy += [f"{each.name} is held" for each in self.processes if each.is_up and each.is_held]
            busy += [f"{self.producers.left} producers and {self.operator.busy} operators are at it"]
            self.watch.violated("I1", f"not drained in time: open rows {self.watch.left()}; {'; '.join(busy)}")

    def _is_settled(self) -> bool:
        if self.is_finished:
            return True
        if self.producers.left or self.operator.busy or not self.watch.is_drained():
            return False
        if any(each.is_up and (each.is_held or each.held) for each in self.processes):
            return False
        if not self._resolved:
            self._resolved = True
            self.operator.resolve("retry" if self.chance.random() < 0.5 else "skip")
            return self.operator.busy == 0
        return True

    @abstractmethod
    def counts(self) -> Mapping[str, int]:
        """Return what was started and what came of it."""


class MessageRun(Run):
    """A schedule of the dispatcher."""

    plan: Plan
    watch: Watch
    processes: Sequence[DispatcherProcess]

    def __init__(self, plan: Plan, *, keeps_trace: bool) -> None:
        super().__init__(plan, keeps_trace=keeps_trace)
        self.retention_micros = None if plan.retention is None else micros(plan.retention)
        queue = QueueRow("default", rate=plan.rate, ledger=plan.keeps_ledger)
        if queue != QueueRow("default"):
            self.database.committed[QUEUE]["default"] = queue
        self._publish_faults = {(each.target, each.nth): each for each in plan.faults if each.place == "publish"}
        self.was_paused = any(each.kind == "pause" and each.place == "operator" for each in plan.faults)
        self.watch = Watch(self)
        self.producers = MessageProducers(self, plan.messages)
        self.operator = MessageOperator(self)
        self.settings = _settings(plan)
        self.processes = [DispatcherProcess(self, number) for number in range(plan.processes)]

    def publish_fault(self, publish: Publish) -> Fault | None:
        """Return what happens at a publish."""
        poison = self._publish_faults.get((publish.number, 0))
        if poison is not None and poison.kind == POISON:
            return poison
        return None if self.are_faults_over else self._publish_faults.get((publish.number, publish.nth))

    def counts(self) -> Mapping[str, int]:
        publishes = [each for some in self.watch.publishes.values() for each in some]
        return {"publishes": len(publishes), "accepted": sum(len(each.accepted_at) for each in publishes)}


def _poisoned(plan: Schedule) -> float:
    """Return how long what kills its process may take: it costs a lease each time, and an operator may retry it.

    Whoever shares a lane with it waits as long.
    """
    if all(each.kind != POISON for each in plan.faults):
        return 0.0
    return 2 * plan.max_attempts * (plan.lease + plan.poll)


def simulate(plan: Plan, *, keeps_trace: bool = False) -> Result:
    """Run one schedule of the dispatcher; inside `seams.simulated`."""
    return judged(MessageRun(plan, keeps_trace=keeps_trace))


def judged(run: Run) -> Result:
    """Run a schedule to its end; inside `seams.simulated`."""
    plan = run.plan
    seams.CLOCK.monotonic = run.world.time
    seams.CHANCE.seed(plan.chances)
    seams.UNEXPLAINED.clear()
    try:
        run.go()
    except Endless as error:
        run.watch.violated("I1", f"endless: {error}")
    run.watch.finish()
    for what in seams.UNEXPLAINED:
        run.watch.violated("log", what)
    for loop in (run.server.loop, run.operator.loop):
        for failure in loop.failures:
            run.watch.violated("simulator", repr(failure))
    duplicates = run.watch.duplicates()
    if duplicates["unexplained"]:
        run.watch.violated("I15", f"{duplicates['unexplained']} duplicates without a cause")
    run.is_over = True
    seams.CLOCK.monotonic = seams.nowhen
    return Result(
        plan,
        run.watch.violations,
        run.world.now - run.begun_at,
        run.world.steps,
        run.counts(),
        run.faults,
        duplicates,
        run.events,
    )


def _settings(plan: Plan) -> DispatcherSettings:
    return DispatcherSettings(
        owner="w",
        batch=plan.batch,
        concurrency=plan.concurrency,
        lease=timedelta(seconds=plan.lease),
        publish_timeout=timedelta(seconds=plan.publish_timeout),
        max_attempts=plan.max_attempts,
        poll_interval=timedelta(seconds=plan.poll),
        notify=plan.notify,
        grace=timedelta(seconds=plan.grace),
        backoff_base=timedelta(seconds=0.05),
        backoff_cap=timedelta(seconds=0.4),
        breaker_failures=plan.breaker_failures,
        breaker_cap=timedelta(seconds=0.5),
        outage_budget=timedelta(seconds=1.0),
        retention=None if plan.retention is None else timedelta(seconds=plan.retention),
        ledger_retention=None,
    )
