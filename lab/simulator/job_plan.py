"""What happens in one schedule of jobs, drawn from its seed before it begins: workers, tasks, jobs, faults."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from lab.simulator.plan import POISON, SMALL, STATEMENT_FAULTS, TIMED_FAULTS, Fault

HANDLER_FAULTS = (
    "retry", "retry", "retry after", "false failure", "raise", "exit", "permanent", "defer", "defer", "hang",
    "hang", "slow", "slow", "slow", "crash before", "crash after", "crash after", "pause before", "pause after",
    "block", "stubborn", "cancels itself",
)  # fmt: skip
"""What may happen at the run of a handler. *after*, and a false failure: its effect is there."""

VERIFIER_FAULTS = ("unknown", "raise", "crash before", "pause before")
"""What may happen as a verifier is asked."""

OPERATIONS = ("cancel", "cancel", "fail", "retry")
"""What an operator may do to a job."""

QUEUES = ("high", "low")

EVERY = (1, 2)
"""Seconds between the ticks of a schedule."""


class JobFault(Fault):
    """One thing that goes wrong with a job."""

    __slots__ = ()

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.2f} s" if self.seconds else ""
        if self.place in ("handler", "verifier"):
            return f"{self.kind} at run {self.nth} of the {self.place} of job {self.target}{lasting}"
        if self.place == "operator":
            return f"operator: {self.kind} job {self.target} at {self.at:.2f} s"
        return super().__str__()


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task; each has a verifier.

    Args:
        in_thread: its handler is a plain function.
        cooperates: its handler asks for its lease and its soft limit.
        into_inbox: its effect is a row of the database, written behind an inbox.
    """

    name: str
    queue: str
    lease: float
    recovery: str
    max_attempts: int
    max_running: int | None
    max_running_per_key: int | None
    hard_limit: float | None
    soft_limit: float | None
    in_thread: bool
    cooperates: bool
    ledger: bool
    into_inbox: bool


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job that a producer enqueues; see `lab.simulator.plan.Planned`."""

    number: int
    transaction: int
    at: float
    task: str
    key: str | None
    unique_key: str | None
    delay: float
    is_rolled_back: bool


@dataclass(frozen=True, slots=True)
class PlannedSchedule:
    """A job of a task every so many seconds; ``is_unique``: none while one is open."""

    task: str
    every: int
    is_unique: bool


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything that a seed decides beforehand; see `lab.simulator.schedule.Schedule`."""

    seed: int
    processes: int
    lease: float
    poll: float
    spread: float
    """The longest that a statement, or its answer, travels."""
    pace: float
    """The longest that a handler takes where nothing goes wrong."""
    concurrency: int
    grace: float
    queues: tuple[str, ...] | None
    """In the order of their priority."""
    notify: bool
    pooled: bool
    retention: float | None
    resolves: bool
    tasks: tuple[PlannedTask, ...]
    schedule: PlannedSchedule | None
    jobs: tuple[PlannedJob, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def chances(self) -> str:
        return f"{self.seed} chances of jobs"

    @property
    def max_attempts(self) -> int:
        return max(each.max_attempts for each in self.tasks)

    @property
    def faults_end(self) -> float:
        return 2.5 * self.lease

    @property
    def numbers(self) -> list[int]:
        return [each.number for each in self.jobs]

    def task(self, name: str) -> PlannedTask:
        """Return a task."""
        return next(each for each in self.tasks if each.name == name)

    def without(
        self, faults: Collection[int] = (), messages: Collection[int] = (), processes: Collection[int] = ()
    ) -> JobPlan:
        """Leave out faults by their place in the list, jobs by number, and so many processes."""
        return replace(
            self,
            processes=max(1, self.processes - len(processes)),
            jobs=tuple(each for each in self.jobs if each.number not in messages),
            faults=tuple(each for place, each in enumerate(self.faults) if place not in faults),
        )


def job_plan_of(seed: int) -> JobPlan:
    """Draw the plan of one schedule of jobs; most are small, as of messages."""
    chance = random.Random(f"{seed} plan of jobs")
    size = _size(chance)
    tasks = tuple(_task(chance, f"t{number}") for number in range(size.tasks))
    plan = JobPlan(
        seed=seed,
        processes=size.processes,
        lease=max(each.lease for each in tasks),
        poll=chance.choice((0.4, 0.8)),
        spread=chance.choice((0.0015, 0.0015, 0.006)),
        pace=chance.choice((0.006, 0.006, 0.05, 0.3)),
        concurrency=chance.choice((1, 2, 4, 10)),
        grace=chance.choice((0.0, 0.3, 1.0)),
        queues=chance.choice((None, QUEUES)),
        notify=chance.random() < 0.7,
        pooled=chance.random() < 0.1,
        retention=0.5 if chance.random() < 0.1 else None,
        resolves=chance.random() < 0.4,
        tasks=tasks,
        schedule=_schedule(chance, tasks),
    )
    plan = replace(plan, jobs=_jobs(chance, tasks, size.jobs))
    return replace(plan, faults=_faults(chance, plan, size.faults))


class _Size(NamedTuple):
    processes: int
    tasks: int
    jobs: int
    faults: int


def _size(chance: random.Random) -> _Size:
    draw = chance.choice
    if chance.random() < SMALL:
        return _Size(draw((1, 2, 2, 2)), draw((1, 1, 2)), draw((1, 2, 2, 3, 3, 4)), draw((0, 1, 1, 1, 2, 2)))
    return _Size(draw((2, 2, 3)), draw((1, 2, 3)), draw((6, 8, 12)), draw((1, 2, 4, 8)))


def _task(chance: random.Random, name: str) -> PlannedTask:
    lease = chance.choice((0.6, 0.9, 1.5))
    hard = chance.choice((None, None, 0.3, lease * 1.5))
    kind = chance.choice(("free", "free", "few", "keyed", "keyed"))
    return PlannedTask(
        name=name,
        queue=chance.choice(QUEUES),
        lease=lease,
        recovery=chance.choice(("auto", "auto", "manual", "verify")),
        max_attempts=chance.choice((2, 3, 5)),
        max_running=chance.choice((1, 2))
        if kind == "few" or (kind == "keyed" and chance.random() < 0.3)
        else None,
        max_running_per_key=chance.choice((1, 1, 2)) if kind == "keyed" else None,
        hard_limit=hard,
        soft_limit=hard * 0.6 if hard is not None and chance.random() < 0.5 else None,
        in_thread=chance.random() < 0.3,
        cooperates=chance.random() < 0.5,
        ledger=chance.random() < 0.5,
        into_inbox=chance.random() < 0.3,
    )


def _schedule(chance: random.Random, tasks: tuple[PlannedTask, ...]) -> PlannedSchedule | None:
    if chance.random() >= 0.12:
        return None
    return PlannedSchedule(chance.choice(tasks).name, chance.choice(EVERY), chance.random() < 0.3)


def _jobs(chance: random.Random, tasks: tuple[PlannedTask, ...], many: int) -> tuple[PlannedJob, ...]:
    keys = [f"k{number}" for number in range(chance.choice((1, 2)))]
    unique = chance.choice((0.0, 0.0, 0.4))
    span = chance.choice((0.0, 0.3, 1.0))
    jobs: list[PlannedJob] = []
    transaction = 0
    at, is_rolled_back = 0.0, False
    for number in range(many):
        if not number or chance.random() < 0.6:
            transaction += 1
            at = chance.random() * span
            is_rolled_back = chance.random() < 0.1
        task = chance.choice(tasks)
        key = chance.choice(keys) if task.max_running_per_key is not None else None
        unique_key = chance.choice(("u0", "u1")) if chance.random() < unique else None
        delay = chance.random() if chance.random() < 0.15 else 0.0
        jobs.append(PlannedJob(number, transaction, at, task.name, key, unique_key, delay, is_rolled_back))
    return tuple(jobs)


def _faults(chance: random.Random, plan: JobPlan, many: int) -> tuple[Fault, ...]:
    if chance.random() < 0.06:
        return (JobFault("handler", POISON, chance.randrange(len(plan.jobs))),)
    return tuple(_fault(chance, plan) for _ in range(many))


def _fault(chance: random.Random, plan: JobPlan) -> Fault:
    process = chance.randrange(plan.processes)
    # Half of them are short, the others end a lease.
    seconds = plan.lease * (chance.uniform(0.05, 0.6) if chance.random() < 0.5 else chance.uniform(0.6, 2.0))
    at = chance.random() * plan.lease * 1.5
    job = chance.randrange(len(plan.jobs))
    place = chance.random()
    if place < 0.40:
        nth = 1 + int(chance.random() * chance.choice((12, 40, 90)))
        return JobFault("statement", chance.choice(STATEMENT_FAULTS), process, nth, seconds=seconds)
    if place < 0.75:
        nth = chance.choice((1, 1, 1, 2, 3))
        return JobFault("handler", chance.choice(HANDLER_FAULTS), job, nth, seconds=seconds)
    if place < 0.78:
        return JobFault("verifier", chance.choice(VERIFIER_FAULTS), job, chance.choice((1, 1, 2)), seconds=seconds)
    if place < 0.92:
        return JobFault("process", chance.choice(TIMED_FAULTS), process, at=at, seconds=seconds)
    return JobFault("operator", chance.choice(OPERATIONS), job, at=at)
