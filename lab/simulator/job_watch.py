"""Looks at every commit of a schedule of jobs, and says which guarantee was broken.

It judges by what changed in a row, and who wrote it; it knows nothing of the statements that did so. What handlers
did is in `lab.simulator.job_starts`, what the ledger and the schedules must say in `lab.simulator.job_records`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fencepost.client.context import JobContext
from fencepost.core.job import Job
from fencepost.core.outcome import Verdict
from lab.fake_store.rows import JOB, JOB_AUDIT, JobRow, Table
from lab.simulator.job_holders import Holders
from lab.simulator.job_outside import args_of, job_id_of
from lab.simulator.job_plan import PlannedTask
from lab.simulator.job_records import Records
from lab.simulator.job_starts import NO_NUMBER, NO_TOLD_END, Asked, Lease, Start, Starts
from lab.simulator.judge import Judge, Label

if TYPE_CHECKING:
    from lab.simulator.job_process import WorkerProcess
    from lab.simulator.job_run import JobRun
    from lab.simulator.process import Process
    from lab.simulator.server import ServerSession

Written = Mapping[Table[Any], Mapping[Any, Any]]

LOOK_LASTS = 0.5
"""Seconds within which a worker that is well has seen what is due in a queue."""


class JobWatch(Judge):
    """The guarantees of one schedule of jobs."""

    _run: JobRun

    def __init__(self, run: JobRun) -> None:
        super().__init__(run)
        self.starts = Starts(run, self)
        self.records = Records(run, self)
        self.holders = Holders(run, self)
        self.leases: dict[tuple[int, int], Lease] = {}
        self.rows_of: dict[UUID, int] = {}
        """Row ids by job ids."""
        self.open: set[int] = set()
        self.failed: set[int] = set()
        self.done_by: Counter[Label] = Counter()
        self._planned = {job_id_of(each.number): each for each in run.plan.jobs}
        self._retries: list[tuple[float, int]] = []
        self._open_keys: dict[tuple[str, str], int] = {}
        self.held: dict[int, tuple[str, str | None]] = {}
        """Task and lane of each job that is processed."""
        self._due_since: dict[int, float] = {}
        self._tasks: dict[int, PlannedTask] = {}
        """By row id."""
        self._tokens: set[tuple[int, str | None]] = set()

    # --- what its parts ask ---

    def number_of(self, job_id: UUID) -> int:
        planned = self._planned.get(job_id)
        return NO_NUMBER if planned is None else planned.number

    def args_of(self, job_id: UUID) -> Any:
        planned = self._planned.get(job_id)
        return {"tick": True} if planned is None else args_of(planned)

    def row_of(self, number: int) -> int | None:
        return self.rows_of.get(job_id_of(number))

    def why_lost(self, lease: Lease, row_id: int, fence: int) -> str | None:
        return self.holders.why_lost(lease, row_id, fence)

    def task_of(self, row_id: int) -> PlannedTask:
        """Return what is planned of a job's task."""
        return self._tasks[row_id]

    def retried_since(self, since: float) -> set[int]:
        """Return the rows that an operator has put back since."""
        return {row_id for at, row_id in self._retries if at >= since}

    def handler_starts(self, process: WorkerProcess, job: Job, context: JobContext) -> Start:
        return self.starts.begins(process, job, context)

    def told(self, start: Start, what: str) -> None:
        self.starts.told(start, what)

    def effect(self, start: Start) -> None:
        self.starts.effect(start)

    def asked(self, process: WorkerProcess, job: Job, context: JobContext) -> Asked:
        self._run.trace(*process.label, "asks about", job.id)
        return self.starts.asks(job, context)

    def answered(self, asked: Asked, verdict: Verdict) -> None:
        asked.answer = verdict

    def truth(self, asked: Asked) -> Verdict:
        return self.starts.truth(asked)

    def counts(self) -> dict[str, int]:
        every = [each for some in self.starts.of_row.values() for each in some]
        return {
            "runs": len(every),
            "effects": sum(len(each.effects) for each in every),
            "verified": len(self.starts.questions),
            "ticks": len(self.records.ticks),
        }

    # --- commits ---

    def committed(self, session: ServerSession, written: Written, committed: Mapping[Any, Any]) -> None:
        rows = written.get(JOB)
        before_all: Mapping[int, JobRow] = committed[JOB]
        for row_id in sorted(rows or ()):
            before, after = before_all.get(row_id), (rows or {})[row_id]
            if before == after:
                continue
            if after is None:
                self._deleted(before)
            elif before is None:
                self._inserted(session, after)
            else:
                self._changed(session, before, after)
                if session.process.name == "operator":
                    self._is_audited(row_id, written)
        self._has_room(row_id for row_id in rows or () if row_id in self.held)
        self.records.committed(session, written, committed)

    def _deleted(self, row: JobRow | None) -> None:
        if row is None:
            return
        kept, now = self._run.plan.retention, self._run.database.now()
        if row.status != "done" or kept is None or (row.finished_at or 0) > now - kept * 1_000_000:
            self.violated("I16", f"job {row.id} was deleted while {row.status}")

    def _inserted(self, session: ServerSession, row: JobRow) -> None:
        self.rows_of[UUID(row.job_id)] = row.id
        self._tasks[row.id] = self._run.plan.task(row.task)
        self.records.inserted(session, row)
        self._opened(row)

    def _opened(self, row: JobRow) -> None:
        self.open.add(row.id)
        self._waits(row)
        if row.unique_key is not None:
            other = self._open_keys.setdefault((row.task, row.unique_key), row.id)
            if other != row.id:
                self.violated("unique", f"jobs {other} and {row.id} of unique key {row.unique_key} are both open")

    def _waits(self, row: JobRow) -> None:
        self._due_since[row.id] = max(self._run.world.now, self._run.seconds_of(row.available_at))

    def _closed(self, row: JobRow) -> None:
        self.open.discard(row.id)
        if row.status == "failed":
            self.failed.add(row.id)
        if row.unique_key is not None and self._open_keys.get((row.task, row.unique_key)) == row.id:
            del self._open_keys[row.task, row.unique_key]

    def _is_audited(self, row_id: int, written: Written) -> None:
        if not any(each.row_id == row_id for each in written.get(JOB_AUDIT, {}).values()):
            self.violated("I12", f"an operator changed job {row_id}, and it is written down nowhere")

    def _changed(self, session: ServerSession, before: JobRow, after: JobRow) -> None:
        if self._run.keeps_trace:
            change = (before.status, "->", after.status, "fence", after.fence, "attempts", after.attempts)
            self._run.trace(*session.label, session.role, "writes", after.id, *change)
        if not 0 <= after.attempts <= after.max_attempts:
            self.violated("I7", f"job {after.id} has {after.attempts} attempts, of {after.max_attempts}")
        if after.fence < before.fence:
            self.violated("I9", f"the fence of job {after.id} fell to {after.fence}")
        self.held.pop(after.id, None)
        self._due_since.pop(after.id, None)
        if session.process.name == "operator":
            self._operated(before, after)
        elif before.status in ("done", "failed"):
            self.violated("I12", f"job {after.id} was {before.status}, and {session.label} made it {after.status}")
        elif before.status == "queued":
            self._taken(session, before, after)
        else:
            self.holders.wrote(session, before, after)
        if after.status in ("done", "failed"):
            self._closed(after)
        elif after.status == "queued" and after.id in self.open:
            self._waits(after)

    def _operated(self, before: JobRow, after: JobRow) -> None:
        if after.attempt_token == before.attempt_token:
            self.violated("I9", f"an operator changed job {after.id} and left its token as it was")
        lease = self.leases.get((before.id, before.fence))
        if before.status == "processing" and lease is not None:
            lease.ends("operator")
        if after.status == "queued":
            if before.status != "failed" or after.attempts:
                self.violated("I12", f"an operator put job {after.id} back, which was {before.status}")
            self._retries.append((self._run.world.now, after.id))
            self.failed.discard(after.id)
            self._opened(after)
        elif before.status not in ("queued", "processing"):
            self.violated("I12", f"an operator ended job {after.id}, which was {before.status}")

    # --- claims ---

    def _taken(self, session: ServerSession, before: JobRow, after: JobRow) -> None:
        """A job that nobody held was claimed; or had no attempt left."""
        if after.status == "processing":
            self._claimed(session, before, after)
        elif after.status != "failed" or after.outcome != "exhausted" or before.attempts < before.max_attempts:
            self.violated("I2", f"job {after.id} was queued, and {session.label} made it {after.status}")

    def _claimed(self, session: ServerSession, before: JobRow, after: JobRow) -> None:
        now, process = self._run.world.now, session.process
        if after.fence != before.fence + 1:
            self.violated("I9", f"a claim of job {after.id} raised its fence to {after.fence}")
        if after.attempt_token == before.attempt_token or (after.id, after.attempt_token) in self._tokens:
            self.violated("I9", f"a claim of job {after.id} gave it a token that somebody has")
        self._tokens.add((after.id, after.attempt_token))
        if after.attempts != before.attempts + 1:
            self.violated("I7", f"a claim of job {after.id} left it at {after.attempts} attempts")
        if before.available_at > self._run.database.now():
            self.violated("due", f"job {after.id} was claimed before it was due")
        self.leases[after.id, after.fence] = Lease(
            process,  # type: ignore[arg-type] # only workers claim
            *(session.label, now, after.lease_expires_at or 0, after.attempts),
        )
        self.held[after.id] = after.task, after.lane
        self._is_first(after)

    def _is_first(self, row: JobRow) -> None:
        """Of two queues, the first one that has something due is served.

        Unless another process is in trouble: it may have that locked in a claim that comes to no end.
        """
        run, queues = self._run, self._run.plan.queues
        if queues is None or row.queue == queues[0] or row.lane is not None or row.reclaim_count:
            return
        rows = run.database.committed[JOB]
        for other_id, since in self._due_since.items():
            other = rows.get(other_id)
            if other is None or other.queue != queues[0] or other.lane is not None or other.reclaim_count:
                continue
            if since < run.world.now - LOOK_LASTS and all(each.is_well_since(since) for each in run.processes):
                self.violated("priority", f"job {row.id} was claimed before job {other_id} of an earlier queue")

    def _has_room(self, claimed: Iterable[int]) -> None:
        """No lane and no task has more jobs processed than its limit."""
        for task in {self.held[each][0] for each in claimed if self.held[each][1] is not None}:
            planned = self._run.plan.task(task)
            lanes = Counter(lane for of, lane in self.held.values() if of == task and lane is not None)
            width = planned.max_running_per_key or planned.max_running or lanes.total()
            if max(lanes.values()) > width or lanes.total() > (planned.max_running or lanes.total()):
                self.violated("lane", f"of task {task} more jobs are processed than may be: {dict(lanes)}")

    # --- the end ---

    def is_drained(self) -> bool:
        return not self.open and self.records.have_come()

    def left(self) -> str:
        rows = self._run.database.committed[JOB]
        some = map(rows.__getitem__, sorted(self.open)[:10])
        return ", ".join(
            f"{row.id} ({row.status}, attempts {row.attempts}, {row.recovery_policy})" for row in some
        )

    def is_told_to_stop(self, process: Process) -> None:
        self._run.trace("watch", "looks at what", process.name, "gives back")

    def has_stopped(self, process: Process) -> None:
        if not process.was_only_told_to_stop():
            return
        rows = self._run.database.committed[JOB]
        for row_id in sorted(self.held):
            lease = self.leases.get((row_id, rows[row_id].fence))
            if lease is not None and lease.label == process.label:
                self.violated("I1", f"{process.label} has stopped and left job {row_id} under its lease")

    def finish(self) -> None:
        if not self.violations:
            self.starts.finish()
        if not self.violations:
            self.records.finish()
        for process in self._run.processes:
            if process.is_up and not self.violations:
                self._counted_right(process)
        if not self.violations and self._run.poison is not None:
            self._innocents_live(self._run.poison)

    def _counted_right(self, process: WorkerProcess) -> None:
        counters = process.holder.counters
        counted, written = counters.completed + counters.verified, self.done_by[process.label]
        # (One that was purged before its lost answer was asked for again counts as lost.)
        if counted > written or (counted < written and self._run.plan.retention is None):
            self.violated("I2", f"{process.label} closed {written} jobs, and believes that it were {counted}")

    def _innocents_live(self, poison: int) -> None:
        """A job that kills its worker takes none of its neighbours with it.

        (But for one that had failed by itself up to its last attempt, and made that beside a first kill.)
        """
        rows = self._run.database.committed[JOB]
        for row_id in sorted(self.failed):
            has_failed = any(each.told not in NO_TOLD_END for each in self.starts.of_row.get(row_id, ()))
            if row_id != self.row_of(poison) and rows[row_id].outcome == "crashed" and not has_failed:
                self.violated(
                    "I13", f"job {row_id} has failed ({rows[row_id].outcome}) of its neighbour, a poison job"
                )

    def duplicates(self) -> Counter[str]:
        return self.starts.duplicates()
