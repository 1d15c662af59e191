"""What happens in one schedule, drawn from its seed before it begins: processes, messages, faults.

Every fault is an entry of a list, placed where it can be found again when others are left out: at the n-th
statement of a process, at the n-th publish of a message, or at an instant. So a schedule that fails can be
repeated with fewer of them, until nothing is left that is not needed.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace

STATEMENT_FAULTS = (
    "cut before", "cut after", "cut after", "hole before", "hole after", "slow", "slow", "late", "time-out",
    "deadlock", "crash before", "crash after", "crash after", "crash at answer", "pause before", "pause after",
    "read-only",
)  # fmt: skip
"""What may happen at a statement. *after*: the database has done it, and its answer is lost."""

PUBLISH_FAULTS = (
    "retry", "retry", "retry", "unavailable", "permanent", "defer", "defer", "raise", "exit", "hang",
    "accepted hang", "false failure", "late", "slow", "slow", "crash before", "crash after", "pause before",
    "pause after", "block", "stubborn",
)  # fmt: skip
"""What may happen at a publish."""

TIMED_FAULTS = ("crash", "crash", "pause", "pause", "stop", "stop", "hurry", "restart", "vanish")
"""What may happen at an instant."""

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
    pace: float
    """The longest that a publish takes where nothing goes wrong."""
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
            pace=0.05,
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
    """Draw the plan of one schedule."""
    chance = random.Random(f"{seed} plan")
    lease = chance.choice((0.9, 1.2, 1.8))
    publish_timeout = lease * chance.choice((0.15, 0.3))
    processes = chance.choice((1, 2, 2, 2, 3))
    plan = Plan(
        seed=seed,
        processes=processes,
        lease=lease,
        poll=chance.choice((0.4, 0.8)),
        publish_timeout=publish_timeout,
        pace=chance.choice((0.006, 0.006, 0.05, 0.9 * publish_timeout)),
        max_attempts=chance.choice((2, 3, 5, 12)),
        batch=chance.choice((2, 5, 20)),
        concurrency=chance.choice((1, 3, 20)),
        grace=chance.choice((0.0, 0.3, 1.0)),
        breaker_failures=chance.choice((0, 0, 0, 3)),
        notify=chance.random() < 0.7,
        pooled=chance.random() < 0.15,
        takes_batches=chance.random() < 0.25,
        resolves=chance.random() < 0.5,
        messages=_messages(chance),
    )
    faults = _faults(chance, plan)
    if any(fault.kind == POISON for fault in faults):
        plan = replace(plan, max_attempts=min(plan.max_attempts, 3), pace=0.006, takes_batches=False)
    return replace(plan, faults=faults)


def _messages(chance: random.Random) -> tuple[Planned, ...]:
    many = chance.choice((4, 8, 12, 20, 30))
    keys = [f"k{number}" for number in range(chance.choice((1, 2, 4)))]
    ordered = chance.choice((0.0, 0.5, 0.8, 1.0))
    recovery = chance.choice(("auto", "auto", "auto", "manual"))
    span = chance.choice((0.0, 0.3, 1.5))
    messages: list[Planned] = []
    transaction = 0
    at, delay, is_rolled_back = 0.0, 0.0, False
    for number in range(many):
        if not number or chance.random() < 0.5:
            transaction += 1
            at = chance.random() * span
            is_rolled_back = chance.random() < 0.1
        key = chance.choice(keys) if chance.random() < ordered else None
        delay = chance.random() if chance.random() < 0.1 else 0.0
        messages.append(Planned(number, transaction, at, key, delay, recovery, is_rolled_back))
    return tuple(messages)


def _faults(chance: random.Random, plan: Plan) -> tuple[Fault, ...]:
    if chance.random() < 0.06:
        return tuple(Fault("publish", POISON, chance.randrange(len(plan.messages))) for _ in range(1))
    many = chance.choice((0, 1, 2, 3, 4, 6, 8))
    return tuple(_fault(chance, plan) for _ in range(many))


def _fault(chance: random.Random, plan: Plan) -> Fault:
    process = chance.randrange(plan.processes)
    # Half of them are short, the others end a lease.
    seconds = plan.lease * (chance.uniform(0.05, 0.6) if chance.random() < 0.5 else chance.uniform(0.6, 2.5))
    at = chance.random() * plan.lease * 1.5
    place = chance.random()
    if place < 0.45:
        nth = 1 + int(chance.random() * chance.choice((12, 40, 90)))
        return Fault("statement", chance.choice(STATEMENT_FAULTS), process, nth, seconds=seconds)
    if place < 0.80:
        message = chance.randrange(len(plan.messages))
        nth = chance.choice((1, 1, 1, 2, 3))
        return Fault("publish", chance.choice(PUBLISH_FAULTS), message, nth, seconds=seconds)
    if place < 0.95:
        return Fault("process", chance.choice(TIMED_FAULTS), process, at=at, seconds=seconds)
    return Fault("operator", chance.choice(("retry", "skip", "pause")), 0, at=at, seconds=seconds)
