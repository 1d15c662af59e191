"""How steps with jobs are made up; see `lab.conformance.histories`."""

from __future__ import annotations

from collections.abc import Callable

from lab.conformance import job_steps as j
from lab.conformance import steps as s
from lab.conformance.dice import Dice

QUEUES = ("q", "q", "q", "r")
PLACES: tuple[s.Places, ...] = (
    *((0,), (0, 1, 2, 3, 4, 5), (1,), (0, 1), (2,), (3, 1), (3,), (5,)),
    # The oldest claims first: of a job that was claimed again, the stale one.
    *((9, 8, 7, 6, 5, 4, 3, 2, 1, 0), (5, 4, 3, 2, 1, 0)),
)
ACTIONS = (
    *[("done",)] * 3,
    *(("retry",), ("retry",), ("defer",), ("refuse",), ("exhaust",), ("release",), ("kept",)),
    *(("done", "retry"), ("done", "done", "refuse"), ("defer", "kept"), ("release", "done")),
)
SCHEDULES = ("n", "n", "m")
BOTH = (False, True)
RECOVERIES = ("auto", "auto", "manual", "verify")


def enqueue_job(dice: Dice) -> s.Step:
    """Make up a job: the task t has no lane, u has one, and x nobody knows."""
    task = dice.pick(("t", "u", "t", "u", "x"))
    lanes: tuple[str | None, ...] = {"t": (None,), "u": ("a", "a", "b", ""), "x": (None, "a")}[task]
    return j.EnqueueJob(
        task=task,
        lane=dice.pick(lanes),
        queue=dice.pick(QUEUES),
        unique=dice.pick((None, None, None, "x", "y")),
        args=dice.pick((0, 0, 0, 1)),
        delay=dice.pick((0, 0, 0, 1, 5)),
        recovery=dice.pick(RECOVERIES),
        max_attempts=dice.pick((3, 2, 1)),
    )


def _terms(dice: Dice) -> j.Terms:
    return j.Terms(
        worker=dice.pick(("w1", "w2")),
        lease=dice.pick((1, 3)),
        width=dice.pick((1, 2)),
        limit=dice.pick((3, 2, 1)),
        ledger=dice.pick(BOTH),
    )


def _claim_suspects(dice: Dice) -> s.Step:
    return j.ClaimJobSuspects(
        _terms(dice), dice.pick(QUEUES), dice.pick((1, 1, 3)), dice.pick((9, 9, 1)), dice.pick((0, 0, 1, 2))
    )


KINDS: tuple[tuple[int, Callable[[Dice], s.Step]], ...] = (
    (10, enqueue_job),
    (8, lambda dice: j.ClaimJobs(_terms(dice), dice.pick(QUEUES), dice.pick((10, 1, 2)))),
    (9, lambda dice: j.ClaimLanes(_terms(dice), dice.pick(QUEUES), dice.pick((10, 1, 2)))),
    (5, _claim_suspects),
    (12, lambda dice: j.FinishJobs(dice.pick(PLACES), dice.pick(ACTIONS))),
    (4, lambda dice: j.BeatJobs(dice.pick(PLACES), dice.pick((1, 3)), dice.pick((None, 1, 2)))),
    (6, lambda dice: j.ReclaimJobs(dice.pick((10, 10, 1)))),
    (10, lambda dice: s.Pass(dice.pick((2, 1, 4, 10)))),
    (4, lambda dice: j.RetryJobs(dice.pick(PLACES))),
    (3, lambda dice: j.EndJobs(dice.pick(PLACES), dice.pick(BOTH))),
    (4, lambda dice: j.PurgeJobs(dice.pick((0, 2)), dice.pick((10, 1)))),
    (3, lambda dice: j.LookForJobs(dice.pick((None, "q", "r")))),
    (3, lambda _: j.CountJobs()),
    (2, lambda dice: j.RegisterSchedule(dice.pick(SCHEDULES), dice.pick((1, 2)))),
    (2, lambda dice: j.SignSchedules(dice.pick((("n",), ("n", "m"))))),
    (3, lambda dice: j.LookAtSchedules(dice.pick((None, ("n",))))),
    (4, lambda dice: j.Tick(dice.pick(SCHEDULES), dice.pick((1, 1, 2)), dice.pick(BOTH), dice.pick(BOTH))),
    (2, lambda dice: j.ReadLedger(dice.pick(PLACES))),
    (1, lambda dice: j.PurgeLedger(dice.pick((0, 2)), dice.pick((10, 1)))),
)
WEIGHTED = tuple(make for weight, make in KINDS for _ in range(weight))


def _take_over(dice: Dice) -> tuple[s.Step, ...]:
    """Make leases end, and somebody take over: what is done under the older ones from now on is stale."""
    terms = j.Terms("w2", lease=1, width=2, limit=3, ledger=dice.pick(BOTH))
    return s.Pass(4), j.ReclaimJobs(10), j.ClaimJobSuspects(terms, dice.pick(QUEUES), 3, 9, 0)


def _claim_and_finish(dice: Dice) -> tuple[s.Step, ...]:
    claim = dice.pick((j.ClaimJobs, j.ClaimLanes))(_terms(dice), dice.pick(QUEUES), 10)
    return claim, j.FinishJobs(dice.pick(PLACES), dice.pick(ACTIONS))


def _cut_off(dice: Dice) -> tuple[s.Step, ...]:
    terms = _terms(dice)
    claims = (j.ClaimJobs(terms, "q", 10), j.ClaimLanes(terms, "q", 10))
    return *claims, s.Pass(4), j.ReclaimJobs(10), j.FinishJobs(dice.pick(PLACES), dice.pick(ACTIONS))


def _lane(dice: Dice) -> tuple[s.Step, ...]:
    """Fill a lane: some of its jobs run when the next are claimed."""
    job = j.EnqueueJob("u", dice.pick(("a", "b")), "q", None, 0, 0, "auto", 2)
    return job, job, job, j.ClaimLanes(_terms(dice), "q", 1), j.ClaimLanes(_terms(dice), "q", 10)


def _schedule(dice: Dice) -> tuple[s.Step, ...]:
    tick = j.Tick("n", dice.pick((1, 1, 2)), dice.pick(BOTH), dice.pick(BOTH))
    return j.RegisterSchedule("n", 1), s.Pass(dice.pick((2, 1))), tick


MOTIFS = (*[_take_over] * 2, *[_claim_and_finish] * 4, _cut_off, _lane, _schedule)


_ALL: s.Places = (0, 1, 2, 3, 4, 5)


def _unique(dice: Dice) -> s.Step:
    return j.EnqueueJob("t", None, "q", "x", dice.pick((0, 0, 1)), 0, "auto", 2)


COLLIDING: tuple[Callable[[Dice], s.Step], ...] = (
    *[lambda dice: j.FinishJobs(_ALL, dice.pick(ACTIONS))] * 3,
    *[lambda _: j.RetryJobs(_ALL)] * 2,
    lambda dice: j.EndJobs(_ALL, dice.pick(BOTH)),
    *[_unique] * 2,
    lambda dice: j.BeatJobs(_ALL, 3, dice.pick((None, 1))),
    lambda dice: j.ClaimLanes(_terms(dice), "q", 10),
    lambda dice: j.Tick("n", 1, dice.pick(BOTH), dice.pick(BOTH)),
)
"""What two sessions do to the same jobs."""


def same_claims(dice: Dice) -> tuple[tuple[s.Step, ...], s.Step, s.Step]:
    """Two sessions write what came of the same jobs."""
    before = (j.ClaimJobs(_terms(dice), "q", 10), j.ClaimLanes(_terms(dice), "q", 10))
    return before, j.FinishJobs(_ALL, dice.pick(ACTIONS)), dice.pick(COLLIDING)(dice)
