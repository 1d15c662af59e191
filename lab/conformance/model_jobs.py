"""The model of jobs: its own rows, by the one table of `fencepost.core.job_states`, and what each step may do."""

from __future__ import annotations

from typing import NamedTuple

from fencepost.core.job_states import JOB_TRANSITIONS, JobState
from fencepost.core.states import Event, attempts_after
from lab.conformance.model_rows import Disagreement, Sight, demand
from lab.conformance.seen import Look, SeenJob, minutes


class Job(NamedTuple):
    """A job; instants in microseconds."""

    id: int
    queue: str
    task: str
    unique: str | None
    lane: str | None
    recovery: str
    max_attempts: int
    args: int
    available: int
    status: JobState = JobState.QUEUED
    outcome: str | None = None
    attempts: int = 0
    fence: int = 0
    holder: int | None = None
    """The claim, by its fence, whose token the row has; None where nobody's."""
    reclaims: int = 0
    owner: str | None = None
    lease_until: int | None = None
    beat: int | None = None
    closed: int | None = None
    progress: str | None = None
    result: str | None = None

    @property
    def is_open(self) -> bool:
        return self.status in (JobState.QUEUED, JobState.PROCESSING)

    @property
    def place(self) -> tuple[int, int]:
        """Where it is served."""
        return self.available, self.id

    def is_due(self, now: int) -> bool:
        return self.status is JobState.QUEUED and self.available <= now

    def is_expired(self, now: int) -> bool:
        return self.lease_until is not None and self.lease_until < now

    def is_held(self, fence: int) -> bool:
        """The fence: that claim's token is still the row's."""
        return self.status is JobState.PROCESSING and self.holder == fence

    def stands(self, fence: int, state: JobState, outcome: str | None) -> bool:
        """Whether it is in the very target state under the token: written by a try whose answer was lost."""
        return (self.status, self.outcome, self.holder) == (state, outcome, fence)

    def after(self, event: Event, now: int, *, span: int | None = None, owner: str | None = None) -> Job:
        """Return the job as an event leaves it.

        Args:
            span: of the lease, or until it is due.
            owner: who claims.

        Raises:
            Disagreement: the table does not allow the event in this state.
        """
        found = JOB_TRANSITIONS.get((self.status, event))
        if found is None:
            raise Disagreement(f"the model does not allow this: {event} of {self}")
        is_claim = event in (Event.CLAIM, Event.CLAIM_OVER_LIMIT)
        fence = self.fence + is_claim
        job = self._replace(
            status=found.to,
            outcome=None if found.outcome is None else str(found.outcome),
            attempts=attempts_after(self.attempts, found.attempts),
            fence=fence,
            holder=fence if event is Event.CLAIM else None if found.raises_token else self.holder,
            reclaims=self.reclaims + (event in (Event.RECLAIM, Event.REAP_CRASHED, Event.REAP_UNKNOWN)),
            lease_until=None,
            closed=now if found.to in (JobState.DONE, JobState.FAILED) else None,
        )
        match event:
            case Event.CLAIM:
                return job._replace(owner=owner, lease_until=now + (span or 0), beat=now, progress=None)
            case Event.RECLAIM:
                return job._replace(available=now)
            case Event.OPERATOR_RETRY:
                return job._replace(available=now, reclaims=0)
            case Event.RETRY | Event.DEFER:
                return job._replace(available=now + (span or 0))
        return job

    def seen(self, now: int, beside: SeenJob) -> SeenJob:
        """Return the job as a store shows it; its error, which the model does not know, as ``beside`` has it."""

        def until(instant: int | None) -> int | None:
            return None if instant is None else minutes(instant - now)

        return SeenJob(
            *(self.id, self.queue, self.task, self.unique, self.lane, self.recovery, self.max_attempts),
            *(str(self.status), self.outcome, self.attempts, self.fence, self.reclaims, self.owner),
            minutes(self.available - now),
            self.available <= now,
            until(self.lease_until),
            self.is_expired(now),
            until(self.beat),
            until(self.closed),
            *(self.progress, self.result, beside.error),
        )


def job_of(sight: Sight, job_id: int) -> Job | None:
    """Return a job."""
    found: Job | None = sight.get(("job", job_id))
    return found


def jobs_of(sight: Sight) -> list[Job]:
    """Return all jobs, by id."""
    return sorted(sight.of("job"), key=lambda job: job.id)


def write(sight: Sight, job: Job) -> None:
    """Write a job."""
    sight.put(("job", job.id), job)


def happen(sight: Sight, job_id: int, event: Event, *, span: int | None = None, owner: str | None = None) -> None:
    """Let something happen to a job."""
    job = job_of(sight, job_id)
    demand(job is not None, f"{event} of a job {job_id} that is not there")
    if job is not None:
        write(sight, job.after(event, sight.now, span=span, owner=owner))


def compare(sight: Sight, look: Look) -> None:
    """Compare what is seen here with what a store shows.

    Raises:
        Disagreement: they differ.
    """
    ours = jobs_of(sight)
    ids = [job.id for job in look.jobs]
    demand([job.id for job in ours] == ids, f"the jobs {ids} are there, not {[job.id for job in ours]}")
    for job, shown in zip(ours, look.jobs, strict=True):
        expected = job.seen(sight.now, shown)
        pairs = zip(SeenJob._fields, expected, shown, strict=True)
        apart = ", ".join(f"{name} {a!r}, not {b!r}" for name, a, b in pairs if a != b)
        if apart:
            raise Disagreement(f"the model has job {job.id}: {apart}\n  {job}\n  {shown}")
