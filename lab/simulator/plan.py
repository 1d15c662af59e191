"""What happens in one schedule, drawn from its seed before it begins: processes, messages, faults.

Every fault is an entry of a list, placed where it can be found again when others are left out: at the n-th
statement of a process, at the n-th publish of a message, or at an instant. So a schedule that fails can be
repeated with fewer of them, until nothing is left that is not needed.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

STATEMENT_FAULTS = (
    "cut before", "cut after", "cut after", "hole before", "hole after", "slow", "slow", "late", "time-out",
    "deadlock", "crash before", "crash after", "crash after", "crash at answer", "pause before", "pause after",
    "read-only",
)  # fmt: skip
"""What may happen at a statement. *after*: the database has done it, and its answer is lost."""

STATEMENTS = frozenset({"statement", "write"})
"""Where that may be: at any statement of a process, or at one of those that write results."""

PUBLISH_FAULTS = (
    "retry", "retry", "retry", "unavailable", "permanent", "defer", "defer", "raise", "exit", "hang",
    "accepted hang", "false failure", "late", "slow", "slow", "crash before", "crash after", "pause before",
    "pause before", "pause after", "pause after", "pause after", "block", "stubborn",
)  # fmt: skip
"""What may happen at a publish."""

TIMED_FAULTS = ("crash", "crash", "pause", "pause", "stop", "stop", "hurry", "restart", "vanish")
"""What may happen at an instant."""

SMALL = 0.9
"""The share of small plans."""

LOSSY = "lossy"
"""The server fails over to a replica that had not got the last commits; see `lab.simulator.failover`."""

POISON = "poison"
"""A message that kills the process at each of its publishes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Args:
        kind: what.
        target: the number of the process, or of the message.
        nth: at its n-th statement or publish, from 1; 0 for faults at an instant.
        at: the instant, in seconds from the beginning.
        seconds: how long it lasts, where it does.
    """

    place: str
    kind: str
    target: int
    nth: int = 0
    at: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.2f} s" if self.seconds else ""
        if self.place == "statement":
            return f"{self.kind} at statement {self.nth} of process {self.target}{lasting}"
        if self.place == "write":
            return f"{self.kind} at statement {self.nth} of process {self.target} for results{lasting}"
        if self.place == "publish":
            return f"{self.kind} at publish {self.nth} of message {self.target}{lasting}"
        if self.place == "operator":
            return f"operator: {self.kind} at {self.at:.2f} s{lasting}"
        return f"{self.kind} of process {self.target} at {self.at:.2f} s{lasting}"


@dataclass(frozen=True, slots=True)
class Planned:
    """One message that a producer enqueues.

    Args:
        transaction: messages of one number share a transaction.
        is_rolled_back: so is its whole transaction.
    """

    number: int
    transaction: int
    at: float
    key: str | None
    delay: float
    recovery: str
    is_rolled_back: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a seed decides beforehand; ``chances`` seeds what is left: jitter, latencies, turns."""

    seed: int
    processes: int
    lease: float
    poll: float
    publish_timeout: float
    spread: float
    """The longest that a statement, or its answer, travels."""
    pace: float
    """The longest that a publish takes where nothing goes wrong."""
    pace_again: float
    """The same for every publish of a message after the first: slow ones leave time for two who hold it."""
    max_attempts: int
    batch: int
    concurrency: int
    grace: float
    breaker_failures: int
    notify: bool
    pooled: bool
    takes_batches: bool
    resolves: bool
    """An operator retries, or skips, what is dead at the end."""
    rate: float | None = None
    """Messages a second that the queue lets through."""
    keeps_ledger: bool = False
    retention: float | None = None
    messages: tuple[Planned, ...] = ()
    faults: tuple[Fault, ...] = field(default=())

    @classmethod
    def plain(cls, seed: int, *, faults: tuple[Fault, ...], keys: int, messages: int = 12) -> Plan:
        """Make a plan that only these faults befall, of messages that are there from the beginning."""
        return cls(
            seed=seed,
            processes=2,
            lease=0.9,
            poll=0.4,
            publish_timeout=0.2,
            spread=0.0015,
            pace=0.05,
            pace_again=0.05,
            max_attempts=5,
            batch=20,
            concurrency=20,
            grace=0.3,
            breaker_failures=0,
            notify=True,
            pooled=False,
            takes_batches=False,
            resolves=False,
            messages=tuple(
                Planned(number, number, 0.0, f"k{number % keys}" if keys else None, 0.0, "auto", False)
                for number in range(messages)
            ),
            faults=faults,
        )

    @property
    def chances(self) -> str:
        return f"{self.seed} chances"

    @property
    def faults_end(self) -> float:
        """Seconds after which nothing goes wrong any more."""
        return 2.5 * self.lease

    @property
    def numbers(self) -> list[int]:
        """Of the messages."""
        return [each.number for each in self.messages]

    def without(
        self, faults: Collection[int] = (), messages: Collection[int] = (), processes: Collection[int] = ()
    ) -> Plan:
        """Leave out faults by their place in the list, messages by number, and so many processes."""
        return replace(
            self,
            processes=max(1, self.processes - len(processes)),
            messages=tuple(each for each in self.messages if each.number not in messages),
            faults=tuple(each for place, each in enumerate(self.faults) if place not in faults),
        )


def plan_of(seed: int) -> Plan:
    """Draw the plan of one schedule.

    Most are small: what two processes can do wrong to a few messages shows in those, and they cost little.
    """
    chance = random.Random(f"{seed} plan")
    is_small = chance.random() < SMALL
    lease = chance.choice((0.9, 1.8))
    publish_timeout = lease * chance.choice((0.15, 0.3))
    plan = Plan(
        seed=seed,
        processes=chance.choice((1, 2, 2, 2) if is_small else (2, 2, 3)),
        lease=lease,
        poll=lease * chance.choice((0.4, 0.8)),
        publish_timeout=publish_timeout,
        spread=chance.choice((0.0015, 0.006)),
        pace=chance.choice((0.006, 0.05, 0.9 * publish_timeout)),
        pace_again=0.0,
        max_attempts=chance.choice((2, 3, 5, 12)),
        batch=chance.choice((2, 5, 20)),
        concurrency=chance.choice((1, 3, 20)),
        grace=chance.choice((0.0, 0.3, 1.0)),
        breaker_failures=chance.choice((0, 0, 0, 3)),
        notify=chance.random() < 0.6,
        pooled=chance.random() < 0.08,
        takes_batches=chance.random() < 0.25,
        resolves=chance.random() < 0.5,
        messages=_messages(chance, chance.choice((1, 2, 2, 3, 3, 4) if is_small else (5, 6, 8, 12))),
    )
    plan = replace(plan, pace_again=chance.choice((plan.pace, 0.9 * publish_timeout)))
    faults = _faults(chance, plan, chance.choice((0, 1, 1, 1, 2, 2) if is_small else (1, 2, 3, 4, 6)))
    if any(fault.kind == POISON for fault in faults):
        plan = replace(plan, max_attempts=min(plan.max_attempts, 3), pace=0.006, takes_batches=False)
    return replace(plan, faults=faults, **_of_queue(chance, plan))


def _of_queue(chance: random.Random, plan: Plan) -> dict[str, Any]:
    """Draw what most queues do without."""
    return {
        # (Probes go past the rate.)
        "rate": chance.choice((4.0, 10.0)) if chance.random() < 0.06 and not plan.breaker_failures else None,
        "keeps_ledger": chance.random() < 0.1,
        "retention": chance.choice((0.0, 0.2)) if chance.random() < 0.1 else None,
    }


def _messages(chance: random.Random, many: int) -> tuple[Planned, ...]:
    keys = [f"k{number}" for number in range(chance.choice((1, 1, 2, 4)))]
    ordered = chance.choice((0.0, 0.5, 0.8, 1.0))
    recovery = chance.choice(("auto", "auto", "verify", "manual"))
    span = chance.choice((0.0, 0.0, 0.05, 0.4))
    messages: list[Planned] = []
    transaction = 0
    at, delay, is_rolled_back = 0.0, 0.0, False
    for number in range(many):
        if not number or chance.random() < 0.35:
            transaction += 1
            at = chance.random() * span
            is_rolled_back = chance.random() < 0.1
        key = chance.choice(keys) if chance.random() < ordered else None
        delay = chance.random() * 0.3 if chance.random() < 0.05 else 0.0
        messages.append(Planned(number, transaction, at, key, delay, recovery, is_rolled_back))
    return tuple(messages)


def _faults(chance: random.Random, plan: Plan, many: int) -> tuple[Fault, ...]:
    if chance.random() < 0.06:
        return (Fault("publish", POISON, chance.randrange(len(plan.messages))),)
    return tuple(_fault(chance, plan) for _ in range(many))


def _fault(chance: random.Random, plan: Plan) -> Fault:
    process = chance.randrange(plan.processes)
    # Some are short, the others end a lease.
    seconds = plan.lease * (chance.uniform(0.05, 0.6) if chance.random() < 0.4 else chance.uniform(0.8, 2.2))
    place = chance.random()
    if place < 0.2:
        # (The first are the connection's own, and most results take five.)
        nth = 1 + int(chance.random() * chance.choice((7, 7, 17)))
        return Fault("write", chance.choice(STATEMENT_FAULTS), process, nth, seconds=seconds)
    if place < 0.45:
        nth = 1 + int(chance.random() * chance.choice((12, 25, 60)))
        return Fault("statement", chance.choice(STATEMENT_FAULTS), process, nth, seconds=seconds)
    if place < 0.80:
        message = chance.randrange(len(plan.messages))
        nth = chance.choice((1, 1, 1, 2, 3))
        return Fault("publish", chance.choice(PUBLISH_FAULTS), message, nth, seconds=seconds)
    # Most schedules are over soon where nothing holds them up.
    at = chance.random() * chance.choice((0.1, 0.4, 1.5)) * plan.lease
    if place < 0.95:
        return Fault("process", chance.choice(TIMED_FAULTS), process, at=at, seconds=seconds)
    return Fault("operator", chance.choice(("retry", "skip", "pause")), 0, at=at, seconds=seconds)
