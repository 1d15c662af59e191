"""What each step with jobs may do and return: judged on the model's own rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import singledispatchmethod
from typing import Any

from fencepost.core.job import ClaimedJob, EnqueuedJob
from fencepost.core.job_states import JobState
from fencepost.core.states import Event
from fencepost.store.jobs import JobClaim
from lab.conformance import job_steps as j
from lab.conformance import model_ledger as ledger
from lab.conformance.job_work import RESULT, STEP
from lab.conformance.judged import Call, Judged
from lab.conformance.model_job_claims import Lane, Room, claimed, first_of_each, is_fresh, lane_of, that_fit
from lab.conformance.model_jobs import Job, happen, job_of, jobs_of, write
from lab.conformance.model_rows import Sight, demand, micros
from lab.conformance.steps import Step

WORDS: dict[str, tuple[Event, JobState, str | None, str, int | None]] = {
    "done": (Event.DELIVERED, JobState.DONE, "completed", "completed", None),
    "kept": (Event.DELIVERED, JobState.DONE, "completed", "completed", None),
    "retry": (Event.RETRY, JobState.QUEUED, None, "failed", 1),
    "defer": (Event.DEFER, JobState.QUEUED, None, "deferred", 5),
    "refuse": (Event.PERMANENT_FAILURE, JobState.FAILED, "permanent", "refused", None),
    "exhaust": (Event.EXHAUST, JobState.FAILED, "exhausted", "failed", None),
    "release": (Event.RELEASE, JobState.QUEUED, None, "released", None),
}
"""Of each word the event, the target state and outcome, the attempt's result, and minutes until it is due."""


class JobModel:
    """The rules for jobs, and how far each walk through lanes has come."""

    def __init__(self) -> None:
        self._walks: dict[str, Lane | None] = {}

    @singledispatchmethod
    def judge(self, step: Step, at: Judged) -> None:
        """Judge what a step returned and left behind, and make it so."""
        raise NotImplementedError(step)

    # --- producers ---

    @judge.register
    def _(self, step: j.EnqueueJob, at: Judged) -> None:
        same = _open_with(at.sight, step.task, step.unique)
        if same is not None and same.args != step.args:
            at.demand_error("DedupeConflict")
            return
        receipt: EnqueuedJob = at.result
        demand(receipt.created == (same is None), f"{receipt} beside {same}")
        if same is not None:
            demand(receipt.id == same.id, f"{receipt}, not {same}")
            return
        self._add(at, receipt.id, step, at.call.began + micros(step.delay))

    def _add(self, at: Judged, job_id: int, step: j.EnqueueJob, available: int) -> None:
        is_new = job_id > at.call.newest_job and at.sight.get(("job", job_id)) is None
        demand(is_new, f"job {job_id} is said to be new, although {at.call.newest_job} was there when it began")
        identity = (job_id, step.queue, step.task, step.unique, step.lane)
        write(at.sight, Job(*identity, step.recovery, step.max_attempts, step.args, available))

    # --- claims ---

    @judge.register
    def _(self, step: j.LookForJobs, at: Judged) -> None:
        queued = [job for job in jobs_of(at.sight) if job.status is JobState.QUEUED]
        names = sorted({job.queue for job in queued}) if step.queue is None else [step.queue, "s"]
        for name, found in zip(names, at.result, strict=True):
            ours = [job for job in queued if job.queue == name]
            due = any(is_fresh(at, job, name) and job.lane is None for job in ours)
            in_lanes = any(job.lane is not None and job.reclaims == 0 for job in ours)
            suspects = any(job.reclaims > 0 and job.is_due(at.sight.now) for job in ours)
            shown = (found.queue, found.is_due, found.has_lanes, found.has_suspects)
            demand(shown == (name, due, in_lanes, suspects), f"{found} of {ours}")

    @judge.register
    def _(self, step: j.ClaimJobs, at: Judged) -> None:
        fresh = [job for job in jobs_of(at.sight) if is_fresh(at, job, step.queue) and job.lane is None]
        expected = sorted(fresh, key=lambda job: job.place)[: step.batch]
        claimed(at, step.terms, expected, fresh, step.batch)

    @judge.register
    def _(self, step: j.ClaimLanes, at: Judged) -> None:
        found: JobClaim = at.result
        if found.is_busy:
            demand(not at.alone and not found.claimed, "the lanes are busy, although nobody is at them")
            return
        walk = self._walk(at.sight, step.queue)
        lanes = [job for job in jobs_of(at.sight) if job.lane is not None and lane_of(job) in walk]
        fresh = [job for job in lanes if is_fresh(at, job, step.queue)]
        room = Room(at.sight, step.terms)
        expected: list[Job] = []
        for lane in walk:
            in_lane = sorted((job for job in fresh if lane_of(job) == lane), key=lambda job: job.place)
            expected += in_lane[: max(0, min(room.in_lane(lane), step.batch))]
        expected = first_of_each(expected, room)[: step.batch]
        claimed(at, step.terms, expected, fresh, step.batch)
        room_after = Room(at.sight, step.terms)
        for each in found.claimed:
            lane = (each.job.task, each.job.key or "")
            demand(room_after.in_lane(lane) >= 0, f"more of lane {lane} run than may")
            demand(room_after.of_task(lane[0]) >= 0, f"more of task {lane[0]} run than may")

    def _walk(self, sight: Sight, queue: str) -> list[Lane]:
        """Return the lanes that a claim goes through, behind the place where the last one ended."""
        jobs = [job for job in jobs_of(sight) if job.queue == queue and job.status is JobState.QUEUED]
        lanes = sorted({lane_of(job) for job in jobs if job.lane is not None and job.reclaims == 0})
        behind = self._walks.get(queue)
        walk = [lane for lane in lanes if lane > (behind or ("", ""))][:STEP]
        self._walks[queue] = walk[-1] if len(walk) == STEP else None
        return walk

    @judge.register
    def _(self, step: j.ClaimJobSuspects, at: Judged) -> None:
        if at.result.is_busy:
            demand(not at.alone and not at.result.claimed, "the lanes are busy, although nobody is at them")
            return
        room = Room(at.sight, step.terms)

        def is_suspect(job: Job) -> bool:
            has_room = job.lane is None or (room.in_lane(lane_of(job)) > 0 and room.of_task(job.task) > 0)
            came_back = job.queue == step.queue and 0 < job.reclaims <= step.max_reclaims
            can_spare = not step.spare_attempts or job.attempts + step.spare_attempts < job.max_attempts
            return came_back and can_spare and job.is_due(at.sight.now) and has_room

        suspects = sorted(filter(is_suspect, jobs_of(at.sight)), key=lambda job: job.place)
        claimed(at, step.terms, that_fit(suspects[: step.batch], room), suspects, step.batch)

    # --- holders ---

    @judge.register
    def _(self, step: j.BeatJobs, at: Judged) -> None:
        held = [each for each in at.call.jobs if _is_held(at.sight, each)]
        lost = {each.id for each in at.call.jobs} - {each.id for each in held}
        demand(at.result == lost, f"{sorted(at.result)} are said to be lost, not {sorted(lost)}")
        for each in held:
            job = job_of(at.sight, each.id)
            # (What another session is at keeps its lease as it is.)
            if job is not None and ("job", job.id) not in at.locked:
                longer = job._replace(lease_until=at.sight.now + micros(step.lease), beat=at.sight.now)
                further = job.progress if step.progress is None else str(step.progress)
                write(at.sight, longer._replace(progress=further))

    @judge.register
    def _(self, step: j.FinishJobs, at: Judged) -> None:
        lost = {each.id for each, word in at.call.decided_jobs if not _finished(at.sight, each, word)}
        demand(at.result == lost, f"{sorted(at.result)} are said to be lost, not {sorted(lost)}")
        for each, word in at.call.decided_jobs:
            if each.ledger:
                result = WORDS[word][3]
                ledger.end(at.sight, ledger.JOB, each.id, each.fence, result, lost=each.id in lost)

    @judge.register
    def _(self, step: j.ReclaimJobs, at: Judged) -> None:
        expired = sorted(
            (job for job in jobs_of(at.sight) if job.is_expired(at.sight.now)),
            key=lambda job: (job.lease_until or 0, job.id),
        )
        taken = sorted(each.id for each in at.result)
        expected = sorted(job.id for job in (expired[: step.limit] if at.alone else expired))
        demand(taken == expected if at.alone else set(taken) <= set(expected), f"{taken} of {expected}")
        demand(len(taken) <= step.limit, f"{taken} were taken back, of at most {step.limit}")
        for each in at.result:
            job = next(job for job in expired if job.id == each.id)
            event = Event.REAP_CRASHED if job.recovery == "auto" else Event.REAP_UNKNOWN
            may_repeat = job.recovery != "manual" and job.attempts < job.max_attempts
            happen(at.sight, job.id, Event.RECLAIM if may_repeat else event)
            demand((each.worker, each.attempt) == (job.owner, job.attempts), f"{each} of {job}")

    # --- operators and upkeep ---

    @judge.register
    def _(self, step: j.RetryJobs, at: Judged) -> None:
        ids = sorted(set(_named(at.call, step.rows)))
        failed = [job for job in _jobs(at.sight, ids) if job.status is JobState.FAILED]
        changed: list[Job] = []
        for job in failed:
            rival = _open_with(at.sight, job.task, job.unique)
            earlier = (other for other in failed if other.id < job.id and other.task == job.task)
            if rival is None and (job.unique is None or all(other.unique != job.unique for other in earlier)):
                changed.append(job)
        self._changed(at, ids, changed, Event.OPERATOR_RETRY)

    @judge.register
    def _(self, step: j.EndJobs, at: Judged) -> None:
        ids = sorted(set(_named(at.call, step.rows)))
        changed = [job for job in _jobs(at.sight, ids) if job.is_open]
        self._changed(at, ids, changed, Event.OPERATOR_CANCEL if step.cancels else Event.OPERATOR_FAIL)

    def _changed(self, at: Judged, ids: Collection[int], changed: Iterable[Job], event: Event) -> None:
        expected = [job.id for job in changed]
        found = at.result
        demand(list(found.changed) == expected, f"{found.changed} were changed, not {expected}")
        demand(found.refused.keys() == set(ids) - set(expected), f"{found.refused} of {ids}")
        for job_id in expected:
            happen(at.sight, job_id, event)

    @judge.register
    def _(self, step: j.PurgeJobs, at: Judged) -> None:
        before = at.sight.now - micros(step.older_than)
        done = [job for job in jobs_of(at.sight) if job.status is JobState.DONE and (job.closed or 0) < before]
        old = [job.id for job in sorted(done, key=lambda job: (job.closed or 0, job.id))]
        left = {job.id for job in at.after.jobs}
        gone = [job.id for job in jobs_of(at.sight) if job.id not in left]
        demand(len(gone) == at.result <= step.limit, f"{at.result} are said to be deleted, not {gone}")
        demand(set(gone) == set(old[: step.limit]) if at.alone else set(gone) <= set(old), f"{gone} of {old}")
        for job_id in gone:
            at.sight.put(("job", job_id), None)

    @judge.register
    def _(self, step: j.CountJobs, at: Judged) -> None:
        jobs, now = jobs_of(at.sight), at.sight.now
        expected = []
        for name in sorted({job.queue for job in jobs if job.is_open}):
            ours = [job for job in jobs if job.queue == name]
            counts = Counter(job.status for job in ours)
            due = sum(job.is_due(now) for job in ours)
            expired = sum(job.is_expired(now) for job in ours)
            expected.append((name, counts[JobState.QUEUED], due, counts[JobState.PROCESSING], expired))
        found = [(each.queue, each.queued, each.due, each.processing, each.expired) for each in at.result.queues]
        demand(found == expected, f"{found}, not {expected}")
        failed = Counter(job.outcome for job in jobs if job.status is JobState.FAILED)
        demand(dict(at.result.failed_by_outcome) == failed, f"{at.result}, not {failed}")

    # --- schedules ---

    @judge.register
    def _(self, step: j.RegisterSchedule, at: Judged) -> None:
        if at.sight.get(("cron", step.name)) is None:
            at.sight.put(("cron", step.name), (step.every, at.sight.now, at.sight.now))

    @judge.register
    def _(self, step: j.SignSchedules, at: Judged) -> None:
        for name in step.names:
            found = at.sight.get(("cron", name))
            key = ("cron", name)
            if found is not None and at.sight.now - found[2] > 15_000_000 and key not in at.locked:
                at.sight.put(key, (*found[:2], at.sight.now))

    @judge.register
    def _(self, step: j.LookAtSchedules, at: Judged) -> None:
        names = ("m", "n") if step.names is None else step.names
        expected = [(name, f"every {found[0]}") for name in names if (found := at.sight.get(("cron", name)))]
        found = [(each.name, each.definition.expression) for each in at.result]
        demand(found == expected, f"{found}, not {expected}")

    @judge.register
    def _(self, step: j.Tick, at: Judged) -> None:
        key = ("cron", step.name)
        stored = at.sight.get(key)
        if stored is None or key in at.locked:
            at.demand_result(None)
            return
        every, last, seen = stored
        now = at.sight.now
        at.sight.put(key, stored)  # it is held from here on, whether it moves or not
        if every != step.every:
            if not step.adopts and now - seen <= 60_000_000:
                at.demand_result(None)
                return
            last = max(last, now if step.adopts else seen)
        ticks = [last + n * micros(step.every) for n in range(1, STEP + 1)]
        ticks = [tick for tick in ticks if tick <= now]
        demand(at.result is not None, f"{stored} is said to be in other hands")
        added = self._ticked(at, step, len(ticks))
        found = (at.result.enqueued, at.result.held_back, at.result.has_more)
        expected = (added, len(ticks) - added, len(ticks) == STEP)
        demand(found == expected, f"{at.result}, not {expected}")
        if ticks or every != step.every:
            at.sight.put(key, (step.every, ticks[-1] if ticks else last, now))

    def _ticked(self, at: Judged, step: j.Tick, ticks: int) -> int:
        """Add a job for each tick, unless an open one has the schedule's unique key; return how many."""
        known = {job.id for job in jobs_of(at.sight)}
        new = [job.id for job in at.after.jobs if job.id not in known]
        job = j.EnqueueJob("t", None, "q", step.name if step.unique else None, step.every, 0, "auto", 2)
        added = 0
        for _ in range(ticks):
            if _open_with(at.sight, job.task, job.unique) is None:
                demand(added < len(new), "a tick without its job")
                self._add(at, new[added], job, at.sight.now)
                added += 1
        demand(added == len(new), f"{len(new)} jobs for {ticks} ticks")
        return added

    # --- what ends a transaction ---

    def demand_rival(self, sight: Sight, call: Call) -> None:
        """Demand that a retry was refused by the unique index with reason: a rival came in the same instant."""
        step = call.step
        rows = _named(call, step.rows) if isinstance(step, j.RetryJobs) else []
        rivals = [_open_with(sight, job.task, job.unique) for job in _jobs(sight, rows)]
        demand(any(rivals), f"{step} was refused without reason")


def _jobs(sight: Sight, ids: Iterable[int]) -> list[Job]:
    return [job for job_id in ids if (job := job_of(sight, job_id)) is not None]


def _is_held(sight: Sight, claimed: ClaimedJob) -> bool:
    job = job_of(sight, claimed.id)
    return job is not None and job.is_held(claimed.fence)


def _finished(sight: Sight, claimed: ClaimedJob, word: str) -> bool:
    """Write a result behind the fence; return whether it stands."""
    event, state, outcome, _, minutes = WORDS[word]
    job = job_of(sight, claimed.id)
    if job is None or not job.is_held(claimed.fence):
        return job is not None and job.stands(claimed.fence, state, outcome)
    after = job.after(event, sight.now, span=None if minutes is None else micros(minutes))
    if state is JobState.DONE:
        after = after._replace(result=RESULT if word == "kept" else None)
    write(sight, after)
    return True


def _open_with(sight: Sight, task: str, unique: str | None) -> Job | None:
    """Return the open job that has a task's unique key."""
    if unique is None:
        return None
    return next((job for job in jobs_of(sight) if job.is_open and (job.task, job.unique) == (task, unique)), None)


def _named(call: Call, places: Any) -> list[int]:
    return [call.job_rows[-1 - place] for place in places if place < len(call.job_rows)]
