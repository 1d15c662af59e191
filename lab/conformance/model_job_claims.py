"""What a claim of jobs takes: the room in lanes, and whose turn it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fencepost.core.job_states import JobState
from fencepost.core.states import Event
from lab.conformance import job_steps as j
from lab.conformance import model_ledger as ledger
from lab.conformance.job_work import TASKS, UNKNOWN_LEASE
from lab.conformance.judged import Judged
from lab.conformance.model_jobs import Job, happen, job_of, jobs_of
from lab.conformance.model_rows import Sight, demand, micros

Lane = tuple[str, str]
"""A task, and a key that its limit counts by."""


class Room:
    """How many jobs of a lane and of a task may run besides those that do."""

    def __init__(self, sight: Sight, terms: j.Terms) -> None:
        running = [job for job in jobs_of(sight) if job.status is JobState.PROCESSING and job.lane is not None]
        self._lanes = Counter(map(lane_of, running))
        self._tasks = Counter(job.task for job in running)
        self._terms = terms

    def in_lane(self, lane: Lane) -> int:
        width = {"t": 10**9, "u": self._terms.width}.get(lane[0], 1)
        return width - self._lanes[lane]

    def of_task(self, task: str) -> int:
        limit = {"t": 10**9, "u": self._terms.limit}.get(task, 1)
        return limit - self._tasks[task]


def first_of_each(jobs: Iterable[Job], room: Room) -> list[Job]:
    """Return the first jobs of each task, as far as there is room, in the order in which they are served."""
    taken: Counter[str] = Counter()
    fitting = []
    for job in sorted(jobs, key=lambda job: job.place):
        taken[job.task] += 1
        if taken[job.task] <= room.of_task(job.task):
            fitting.append(job)
    return fitting


def that_fit(jobs: Iterable[Job], room: Room) -> list[Job]:
    """Return, of jobs in any lanes and in none, those for which there is room in their lane and of their task."""
    lanes: Counter[Lane] = Counter()
    tasks: Counter[str] = Counter()
    fitting = []
    for job in sorted(jobs, key=lambda job: job.place):
        lanes[lane_of(job)] += 1
        tasks[job.task] += 1
        has_room = lanes[lane_of(job)] <= room.in_lane(lane_of(job)) and tasks[job.task] <= room.of_task(job.task)
        if job.lane is None or has_room:
            fitting.append(job)
    return fitting


def lane_of(job: Job) -> Lane:
    """Return the lane that a job stands in."""
    return job.task, job.lane or ""


def is_fresh(at: Judged, job: Job, queue: str) -> bool:
    """Tell whether a normal claim may take a job."""
    return job.queue == queue and job.reclaims == 0 and job.is_due(at.sight.now)


def claimed(at: Judged, terms: j.Terms, expected: Sequence[Job], possible: Sequence[Job], batch: int) -> None:
    """Judge what was taken: exactly what is expected, or what is possible where another session has some."""
    sight, result = at.sight, at.result
    before = {job.id: job for job in jobs_of(sight)}
    shown = {job.id: job for job in at.after.jobs}
    taken = sorted(row_id for row_id, job in before.items() if shown[row_id].fence != job.fence)
    demand(len(taken) <= batch, f"{taken} were claimed, of at most {batch}")
    allowed = [job.id for job in (expected if at.alone else possible)]
    demand(taken == sorted(allowed) if at.alone else set(taken) <= set(allowed), f"{taken} of {allowed}")
    for row_id in taken:
        job = before[row_id]
        is_over = job.attempts >= job.max_attempts
        lease = terms.lease if job.task in TASKS else UNKNOWN_LEASE
        event = Event.CLAIM_OVER_LIMIT if is_over else Event.CLAIM
        happen(sight, row_id, event, span=micros(lease), owner=terms.worker)
    found = (job_of(sight, row_id) for row_id in taken)
    running = [job for job in found if job is not None and job.is_open]
    told = [(each.id, each.fence, each.attempt) for each in result.claimed]
    in_turn = [(job.id, job.fence, job.attempts) for job in sorted(running, key=lambda job: job.place)]
    demand(told == in_turn, f"{told} are said to be claimed, not {in_turn}")
    demand(result.exhausted == len(taken) - len(running), f"{result.exhausted} are said to be exhausted")
    for job in sorted(running, key=lambda job: job.id):
        if terms.ledger and job.task in TASKS:
            ledger.begin(sight, ledger.JOB, job.id, job.fence, job.queue, job.attempts, job.owner)
