"""Judges what commits change in rows, and who wrote it; it knows nothing of the statements that did so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lab.fake_store.rows import ATTEMPT, OUTBOX, OutboxRow, Table
from lab.simulator.seen import Lease, Publish, Seen, number_in

if TYPE_CHECKING:
    from lab.simulator.server import ServerSession


class RowWatch(Seen):
    """The guarantees of rows."""

    def committed(
        self, session: ServerSession, written: Mapping[Table[Any], Mapping[Any, Any]], committed: Mapping[Any, Any]
    ) -> None:
        """Look at what a transaction is about to make visible.

        Args:
            session: that commits.
            written: rows by table and key; None where it is deleted.
            committed: what stood there until now.
        """
        for attempt in written.get(ATTEMPT, {}).values():
            (self.attempts.add if attempt.ended_at is None else self.attempts.discard)(
                (attempt.row_id, attempt.token)
            )
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
        number = number_in(row.payload)
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
        self._claimed_in_time()
        self.leases[after.id, after.lease_version] = Lease(
            session.process, session.label, self._run.world.now, after.lease_until or 0
        )

    def _claimed_in_time(self) -> None:
        """In no span of time more were claimed than the rate lets through, and a bucket full."""
        rate, now = self._run.plan.rate, self._run.world.now
        if rate is None:
            return
        self.claimed_at.append(now)
        for many, since in enumerate(reversed(self.claimed_at), 1):
            if many > rate * (now - since) + max(rate, 1.0) + 0.01:
                self.violated("rate", f"{many} messages were claimed in {now - since:.2f} s at {rate:g} a second")
                return

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
        if not self._may_write(session, lease, before):
            self.violated("I2", f"{session.label} wrote row {after.id}, which {lease.label} holds")
        if after.status == "processing":
            lease.until = after.lease_until or 0
            return
        self._given_up(session, lease, before, after)

    def _may_write(self, session: ServerSession, lease: Lease, row: OutboxRow) -> bool:
        """Tell whether a session writes for the holder of a row."""
        return lease.label == session.label

    def _given_up(self, session: ServerSession, lease: Lease, before: OutboxRow, after: OutboxRow) -> None:
        """Its holder has written what became of it."""
        lease.ended = f"made {after.status}"
        if (after.id, str(after.lease_version)) in self.attempts:
            self.violated("ledger", f"row {after.id} was made {after.status}, and its attempt has no end")
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
        ended = max(ended, run.server.held_until.get((OUTBOX.name, row.id), ended))
        if (
            plan.breaker_failures
            or plan.rate
            or run.was_paused
            or not any(each.is_well_since(ended) for each in run.processes)
        ):
            return
        rows = run.database.committed[OUTBOX]
        suspects = sum(1 for each in self.open if rows[each].reclaim_count or rows[each].status == "processing")
        late = run.world.now - ended
        allowed = 1.0 + 1.2 * plan.poll + (suspects + 1) * plan.publish_timeout
        if late > allowed:
            self.violated("I10", f"row {row.id} was taken over {late:.2f} s after its lease had ended")

    def _closed(self, row: OutboxRow) -> None:
        publishes, number = self.publishes.get(row.id, ()), number_in(row.payload)
        own = [each for each in publishes if each.token == row.lease_version and each.number == number]
        is_said = any(each.is_said_to_be_delivered for each in self._decisive(own))
        if not is_said and (row.id, row.lease_version) not in self.verified:
            self.violated("I1", f"row {row.id} was closed as delivered, and nobody said so")

    def _decisive(self, publishes: list[Publish]) -> list[Publish]:
        """Return which publishes of a message under one token may be what its result says."""
        return publishes[-1:]

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
