"""Looks at every commit and every publish of a schedule, and says which guarantee was broken.

It judges by what changed in a row, and who wrote it; it knows nothing of the statements that did so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fencepost.core.records import Message
from fencepost.publishers.base import Delivery
from lab.fake_store.rows import OUTBOX, OutboxRow, Table

if TYPE_CHECKING:
    from lab.simulator.process import Client, Process
    from lab.simulator.run import Run
    from lab.simulator.server import ServerSession

Label = tuple[str, int]


class Violation(Exception):
    """A guarantee was broken."""


@dataclass(slots=True, eq=False)
class Lease:
    """One token of one row: who has it, since when, and how it ended."""

    process: Client
    label: Label
    since: float
    until: int
    """Its end in the database, as last written, in microseconds."""
    ended: str | None = None
    out_of_turn: bool = False


@dataclass(slots=True, eq=False)
class Publish:
    """One publish, as it was started."""

    number: int
    nth: int
    row_id: int
    token: int
    process: Process
    at: float
    cause: str | None
    """Why there was another one after the one before; None for the first."""
    told: str | None = None
    accepted_at: list[float] = field(default_factory=list)


class Watch:
    """The guarantees of one schedule."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.violations: list[str] = []
        self.leases: dict[tuple[int, int], Lease] = {}
        self.publishes: dict[int, list[Publish]] = {}
        """By row id."""
        self.rows_of: dict[int, int] = {}
        """Row ids by message numbers."""
        self.keys: dict[str, list[int]] = {}
        """Row ids of each key, in id order."""
        self.open: set[int] = set()
        self.dead: set[int] = set()
        self.touched: set[int] = set()
        """Rows that an operator had a hand in."""
        self.first_accepted: dict[str, int] = {}
        """Of each key, the highest row id that was accepted, and not touched."""
        self.done_by: Counter[Label] = Counter()
        self.commits = 0

    def violated(self, guarantee: str, what: str) -> None:
        """Note that a guarantee was broken, and end the schedule."""
        if self._run.is_over:
            return
        self._run.trace("watch", "VIOLATION", guarantee, what)
        self.violations.append(f"{guarantee}: {what}")
        self._run.is_finished = True

    # --- commits ---

    def committed(
        self, session: ServerSession, written: Mapping[Table[Any], Mapping[Any, Any]], committed: Mapping[Any, Any]
    ) -> None:
        """Look at what a transaction is about to make visible.

        Args:
            session: that commits.
            written: rows by table and key; None where it is deleted.
            committed: what stood there until now.
        """
        rows = written.get(OUTBOX)
        if not rows:
            return
        self.commits += 1
        before_all: Mapping[int, OutboxRow] = committed[OUTBOX]
        done: list[OutboxRow] = []
        for row_id in sorted(rows):
            before, after = before_all.get(row_id), rows[row_id]
            if before == after:
                continue
            if after is None:
                self._deleted(before)
            elif before is None:
                self._inserted(session, after)
            else:
                self._changed(session, before, after)
                if after.status == "done":
                    done.append(after)
        for row in done:
            if row.ordering_key is not None and row.outcome != "skipped":
                self._finalized_in_order(row, rows, before_all)

    def _deleted(self, row: OutboxRow | None) -> None:
        if row is None:
            return
        retention = self._run.retention_micros
        now = self._run.database.now()
        if row.status != "done" or row.done_at is None or retention is None or row.done_at > now - retention:
            self.violated("I16", f"row {row.id} was deleted while {row.status}")

    def _inserted(self, session: ServerSession, row: OutboxRow) -> None:
        number = int((row.payload or "")[5:-1])
        self.rows_of[number] = row.id
        self.open.add(row.id)
        if row.ordering_key is not None:
            self.keys.setdefault(row.ordering_key, []).append(row.id)
            if sorted(self.keys[row.ordering_key]) != self.keys[row.ordering_key]:
                self.violated("I4", f"id {row.id} of key {row.ordering_key} became visible out of order")

    def _changed(self, session: ServerSession, before: OutboxRow, after: OutboxRow) -> None:
        if self._run.keeps_trace:
            self._run.trace(
                *session.label,
                "writes",
                after.id,
                before.status,
                "->",
                after.status,
                after.lease_version,
                after.attempts,
            )
        if after.lease_version < before.lease_version:
            self.violated("I9", f"token of row {after.id} fell to {after.lease_version}")
        if not 0 <= after.attempts <= self._run.plan.max_attempts:
            self.violated("I7", f"row {after.id} has {after.attempts} attempts")
        match before.status:
            case "done":
                self.violated("I12", f"row {after.id} was done and is {after.status}")
            case "dead":
                self._operated(session, before, after)
            case "processing":
                self._left_or_kept(session, before, after)
            case _:
                self._left_waiting(session, before, after)
        if after.status in ("done", "dead"):
            self.open.discard(after.id)
        if after.status == "dead":
            self.dead.add(after.id)

    def _left_waiting(self, session: ServerSession, before: OutboxRow, after: OutboxRow) -> None:
        """A row that nobody held was claimed, parked or promoted; or had no attempt left."""
        if after.status == "processing":
            self._claimed(session, before, after)
        elif after.status == "dead" and after.outcome != "exhausted":
            self.violated("I12", f"row {after.id} was {before.status} and is dead ({after.outcome})")
        elif after.status == "done":
            self.violated("I1", f"row {after.id} was {before.status} and is done, claimed by nobody")
        elif before.status == "blocked" and session.role == "claim":
            self.violated("I1", f"row {after.id} was parked with nothing before it, until the reaper came by")

    def _operated(self, session: ServerSession, before: OutboxRow, after: OutboxRow) -> None:
        if after == before:
            return
        if session.process.name != "operator" or after.lease_version <= before.lease_version:
            self.violated("I12", f"row {after.id} was dead, and {session.label} made it {after.status}")
        self.dead.discard(after.id)
        self.touched.add(after.id)
        if after.status == "pending":
            self.open.add(after.id)

    def _claimed(self, session: ServerSession, before: OutboxRow, after: OutboxRow) -> None:
        if after.lease_version != before.lease_version + 1:
            self.violated("I9", f"a claim of row {after.id} raised the token to {after.lease_version}")
        if after.attempts != before.attempts + 1:
            self.violated("I7", f"a claim of row {after.id} left it at {after.attempts} attempts")
        self.leases[after.id, after.lease_version] = Lease(
            session.process, session.label, self._run.world.now, after.lease_until or 0
        )

    def _left_or_kept(self, session: ServerSession, before: OutboxRow, after: OutboxRow) -> None:
        lease = self.leases[before.id, before.lease_version]
        now = self._run.database.now()
        if after.lease_version > before.lease_version:
            if before.lease_until is None or before.lease_until >= now:
                self.violated("I9", f"row {after.id} was taken while its lease lasted")
            self._ran_out(lease, before)
            self._taken_in_time(before)
            if after.status == "processing":
                lease.ended = "taken over"
                self._claimed(session, before, after)
            elif after.status == "dead":
                lease.ended = "buried"
                if after.outcome == "crashed" and before.attempts < self._run.plan.max_attempts:
                    self.violated("I13", f"row {after.id} was buried with attempts to spare")
            else:
                self.violated("I12", f"row {after.id} was taken from {lease.label} and is {after.status}")
            return
        if lease.label != session.label:
            self.violated("I2", f"{session.label} wrote row {after.id}, which {lease.label} holds")
        if after.status == "processing":
            lease.until = after.lease_until or 0
            return
        lease.ended = f"made {after.status}"
        if after.status == "done":
            self.done_by[session.label] += 1
            self._closed(before)
        elif after.status == "pending":
            self._given_back(lease, before)

    def _ran_out(self, lease: Lease, row: OutboxRow) -> None:
        if lease.process.why_lost(lease.since - self._run.plan.lease) is None:
            self.violated(
                "I15",
                f"the lease of row {row.id} ran out, although nothing has happened to {lease.label}, its holder",
            )

    def _taken_in_time(self, row: OutboxRow) -> None:
        """Where a healthy process is there, and nothing stands before the row in its key, it is not left lying."""
        run, plan = self._run, self._run.plan
        if row.ordering_key is not None and self.keys[row.ordering_key][0] != row.id:
            return
        ended = run.seconds_of(row.lease_until or 0)
        if plan.breaker_failures or run.was_paused or not any(each.is_well_since(ended) for each in run.processes):
            return
        rows = run.database.committed[OUTBOX]
        suspects = sum(1 for each in self.open if rows[each].reclaim_count or rows[each].status == "processing")
        late = run.world.now - ended
        allowed = 1.0 + 1.2 * plan.poll + (suspects + 1) * plan.publish_timeout
        if late > allowed:
            self.violated("I10", f"row {row.id} was taken over {late:.2f} s after its lease had ended")

    def _closed(self, row: OutboxRow) -> None:
        mine = [each for each in self.publishes.get(row.id, ()) if each.token == row.lease_version]
        if not mine or mine[-1].told != "delivered":
            self.violated("I1", f"row {row.id} was closed as delivered, and nobody said so")

    def _given_back(self, lease: Lease, row: OutboxRow) -> None:
        key = row.ordering_key
        if key is not None:
            lease.out_of_turn = any(
                other in self.open or other in self.dead for other in self.keys[key] if other < row.id
            )

    def _finalized_in_order(
        self, row: OutboxRow, written: Mapping[int, OutboxRow | None], before: Mapping[int, OutboxRow]
    ) -> None:
        for other in self.keys[row.ordering_key or ""]:
            if other >= row.id:
                return
            stands = written.get(other) or before.get(other)
            if stands is not None and stands.status != "done":
                self.violated("I4", f"row {row.id} was finalized before row {other} of its key ({stands.status})")

    # --- publishes ---

    def publish_starts(self, process: Process, message: Message, delivery: Delivery) -> Publish:
        """Note that a publish starts, and judge whether it may."""
        run = self._run
        number = int(message.payload[5:-1])
        row_id, token = message.id, delivery.token
        if self.rows_of.get(number) != row_id or number in run.rolled_back:
            self.violated("I6", f"message {number} was published and is not committed")
        if message.payload != f'{{"n":{number}}}'.encode() or message.event_type != f"event.{number}":
            self.violated("I11", f"message {number} was published with another payload")
        lease = self.leases.get((row_id, token))
        if lease is None or lease.label != process.label:
            self.violated("I2", f"{process.label} publishes row {row_id} under token {token}, which it never had")
            return Publish(number, 1, row_id, token, process, run.world.now, None)
        before = self.publishes.setdefault(row_id, [])
        if any(each.token == token for each in before):
            self.violated("I3", f"row {row_id} is published twice under token {token}")
        elif lease.until < run.database.now() and not run.plan.takes_batches:
            self.violated("I15", f"{process.label} starts to publish row {row_id} after its lease has ended")
        if delivery.attempt > run.plan.max_attempts:
            self.violated("I3", f"row {row_id} is published at attempt {delivery.attempt}")
        cause = self._cause_of_another(before[-1], lease) if before else None
        publish = Publish(number, len(before) + 1, row_id, token, process, run.world.now, cause)
        before.append(publish)
        run.trace(*process.label, "publishes", number, "token", token, "again:" if cause else "", cause or "")
        return publish

    def _cause_of_another(self, last: Publish, own: Lease) -> str:
        """Return why a message is published again, after this one."""
        if own.ended is not None:  # late: it is somebody else's by now
            return own.process.why_lost(own.since - self._run.plan.lease) or "unexplained"
        lease = self.leases[last.row_id, last.token]
        if lease.ended in ("taken over", "buried"):
            return lease.process.why_lost(lease.since - self._run.plan.lease) or "unexplained"
        if last.told not in (None, "delivered"):
            return f"reported: {last.told}"
        if lease.ended == "made pending" and lease.out_of_turn:
            return "out of turn"
        if lease.ended == "made pending" and last.told is None:
            return "reported: no end"
        if last.row_id in self.touched:
            return "operator"
        self.violated("I15", f"row {last.row_id} is published again, although it was delivered ({lease.ended})")
        return "unexplained"

    def told(self, publish: Publish, what: str) -> None:
        """Note what the publisher told the dispatcher; the first that it heard counts, unless it was cut off."""
        if publish.told is None or what == "cut off":
            publish.told = what
        self._run.trace(*publish.process.label, "was told", publish.number, what)

    def cut_off(self, batch: Iterable[tuple[int, int]]) -> None:
        """Note that a batch was cut off as a whole, by row ids and tokens."""
        for row_id, token in batch:
            for publish in self.publishes.get(row_id, ()):
                if publish.token == token:
                    self.told(publish, "cut off")

    def accepted(self, publish: Publish) -> None:
        """The receiver has taken a message."""
        row_id, run = publish.row_id, self._run
        is_first = not any(each.accepted_at for each in self.publishes[row_id])
        publish.accepted_at.append(run.world.now)
        run.trace("receiver", "takes", publish.number, "token", publish.token)
        row = run.database.committed[OUTBOX].get(row_id)
        key = None if row is None else row.ordering_key
        if key is None or not is_first or row_id in self.touched:
            return
        if self.first_accepted.get(key, 0) > row_id:
            self.violated("I4", f"row {row_id} was accepted after row {self.first_accepted[key]} of its key")
        self.first_accepted[key] = max(row_id, self.first_accepted.get(key, 0))

    # --- the end ---

    def is_drained(self) -> bool:
        """Tell whether nothing is open but what waits behind a dead message of its key."""
        if not self.open:
            return True
        return bool(self.dead) and all(self._is_behind_dead(row_id) for row_id in self.open)

    def _is_behind_dead(self, row_id: int) -> bool:
        row = self._run.database.committed[OUTBOX].get(row_id)
        if row is None or row.ordering_key is None:
            return False
        if row.lease_until is not None and row.lease_until >= self._run.database.now():
            return False
        return any(other in self.dead for other in self.keys[row.ordering_key] if other < row_id)

    def has_stopped(self, process: Process) -> None:
        """A process has ended as it was told to: it leaves nothing under its lease, if that is all."""
        if not process.was_only_told_to_stop():
            return
        rows = self._run.database.committed[OUTBOX]
        for row_id in sorted(self.open):
            row = rows[row_id]
            lease = self.leases.get((row_id, row.lease_version))
            if row.status == "processing" and lease is not None and lease.label == process.label:
                self.violated("I1", f"{process.label} has stopped and left row {row_id} under its lease")

    def finish(self) -> None:
        """Judge what is left."""
        for row_id, publishes in self.publishes.items():
            if row_id in self.dead or row_id in self.open:
                continue
            row = self._run.database.committed[OUTBOX].get(row_id)
            outcome = None if row is None else row.outcome
            if outcome == "delivered" and not any(each.accepted_at for each in publishes):
                self.violated("I1", f"row {row_id} stands as delivered and was never accepted")
        for process in self._run.processes:
            if process.is_up and not self.violations:
                self._counted_right(process)
        if not self.violations:
            self._innocents_live()

    def _counted_right(self, process: Process) -> None:
        counted, written = process.dispatcher.counters.delivered, self.done_by[process.label]
        if counted != written:
            self.violated("I2", f"{process.label} closed {written} rows, and believes that it were {counted}")

    def _innocents_live(self) -> None:
        """A message that kills its process takes none of its neighbours with it."""
        poison = self._run.poison
        if poison is None:
            return
        rows = self._run.database.committed[OUTBOX]
        for row_id in sorted(self.dead):
            if row_id != self.rows_of.get(poison) and row_id in rows and rows[row_id].recovery_policy != "manual":
                self.violated(
                    "I13", f"row {row_id} is dead ({rows[row_id].outcome}) of its neighbour, a poison message"
                )

    def duplicates(self) -> Counter[str]:
        """Count what was accepted more than once, by cause."""
        found: Counter[str] = Counter()
        for publishes in self.publishes.values():
            taken = [each for each in publishes if each.accepted_at]
            for each in taken[1:]:
                found[each.cause or "unexplained"] += 1
        return found
