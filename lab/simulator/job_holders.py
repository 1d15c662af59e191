"""What the holders of jobs write, and what is done about those who lost them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.core.outcome import Verdict
from fencepost.runtime.held import OVERDUE_SECONDS
from lab.fake_store.rows import JOB, JobRow
from lab.simulator.job_starts import NO_END, NO_TOLD_END, Lease, Start

if TYPE_CHECKING:
    from lab.simulator.job_run import JobRun
    from lab.simulator.job_watch import JobWatch
    from lab.simulator.server import ServerSession


class Holders:
    """Of jobs that are processed: done, given back, failed, or taken back."""

    def __init__(self, run: JobRun, watch: JobWatch) -> None:
        self._run, self._watch = run, watch

    def wrote(self, session: ServerSession, before: JobRow, after: JobRow) -> None:
        """Judge what has become of a job that somebody held."""
        lease = self._watch.leases[before.id, before.fence]
        if after.attempt_token != before.attempt_token:
            self._reclaimed(lease, before, after)
            return
        if lease.label != session.label:
            self._watch.violated("I2", f"{session.label} wrote job {after.id}, which {lease.label} holds")
        if after.status == "processing":
            lease.until = after.lease_expires_at or 0
            self._watch.held[after.id] = after.task, after.lane
            return
        lease.ends(f"made {after.status}")
        start = self._watch.starts.under(before.id, before.fence)
        match after.status:
            case "done":
                self._watch.done_by[session.label] += 1
                self._is_done(before, start)
            case "queued":
                self._given_back(lease, before, after, start)
            case _:
                self._buried(before, after, start)

    def _reclaimed(self, lease: Lease, before: JobRow, after: JobRow) -> None:
        now = self._run.database.now()
        if before.lease_expires_at is None or before.lease_expires_at >= now:
            self._watch.violated("I9", f"job {after.id} was taken while its lease lasted")
        lease.ends("reclaimed")
        if self.why_lost(lease, before.id, before.fence) is None:
            self._watch.violated(
                "I15", f"the lease of job {after.id} ran out, and nothing has happened to {lease.label}"
            )
        self._taken_in_time(before)
        may_again = before.recovery_policy != "manual" and before.attempts < before.max_attempts
        if after.status != ("queued" if may_again else "failed") or after.attempts != before.attempts:
            self._watch.violated(
                "I12", f"job {after.id} was reclaimed and is {after.status}, {after.attempts} attempts"
            )

    def why_lost(self, lease: Lease, row_id: int, fence: int) -> str | None:
        """Return what may have cost a worker a lease; None where nothing did.

        A main loop that is blocked keeps the leases of what runs already, unless a hard limit could not fire; and
        what ignores its hard limit is let go.
        """
        start = self._watch.starts.under(row_id, fence)
        task = self._watch.task_of(row_id)
        hurt = (*lease.process.hurt, *self._run.hurt)
        for until, what in hurt:
            is_kept = what == "blocked loop" and start is not None and task.hard_limit is None
            if until >= lease.since - self._run.plan.lease and not is_kept:
                return what
        if start is not None and task.hard_limit is not None:
            allowed = lease.since + task.hard_limit + OVERDUE_SECONDS
            return "hard limit ignored" if self._run.world.now > allowed else None
        return None

    def _taken_in_time(self, row: JobRow) -> None:
        run = self._run
        ended = run.seconds_of(row.lease_expires_at or 0)
        ended = max(ended, run.server.held_until.get((JOB.name, row.id), ended))
        late = run.world.now - ended
        if any(each.is_well_since(ended) for each in run.processes) and late > 1.0 + 1.2 * run.plan.poll:
            self._watch.violated("I10", f"job {row.id} was taken back {late:.2f} s after its lease had ended")

    def _is_done(self, row: JobRow, start: Start | None) -> None:
        asked = self._watch.starts.questions.get((row.id, row.fence))
        is_verified = asked is not None and asked.answer is Verdict.DONE
        if not is_verified and (start is None or start.told != "done"):
            self._watch.violated("I1", f"job {row.id} was closed as done, and nobody said so")

    def _given_back(self, lease: Lease, before: JobRow, after: JobRow, start: Start | None) -> None:
        is_refunded = after.attempts == before.attempts - 1
        if not is_refunded and after.attempts != before.attempts:
            self._watch.violated("I7", f"job {after.id} was given back with {after.attempts} attempts")
        if start is None:
            # (Of a thread that is given up on just then nobody knows whether it has begun.)
            is_known = not (self._watch.task_of(before.id).in_thread and lease.process.why_lost(lease.since))
            if is_known and not is_refunded and (before.id, before.fence) not in self._watch.starts.questions:
                self._watch.violated("I3", f"job {after.id} was given back unstarted, and its attempt is spent")
            return
        is_odd = start.told == "done" or (start.told == "defer") != is_refunded
        if start.told in NO_TOLD_END or (is_odd and self._was_late(lease, start)):
            self._cut_off(lease, before, start, is_refunded)
        elif is_odd:
            self._watch.violated(
                "I3", f"job {after.id} told {start.told}, and is given back, {after.attempts} attempts"
            )

    def _was_late(self, lease: Lease, start: Start) -> bool:
        """Tell whether a run may have been given up on before it ended.

        Its hard limit was over, it was cut off in a shutdown, or its worker took the lease for lost while it ran
        in a thread, which nothing can cancel.
        """
        task, process = self._watch.task_of(start.row_id), start.process
        is_over = task.hard_limit is not None and (start.told_at or 0.0) >= lease.since + task.hard_limit
        was_lost = task.in_thread and process.why_lost(lease.since - self._run.plan.lease) is not None
        return is_over or was_lost or process.is_stopping

    def _cut_off(self, lease: Lease, row: JobRow, start: Start, is_refunded: bool) -> None:
        """What was cut off by a shutdown has its attempt back, but for the first one of a job to be verified."""
        start.told = NO_END if start.told in (None, "done", "defer") else start.told
        task = self._watch.task_of(row.id)
        had_time = task.hard_limit is not None and self._run.world.now >= lease.since + task.hard_limit
        process = lease.process
        was_lost = task.in_thread and process.why_lost(lease.since - self._run.plan.lease) is not None
        if start.is_live and not (had_time or was_lost or process.is_stopping):
            self._watch.violated("alive", f"job {row.id} was given back while its handler runs")
        if row.recovery_policy == "manual":
            self._watch.violated("manual", f"job {row.id} was given back, and nobody knows what came of it")
        if is_refunded and not process.is_stopping:
            self._watch.violated("I3", f"job {row.id} was cut off, and its attempt is given back")
        may = row.recovery_policy == "auto" or row.attempts > 1
        if may and not is_refunded and not had_time and process.was_only_told_to_stop():
            self._watch.violated("I3", f"job {row.id} was cut off by a shutdown, and its attempt is spent")

    def _buried(self, before: JobRow, after: JobRow, start: Start | None) -> None:
        told = None if start is None else start.told
        match after.outcome:
            case "permanent":
                fine = told == "permanent"
            case "exhausted":
                fine = before.attempts >= before.max_attempts
            case "unknown_outcome":
                fine = before.recovery_policy in ("manual", "verify")
            case _:
                fine = False
        if not fine or after.attempts != before.attempts:
            self._watch.violated("I12", f"job {after.id} has failed ({after.outcome}), told {told}")
