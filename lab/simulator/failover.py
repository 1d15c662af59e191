"""A failover to a replica that had not got the last commits: what was lost never was, and its ids come again.

It brings duplicates, and what was lost is lost; but nothing else is, and nobody writes to a row that he holds by a
claim of what is gone. Order, causes and what else tells of the past are not judged after it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from fencepost.core.records import Message
from fencepost.publishers.base import Delivery
from lab.fake_store.rows import OUTBOX, OutboxRow
from lab.simulator.plan import LOSSY, POISON, Fault, Plan, plan_of
from lab.simulator.process import DispatcherProcess
from lab.simulator.run import MessageRun
from lab.simulator.seen import Lease, Publish, number_in
from lab.simulator.server import ServerSession
from lab.simulator.watch import Watch

JUDGED_AFTER = frozenset({"I1", "I2", "I7", "I9", "I12", "alive", "log", "simulator"})
"""Guarantees that hold behind it as well."""


def failover_plan_of(seed: int) -> Plan:
    """Draw the plan of a schedule with such a failover; messages come before it and after it."""
    plan = plan_of(seed)
    chance = random.Random(f"{seed} failover")
    at = plan.lease * chance.uniform(0.05, 0.8)
    # (A pause of the queue might be all that is left of one that was ended again.)
    faults = tuple(each for each in plan.faults if each.kind != POISON and each.place != "operator")
    messages = tuple(
        replace(each, at=each.at + chance.choice((0.0, at + plan.lease * chance.uniform(0.1, 0.5))))
        for each in plan.messages
    )
    lossy = Fault("process", LOSSY, 0, at=at, seconds=plan.lease * chance.uniform(0.02, 0.4))
    return replace(plan, faults=(*faults, lossy), messages=messages, rate=None, retention=None)


class FailoverRun(MessageRun):
    """A schedule of the dispatcher whose database loses commits."""

    watch: FailoverWatch

    def __init__(self, plan: Plan, *, keeps_trace: bool) -> None:
        super().__init__(plan, keeps_trace=keeps_trace)
        self.watch = FailoverWatch(self)
        self.database.keep_commits()

    def _happen(self, fault: Fault) -> None:
        if fault.kind != LOSSY:
            super()._happen(fault)
            return
        self.fault_happens(fault, None)
        self._restart(fault.seconds)
        lost = self.database.lose_commits(self.world.now - fault.seconds)
        self.trace("server", "has lost commits", lost)
        self.watch.fails_over()


class FailoverWatch(Watch):
    """All guarantees until it happens, and then those that are left."""

    def __init__(self, run: MessageRun) -> None:
        super().__init__(run)
        self._has_failed_over = False
        self._once_held: set[tuple[int, int, tuple[str, int]]] = set()
        """Who once held which message under which token."""

    def violated(self, guarantee: str, what: str) -> None:
        if not self._has_failed_over or guarantee in JUDGED_AFTER:
            super().violated(guarantee, what)

    def fails_over(self) -> None:
        """Take what is there now for what has happened."""
        numbers = {row_id: number for number, row_id in self.rows_of.items()}
        self._once_held |= {
            (numbers[row_id], token, lease.label) for (row_id, token), lease in self.leases.items()
        }
        self._has_failed_over = True
        rows: dict[int, OutboxRow] = self._run.database.committed[OUTBOX]
        self.rows_of = {number_in(row.payload): row.id for row in rows.values()}
        self.open = {row.id for row in rows.values() if row.is_open and row.status != "dead"}
        self.dead = {row.id for row in rows.values() if row.status == "dead"}
        self.keys = {}
        for row in rows.values():
            if row.ordering_key is not None:
                self.keys.setdefault(row.ordering_key, []).append(row.id)
            if row.status == "processing":
                lease = self.leases[row.id, row.lease_version]
                lease.ended, lease.until = None, row.lease_until or 0

    def publish_starts(self, process: DispatcherProcess, message: Message, delivery: Delivery) -> Publish:
        """Note that a publish starts: it may be of a message that is lost, by whoever has not heard of it."""
        if not self._has_failed_over:
            return super().publish_starts(process, message, delivery)
        number = number_in(message.payload)
        nth = 1 + sum(each.number == number for some in self.publishes.values() for each in some)
        publish = Publish(number, nth, message.id, delivery.token, process, self._run.world.now, None)
        self.publishes.setdefault(message.id, []).append(publish)
        return publish

    def accepted(self, publish: Publish) -> None:
        if not self._has_failed_over:
            super().accepted(publish)
            return
        publish.accepted_at.append(self._run.world.now)
        publish.is_on_its_way = False

    def _may_write(self, session: ServerSession, lease: Lease, row: OutboxRow) -> bool:
        """Who held the very message under this token, in a claim that was lost, is taken for its holder."""
        return super()._may_write(session, lease, row) or (
            self._has_failed_over and (number_in(row.payload), row.lease_version, session.label) in self._once_held
        )

    def _decisive(self, publishes: list[Publish]) -> list[Publish]:
        """What was delivered under a lost claim is that, also once the same worker has claimed it anew."""
        return publishes if self._has_failed_over else super()._decisive(publishes)

    def finish(self) -> None:
        if not self._has_failed_over:
            super().finish()
            return
        arrived = {each.number for some in self.publishes.values() for each in some if each.accepted_at}
        for row in self._run.database.committed[OUTBOX].values():
            if row.outcome == "delivered" and number_in(row.payload) not in arrived:
                self.violated(
                    "I1", f"row {row.id} stands as delivered, and message {number_in(row.payload)} never arrived"
                )

    def duplicates(self) -> Counter[str]:
        if not self._has_failed_over:
            return super().duplicates()
        taken = Counter(each.number for some in self.publishes.values() for each in some if each.accepted_at)
        return Counter({"a failover that lost commits": sum(many - 1 for many in taken.values())})
