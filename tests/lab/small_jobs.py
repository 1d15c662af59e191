"""The jobs of the small run: each way in which a job may go, once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from fencepost.core.job import ClaimedJob
from fencepost.core.outcome import DONE
from fencepost.store.jobs import TaskTerms
from tests.store.job_rows import ACTIONS, JOBS, claim_in_lanes, claim_jobs, claim_suspects, finish, terms

if TYPE_CHECKING:
    from tests.lab.small_run import SmallRun

LEASE = timedelta(seconds=0.2)


class SmallJobs:
    """Plays a job worker in the small run."""

    def __init__(self, run: SmallRun) -> None:
        self.run, self.db = run, run.db

    def enqueue(self, task: str, *, undo: bool = False, key: str | None = None) -> int:
        """Enqueue a job with its business change, and commit."""
        job_id = uuid4()
        recovery = "manual" if task == "manual" else "auto"
        self.run.write("producer", "job_enqueue", job_id=str(job_id), task=task, lane=key, recovery=recovery)
        with self.db.transaction(force_rollback=undo):
            made = JOBS.enqueue(self.db, task, {}, job_id=job_id, key=key, max_attempts=3)
            self.db.execute("INSERT INTO lab.job_business VALUES (%s)", [job_id])
        self.run.write("producer", "job_rollback" if undo else "job_commit", job_ids=[str(job_id)])
        return made.id

    def claim(self, owner: str = "j1") -> list[ClaimedJob]:
        tasks = {name: TaskTerms(LEASE) for name in ("plain", "manual")}
        return claim_jobs(self.db, terms=terms(owner, **tasks))

    def handle(self, held: Sequence[ClaimedJob], owner: str = "j1", result: str | None = "completed") -> None:
        """Run the handler; where ``result`` is None its process does not live to tell."""
        for each in held:
            about = {"job_id": str(each.job.job_id), "id": each.id, "fence": each.fence}
            more = {"attempt": each.attempt, "owner": owner, "pid": 1, "task": each.job.task, "lane": None}
            self.run.write(owner, "job_start", **about, **more)
            if result is not None:
                self.run.write(owner, "job_end", **about, result=result)

    def done(self, held: Sequence[ClaimedJob]) -> None:
        assert not finish(self.db, held, DONE)

    def until_expired(self) -> None:
        query = "SELECT count(*) FROM outbox_job WHERE lease_expires_at > clock_timestamp()"
        while self.run.one(query):
            self.run.one("SELECT pg_sleep(0.01)")


def play_jobs(run: SmallRun) -> None:
    """Play all of it."""
    jobs = SmallJobs(run)
    jobs.enqueue("plain", undo=True)
    run.marks["job plain"] = [jobs.enqueue("plain")]
    held = jobs.claim()
    jobs.handle(held, result="deferred")
    finish(run.db, held, ACTIONS["release"])
    held = jobs.claim()
    jobs.handle(held)
    jobs.done(held)
    _lost(run, jobs)
    _lanes(run, jobs)
    run.marks["job cancelled"] = [jobs.enqueue("plain")]
    JOBS.cancel(run.db, run.marks["job cancelled"], actor="ann")
    run.marks["job waiting"] = [jobs.enqueue("plain"), jobs.enqueue("plain")]


def _lost(run: SmallRun, jobs: SmallJobs) -> None:
    """The worker of two jobs is gone: one is taken back and done, the other one left to a person."""
    run.marks["job lost"] = [jobs.enqueue("plain")]
    run.marks["job manual"] = [jobs.enqueue("manual")]
    jobs.handle(jobs.claim("j2"), "j2", result=None)
    jobs.until_expired()
    assert len(JOBS.reclaim(run.db)) == 2
    taken = claim_suspects(run.db)
    jobs.handle(taken, "w1")
    jobs.done(taken)
    JOBS.retry(run.db, run.marks["job manual"], actor="ann")
    held = jobs.claim()
    jobs.handle(held)
    jobs.done(held)


def _lanes(run: SmallRun, jobs: SmallJobs) -> None:
    """Of a key that has a limit of one, one job at a time."""
    run.marks["job keyed"] = [jobs.enqueue("keyed", key="k") for _ in range(3)]
    for _ in range(2):
        held = claim_in_lanes(run.db)
        assert len(held) == 1
        jobs.handle(held, "w1")
        jobs.done(held)
