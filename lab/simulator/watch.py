"""Looks at every commit and every publish of a schedule, and says which guarantee was broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.fake_store.rows import OUTBOX
from lab.simulator.judge import Label
from lab.simulator.watch_publishes import PublishWatch
from lab.simulator.watch_rows import RowWatch

if TYPE_CHECKING:
    from lab.simulator.process import DispatcherProcess, Process


class Watch(RowWatch, PublishWatch):
    """All guarantees of one schedule, to its end."""

    def is_drained(self) -> bool:
        """Tell whether nothing is open but what waits behind a dead message of its key."""
        if not self.open:
            return True
        return bool(self.dead) and all(self._is_behind_dead(row_id) for row_id in self.open)

    def left(self) -> str:
        rows = self._run.database.committed[OUTBOX]
        some = map(rows.__getitem__, sorted(self.open)[:10])
        return ", ".join(
            f"{row.id} ({row.status}, attempts {row.attempts}, {row.recovery_policy})" for row in some
        )

    def _is_behind_dead(self, row_id: int) -> bool:
        row = self._run.database.committed[OUTBOX].get(row_id)
        if row is None or row.ordering_key is None:
            return False
        if row.lease_until is not None and row.lease_until >= self._run.database.now():
            return False
        return any(other in self.dead for other in self.keys[row.ordering_key] if other < row_id)

    def is_told_to_stop(self, process: Process) -> None:
        """A process is told to stop: what it has not started goes back soon, whatever is in flight."""
        label, run = process.label, self._run
        unstarted = [
            key for key, lease in self.leases.items() if lease.label == label and not self._is_started(*key)
        ]
        run.world.call_later(0.2 + 60 * run.plan.spread, self._has_given_back, process, label, unstarted)

    def _is_started(self, row_id: int, token: int) -> bool:
        publishes = self.publishes.get(row_id, ())
        return (row_id, token) in self.handed_over or any(each.token == token for each in publishes)

    def _has_given_back(self, process: Process, label: Label, unstarted: list[tuple[int, int]]) -> None:
        others = (each for each in self._run.processes if each is not process)
        if process.label != label or not process.was_only_told_to_stop() or any(each.hurt for each in others):
            return
        for row_id, token in unstarted:
            if self.leases[row_id, token].ended is None and not self._is_started(row_id, token):
                self.violated("I1", f"{label} was told to stop, and keeps row {row_id}, which it has not started")

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
        self._none_ran_out()
        for process in self._run.processes:
            # (A result whose answer was lost may find its row purged.)
            if process.is_up and not self.violations and self._run.plan.retention is None:
                self._counted_right(process)
        if not self.violations:
            self._innocents_live()

    def _none_ran_out(self) -> None:
        """What waits behind a dead message is not held by somebody who has forgotten it."""
        for row_id in sorted(self.open):
            row = self._run.database.committed[OUTBOX][row_id]
            if row.status == "processing" and (row.lease_until or 0) < self._run.database.now():
                self._ran_out(self.leases[row_id, row.lease_version], row)

    def _counted_right(self, process: DispatcherProcess) -> None:
        counted, written = process.holder.counters.delivered, self.done_by[process.label]
        if counted != written:
            self.violated("I2", f"{process.label} closed {written} rows, and believes that it were {counted}")

    def _innocents_live(self) -> None:
        """A message that kills its process takes none of its neighbours with it."""
        poison = self._run.poison
        if poison is None:
            return
        rows = self._run.database.committed[OUTBOX]
        for row_id in sorted(self.dead):
            if row_id != self.rows_of.get(poison) and row_id in rows and rows[row_id].recovery_policy == "auto":
                self.violated(
                    "I13", f"row {row_id} is dead ({rows[row_id].outcome}) of its neighbour, a poison message"
                )
