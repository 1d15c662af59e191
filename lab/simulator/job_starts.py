"""What handlers and verifiers did in a schedule of jobs: each start with its cause, each effect, each answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from fencepost.client.context import JobContext
from fencepost.core.job import Job
from fencepost.core.outcome import Verdict
from lab.fake_store.rows import JOB, Table
from lab.simulator.judge import Label

if TYPE_CHECKING:
    from lab.simulator.job_process import WorkerProcess
    from lab.simulator.job_run import JobRun
    from lab.simulator.job_watch import JobWatch

NO_NUMBER = -1
"""Of a job that a schedule has enqueued."""

LATE = 0.5
"""Seconds that a heartbeat, its answer, and a handler that looks for its lease now and then may take."""

NO_END = "no end"
"""What counts for a run that was given back before it ended; what it tells later is told to nobody."""

NO_TOLD_END = (None, NO_END, "cut off", "lease lost")
"""How a run ends that tells nothing about its effect."""


class EffectRow(NamedTuple):
    """An effect in the database, by the job and the start that had it."""

    job_id: str
    fence: int
    nth: int


EFFECT: Table[EffectRow] = Table("effect", lambda row: row)


@dataclass(slots=True, eq=False)
class Lease:
    """One claim of one job: who has it, since when, and how it ended."""

    process: WorkerProcess
    label: Label
    since: float
    until: int
    """Its end in the database, as last written, in microseconds."""
    attempt: int
    ended: str | None = None
    ended_at: float | None = None

    def ends(self, how: str) -> None:
        """Note that it has ended."""
        self.ended, self.ended_at = how, self.process.run.world.now


@dataclass(slots=True, eq=False)
class Start:
    """One start of a handler."""

    number: int
    nth: int
    row_id: int
    job_id: UUID
    fence: int
    process: WorkerProcess
    label: Label
    at: float
    cause: str | None
    """Why there was another one after the one before; None for the first."""
    told: str | None = None
    told_at: float | None = None
    is_stubborn: bool = False
    effects: list[float] = field(default_factory=list)

    @property
    def is_live(self) -> bool:
        return self.told_at is None and self.process.is_up and self.process.label == self.label


@dataclass(slots=True, eq=False)
class Asked:
    """One question to a verifier; ``answer`` is None while it has none."""

    number: int
    nth: int
    row_id: int
    fence: int
    at: float
    answer: Verdict | None = None


class Starts:
    """All of them, and whether each one may be."""

    def __init__(self, run: JobRun, watch: JobWatch) -> None:
        self._run, self._watch = run, watch
        self.of_row: dict[int, list[Start]] = {}
        self.questions: dict[tuple[int, int], Asked] = {}
        self._asked: Counter[int] = Counter()

    def under(self, row_id: int, fence: int) -> Start | None:
        """Return the start under a token."""
        return next((each for each in self.of_row.get(row_id, ()) if each.fence == fence), None)

    def began(self, start: Start) -> float:
        """Return when its run began, of which its verifier is a part."""
        asked = self.questions.get((start.row_id, start.fence))
        return start.at if asked is None else asked.at

    # --- starts ---

    def begins(self, process: WorkerProcess, job: Job, context: JobContext) -> Start:
        """Note that a handler starts, and judge whether it may."""
        run, violated = self._run, self._watch.violated
        row_id, fence, now = job.id, context.token, run.world.now
        self._is_committed(job)
        before = self.of_row.setdefault(row_id, [])
        lease = self._watch.leases.get((row_id, fence))
        cause = None
        if lease is None or lease.label != process.label:
            violated("I2", f"{process.label} runs job {row_id} under fence {fence}, which it never had")
        else:
            if lease.until < run.database.now():
                violated("I15", f"{process.label} starts job {row_id} after its lease has ended")
            cause = self._cause(before[-1], lease) if before else None
            self._may_repeat(before, cause, context, row_id)
        number = self._watch.number_of(job.job_id)
        start = Start(number, len(before) + 1, row_id, job.job_id, fence, process, process.label, now, cause)
        self._is_alone(before, start)
        before.append(start)
        run.trace(*process.label, "runs", row_id, "fence", fence, f"again: {cause}" if cause else "")
        return start

    def _is_committed(self, job: Job) -> None:
        number = self._watch.number_of(job.job_id)
        if self._watch.rows_of.get(job.job_id) != job.id or number in self._run.rolled_back:
            self._watch.violated("I6", f"job {job.id} runs and is not committed")
        if job.args != self._watch.args_of(job.job_id):
            self._watch.violated("I11", f"job {job.id} runs with other arguments: {job.args}")

    def _may_repeat(self, before: list[Start], cause: str | None, context: JobContext, row_id: int) -> None:
        violated, row = self._watch.violated, self._run.database.committed[JOB].get(row_id)
        if row is None:
            return
        is_unknown = cause is not None and before[-1].told in NO_TOLD_END
        if any(each.fence == context.token for each in before):
            violated("I3", f"job {row_id} is started twice under fence {context.token}")
        if context.attempt > row.max_attempts or context.max_attempts != row.max_attempts:
            violated("I3", f"job {row_id} is started at attempt {context.attempt} of {context.max_attempts}")
        if before and not context.may_be_repeat:
            violated("I15", f"job {row_id} is started again, and its handler is not told")
        if row.recovery_policy == "manual" and is_unknown and cause != "operator":
            violated("manual", f"job {row_id} is started again, and nobody knows what came of it: {cause}")
        if row.recovery_policy == "verify" and context.attempt > 1:
            asked = self.questions.get((row_id, context.token))
            if asked is None or asked.answer is not Verdict.NOT_DONE:
                violated("verify", f"job {row_id} is started again, and its verifier did not say that it may be")

    def _is_alone(self, before: list[Start], start: Start) -> None:
        """Where another one still runs, its lease has ended before, for a reason that is known."""
        for other in before:
            lease = self._watch.leases.get((other.row_id, other.fence))
            if other.is_live and (lease is None or lease.ended is None):
                self._watch.violated("I9", f"job {start.row_id} is started while {other.label} holds and runs it")

    def _cause(self, last: Start, own: Lease) -> str:
        """Return why a handler is started again, after this start."""
        lease = self._watch.leases[last.row_id, last.fence]
        if last.row_id in self._watch.retried_since(lease.since):
            return "operator"
        if lease.ended == "reclaimed":
            return self._watch.why_lost(lease, last.row_id, last.fence) or "unexplained"
        if last.told not in (None, "done"):
            return f"reported: {last.told}"
        self._watch.violated("I15", f"job {last.row_id} is started again, although it was done ({lease.ended})")
        return "unexplained"

    def told(self, start: Start, what: str) -> None:
        """Note what a handler told the worker, in time or not."""
        start.told_at = self._run.world.now
        start.told = start.told or what
        self._run.trace(*start.label, "was told", start.row_id, what)
        self._heard_in_time(start)
        self._stopped_in_time(start)

    def _heard_in_time(self, start: Start) -> None:
        """A handler whose lease is lost is told, within a lease, and ends then if it can."""
        lease = self._watch.leases.get((start.row_id, start.fence))
        if lease is None or lease.ended not in ("operator", "reclaimed") or lease.ended_at is None:
            return
        task = self._watch.task_of(start.row_id)
        is_deaf = start.is_stubborn or (task.in_thread and (task.into_inbox or not task.cooperates))
        late = self._run.world.now - lease.ended_at
        if not is_deaf and late > task.lease + LATE and start.process.is_well_since(lease.ended_at):
            self._watch.violated("lost", f"job {start.row_id} ran on for {late:.2f} s after its lease was lost")

    def _stopped_in_time(self, start: Start) -> None:
        """A handler on the event loop that does not ignore it ends at its hard limit."""
        task, now = self._watch.task_of(start.row_id), self._run.world.now
        if task.hard_limit is None or task.in_thread or start.is_stubborn:
            return
        if now > self.began(start) + task.hard_limit + LATE and start.process.is_well_since(start.at):
            self._watch.violated("hard limit", f"job {start.row_id} ran for {now - start.at:.2f} s")

    def finish(self) -> None:
        """Judge what still runs at the end."""
        for start in [each for some in self.of_row.values() for each in some if each.is_live]:
            self._stopped_in_time(start)

    # --- effects ---

    def effect(self, start: Start) -> None:
        """Note that a start had its effect."""
        start.effects.append(self._run.world.now)
        self._run.trace(*start.label, "has its effect", start.row_id, "fence", start.fence)

    def duplicates(self) -> Counter[str]:
        """Count the effects past the first of each job, by the cause of their start."""
        found: Counter[str] = Counter()
        for starts in self.of_row.values():
            some = [each for each in starts if each.effects]
            for each in some[1:]:
                found[each.cause or "two at once"] += 1
        return found

    # --- verifiers ---

    def asks(self, job: Job, context: JobContext) -> Asked:
        """Note that a verifier is asked."""
        number = self._watch.number_of(job.job_id)
        self._asked[job.id] += 1
        asked = Asked(number, self._asked[job.id], job.id, context.token, self._run.world.now)
        self.questions[job.id, context.token] = asked
        return asked

    def truth(self, asked: Asked) -> Verdict:
        """Return what there is to say."""
        is_done = any(each.effects for each in self.of_row.get(asked.row_id, ()))
        return Verdict.DONE if is_done else Verdict.NOT_DONE
