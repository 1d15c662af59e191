"""The operation of each step that is about jobs, for one store: what it claimed is remembered here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import singledispatchmethod
from typing import Any
from uuid import UUID

from fencepost.core.job import ClaimedJob, JobDraft
from fencepost.core.operation import Operation
from fencepost.core.outcome import Action, Dead, Done, Release, Reschedule
from fencepost.core.states import Event, Outcome, Recovery
from fencepost.core.ticks import Due
from fencepost.store import job_fenced, job_operators, jobs, schedules
from fencepost.store.catalog import Catalog
from lab.conformance import job_steps as j
from lab.conformance.steps import Places, Step

CATALOG = Catalog()

ACTIONS: Mapping[str, Action] = {
    "done": Done(),
    "kept": Done(),
    "retry": Reschedule(Event.RETRY, timedelta(minutes=1), "retried", refund_attempt=False),
    "defer": Reschedule(Event.DEFER, timedelta(minutes=5), "deferred", refund_attempt=True),
    "refuse": Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "refused"),
    "exhaust": Dead(Event.EXHAUST, Outcome.EXHAUSTED, "too often"),
    "release": Release(),
}
"""What a worker writes; of one that is ``kept`` the result stays with the job."""

RESULT = '{"n": 1}'

TASKS = ("t", "u")
"""The tasks that a worker knows: t has no limit, u has lanes. What else there is it only gives back."""

UNKNOWN_LEASE = 2
"""Minutes, of a job that its worker does not know."""

STEP = 2
"""Lanes that one claim walks through, and ticks that one step enqueues, in a history."""


class JobWork:
    """What the workers of a history hold or held, and how many jobs were made up."""

    def __init__(self) -> None:
        self.claims: list[ClaimedJob] = []
        self.rows: list[int] = []
        self._made = 0
        self._walks: dict[str, jobs.LaneWalk] = {}

    def held(self, places: Places) -> list[ClaimedJob]:
        """Return claims, each row once: of several claims of a row the first one that is named."""
        found: dict[int, ClaimedJob] = {}
        for place in places:
            if place < len(self.claims):
                each = self.claims[-1 - place]
                found.setdefault(each.id, each)
        return list(found.values())

    def decided(self, step: j.FinishJobs) -> list[tuple[ClaimedJob, str]]:
        """Return the words that a step writes."""
        held = self.held(step.claims)
        return [(each, step.actions[at % len(step.actions)]) for at, each in enumerate(held)]

    def is_atomic(self, step: Step) -> bool:
        """Tell whether the step needs a transaction around it."""
        match step:
            case j.FinishJobs():
                return any(each.ledger for each in self.held(step.claims))
            case j.ClaimJobs(terms=terms):
                return terms.ledger
        return isinstance(step, (j.ClaimLanes, j.ClaimJobSuspects, j.EnqueueJob, j.EndJobs, j.RetryJobs, j.Tick))

    def remember(self, step: Step, result: Any) -> None:
        """Keep what later steps name."""
        if isinstance(step, (j.ClaimJobs, j.ClaimLanes, j.ClaimJobSuspects)):
            self.claims += result.claimed

    def _ids(self, places: Places) -> list[int]:
        return [self.rows[-1 - place] for place in places if place < len(self.rows)]

    @singledispatchmethod
    def operation(self, step: Step) -> Operation[Any]:
        """Return what a step asks of the store."""
        raise NotImplementedError(step)

    @operation.register
    def _(self, step: j.EnqueueJob) -> Operation[Any]:
        self._made += 1
        job = JobDraft(
            job_id=UUID(int=self._made, version=4),
            queue=step.queue,
            task=step.task,
            args=str(step.args),
            headers="{}",
            unique_key=step.unique,
            lane=step.lane,
            recovery=Recovery(step.recovery),
            max_attempts=step.max_attempts,
            available_at=None,
            delay=60.0 * step.delay,
        )
        return jobs.enqueue(CATALOG, job, notify=False)

    @operation.register
    def _(self, step: j.LookForJobs) -> Operation[Any]:
        return jobs.look(CATALOG, None if step.queue is None else [step.queue, "s"])

    @operation.register
    def _(self, step: j.ClaimJobs) -> Operation[Any]:
        return jobs.claim(CATALOG, _terms(step.terms), step.queue, step.batch)

    @operation.register
    def _(self, step: j.ClaimLanes) -> Operation[Any]:
        walk = self._walks.setdefault(step.queue, jobs.LaneWalk())
        return jobs.claim_lanes(CATALOG, _terms(step.terms), step.queue, step.batch, walk)

    @operation.register
    def _(self, step: j.ClaimJobSuspects) -> Operation[Any]:
        return jobs.claim_suspects(
            CATALOG, _terms(step.terms), step.queue, step.batch, step.max_reclaims, step.spare_attempts
        )

    @operation.register
    def _(self, step: j.BeatJobs) -> Operation[Any]:
        held = self.held(step.claims)
        progress = {each.id: str(step.progress) for each in held} if step.progress is not None else None
        return job_fenced.heartbeat(CATALOG, held, timedelta(minutes=step.lease), progress)

    @operation.register
    def _(self, step: j.FinishJobs) -> Operation[Any]:
        finished = [
            job_fenced.Finished(each, ACTIONS[word], RESULT if word == "kept" else None)
            for each, word in self.decided(step)
        ]
        return job_fenced.finalize(CATALOG, finished)

    @operation.register
    def _(self, step: j.ReclaimJobs) -> Operation[Any]:
        return jobs.reclaim(CATALOG, limit=step.limit)

    @operation.register
    def _(self, step: j.RetryJobs) -> Operation[Any]:
        return job_operators.retry(CATALOG, self._ids(step.rows), actor="op", reason=None, notify=True)

    @operation.register
    def _(self, step: j.EndJobs) -> Operation[Any]:
        ids = self._ids(step.rows)
        if step.cancels:
            return job_operators.cancel(CATALOG, ids, actor="op", reason=None)
        return job_operators.fail(CATALOG, ids, actor="op", reason="why")

    @operation.register
    def _(self, step: j.PurgeJobs) -> Operation[Any]:
        return jobs.purge(CATALOG, older_than=timedelta(minutes=step.older_than), limit=step.limit)

    @operation.register
    def _(self, step: j.CountJobs) -> Operation[Any]:
        return job_operators.stats(CATALOG)

    @operation.register
    def _(self, step: j.RegisterSchedule) -> Operation[Any]:
        return schedules.register(CATALOG, step.name, _definition(step.every))

    @operation.register
    def _(self, step: j.SignSchedules) -> Operation[Any]:
        return schedules.sign(CATALOG, step.names)

    @operation.register
    def _(self, step: j.LookAtSchedules) -> Operation[Any]:
        return schedules.look(CATALOG, step.names)

    @operation.register
    def _(self, step: j.Tick) -> Operation[Any]:
        every = timedelta(minutes=step.every)

        def due(last_tick: datetime, now: datetime) -> Due:
            ticks = tuple(last_tick + n * every for n in range(1, STEP + 1) if last_tick + n * every <= now)
            return Due(ticks, ticks[-1] if ticks else last_tick, has_more=len(ticks) == STEP)

        def draft(tick: datetime) -> JobDraft:
            self._made += 1
            identity = UUID(int=self._made, version=4)
            unique = step.name if step.unique else None
            return JobDraft(
                identity, "q", "t", str(step.every), "{}", unique, None, Recovery.AUTO, 2, None, delay=0.0
            )

        return schedules.step(
            CATALOG, step.name, _definition(step.every), adopts=step.adopts, due=due, draft=draft, notify=True
        )


def _terms(terms: j.Terms) -> jobs.JobTerms:
    lease = timedelta(minutes=terms.lease)
    known = {
        "t": jobs.TaskTerms(lease, ledger=terms.ledger),
        "u": jobs.TaskTerms(lease, terms.width, terms.limit, ledger=terms.ledger),
    }
    return jobs.JobTerms(terms.worker, known, timedelta(minutes=UNKNOWN_LEASE))


def _definition(every: int) -> schedules.Definition:
    return schedules.Definition("t", f"every {every}", "UTC")
