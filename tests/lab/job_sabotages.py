"""Sabotages of the shipped worker, and of the statements under it, that the simulator has to find."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from lab.fake_store import job_holders, jobs
from lab.fake_store.rows import JOB, JobRow, Table
from lab.fake_store.statements import STATEMENTS
from lab.fake_store.turn import Turn
from lab.simulator.job_plan import JobFault, JobPlan, PlannedJob, PlannedSchedule, job_plan_of

from fencepost.core import outcome
from fencepost.core.job import ClaimedJob
from fencepost.core.lease import TrustWindow
from fencepost.core.states import Recovery
from fencepost.runtime import job_flight, job_run
from fencepost.runtime.held import Held
from fencepost.runtime.job_claimer import JobClaimer
from fencepost.runtime.job_flight import JobFlight
from fencepost.store import job_fenced

Patch = Any


def _statement(name: str, answer: Callable[..., Awaitable[Any]]) -> Patch:
    return mock.patch.dict(STATEMENTS, {name: answer})


# --- the store's part of the protocol --------------------------------------------------------------------


def jobs_finished_without_their_token() -> Patch:
    def fence(params: Any) -> Callable[[JobRow], bool]:
        return lambda row: row.status == "processing"

    return mock.patch.object(job_holders, "_fence", fence)


def claims_without_a_new_fence() -> Patch:
    honest = jobs._taken

    def taken(turn: Any, params: Any, row: JobRow, token: str) -> JobRow:
        return honest(turn, params, row, token)._replace(fence=max(1, row.fence))

    return mock.patch.object(jobs, "_taken", taken)


def lanes_counted_behind_no_lock() -> Patch:
    async def job_lanes_lock(turn: Any, params: Any) -> list[Any]:
        return [(True,)]

    return _statement("job_lanes_lock", job_lanes_lock)


def lanes_not_counted() -> Patch:
    def in_lane(self: Any, task: str, lane: str | None) -> int:
        return int(self._widths.get(task, 1))

    return mock.patch.object(jobs._Room, "in_lane", in_lane)


def attempts_given_back_twice() -> Patch:
    honest = job_holders.job_requeue

    async def job_requeue(turn: Turn, params: Any) -> list[Any]:
        found = await honest(turn, params)
        for (row_id,) in found:
            row = turn.newest(JOB, row_id)
            if row is not None and params["refunds"][params["ids"].index(row_id)]:
                turn.put(JOB, row._replace(attempts=row.attempts - 1))
        return found

    return _statement("job_requeue", job_requeue)


def heartbeats_for_whoever_holds_it() -> Patch:
    honest = job_holders.job_heartbeat

    async def job_heartbeat(turn: Turn, params: Any) -> list[Any]:
        with jobs_finished_without_their_token():
            return await honest(turn, params)

    return _statement("job_heartbeat", job_heartbeat)


def unique_keys_not_looked_at() -> Patch:
    honest = Turn.conflict

    async def conflict(self: Turn, table: Table[Any], is_same: Callable[[Any], bool]) -> Any:
        return None if table is JOB else await honest(self, table, is_same)

    return mock.patch.object(Turn, "conflict", conflict)


def cancels_that_leave_the_token() -> Patch:
    honest = job_holders.job_end

    async def job_end(turn: Turn, params: Any) -> list[Any]:
        tokens = {each: row.attempt_token for each in params["ids"] if (row := turn.get(JOB, each)) is not None}
        found = await honest(turn, params)
        for (row_id,) in found:
            row = turn.newest(JOB, row_id)
            if row is not None:
                turn.put(JOB, row._replace(attempt_token=tokens[row_id]))
        return found

    return _statement("job_end", job_end)


def jobs_taken_back_before_their_lease_has_ended() -> Patch:
    honest = jobs.job_reclaim

    async def job_reclaim(turn: Turn, params: Any) -> list[Any]:
        turn.now += 500_000
        return await honest(turn, params)

    return _statement("job_reclaim", job_reclaim)


def ticks_that_move_nothing_on() -> Patch:
    async def cron_move(turn: Any, params: Any) -> list[Any]:
        return [(params["name"],)]

    return _statement("cron_move", cron_move)


def inbox_that_accepts_everything() -> Patch:
    async def inbox_accept(turn: Any, params: Any) -> list[Any]:
        return [(True,)]

    return _statement("inbox_accept", inbox_accept)


def attempts_that_end_without_the_ledger() -> Patch:
    def close_attempts(catalog: Any, kind: Any, ended: Any) -> Any:
        yield from ()

    return mock.patch.object(job_fenced, "close_attempts", close_attempts)


# --- the runtime's part ----------------------------------------------------------------------------------


def heartbeat_never_beats() -> Patch:
    return mock.patch.object(Held, "to_beat", return_value=[])


def lost_leases_told_to_nobody() -> Patch:
    def lose(self: Any, holdings: Any) -> list[Any]:
        return []

    return mock.patch.object(Held, "lose", lose)


def held_jobs_not_given_back() -> Patch:
    async def cut_off(self: Any, patience: float) -> None:
        return

    return mock.patch.object(JobFlight, "cut_off", cut_off)


def shutdowns_that_spend_attempts() -> Patch:
    honest = JobFlight._decide

    def decide(self: Any, held: Any, result: Any) -> Any:
        was, self._is_cut_off = self._is_cut_off, False
        try:
            return honest(self, held, result)
        finally:
            self._is_cut_off = was

    return mock.patch.object(JobFlight, "_decide", decide)


def verifiers_not_asked() -> Patch:
    return mock.patch.object(ClaimedJob, "is_to_verify", False)


def manual_jobs_repeated() -> Patch:
    honest = outcome.decide

    def decide(*given: Any, recovery: Any, **options: Any) -> Any:
        return honest(*given, recovery=Recovery.AUTO if recovery is Recovery.MANUAL else recovery, **options)

    return mock.patch.object(job_flight, "decide", decide)


def failures_taken_for_ends() -> Patch:
    honest = job_run.run_job

    async def run_job(*given: Any) -> Any:
        await honest(*given)
        return job_run.DELIVERED

    return mock.patch.object(job_flight, "run_job", run_job)


def handlers_begun_late() -> Patch:
    def refuse_late(lost: Any, remaining: float) -> None:
        return

    return mock.patch.object(job_run, "refuse_late", refuse_late)


def leases_trusted_too_long() -> Patch:
    def remaining(self: TrustWindow, now: float) -> float:
        return max(0.0, self.sent_at + 4 * self.lease - now)

    return mock.patch.object(TrustWindow, "remaining", remaining)


def hard_limits_without_effect() -> Patch:
    def time_out(self: Any, held: Any) -> None:  # (A mock would keep what it was called with.)
        return

    return mock.patch.object(JobFlight, "_time_out", time_out)


def queues_in_the_wrong_order() -> Patch:
    honest = JobClaimer._in_turn

    def in_turn(self: Any) -> Sequence[Any]:
        return honest(self)[::-1]

    return mock.patch.object(JobClaimer, "_in_turn", in_turn)


# --- schedules that lead there ---------------------------------------------------------------------------


def _with(seed: int, *faults: JobFault, jobs: int = 8, **task: Any) -> JobPlan:
    """Make a plan of two workers and one task, that only these faults befall."""
    plan = job_plan_of(seed)
    settings: dict[str, Any] = {
        "name": "t0",
        "queue": "low",
        "lease": 0.6,
        "recovery": "auto",
        "max_attempts": 3,
        "max_running": None,
        "max_running_per_key": None,
        "hard_limit": None,
        "soft_limit": None,
        "in_thread": False,
        "cooperates": False,
        "ledger": False,
        "into_inbox": False,
    }
    only = replace(plan.tasks[0], **(settings | task))
    key = None if only.max_running_per_key is None else "k0"
    return replace(
        plan,
        processes=2,
        lease=only.lease,
        poll=0.3,
        pace=0.3,
        concurrency=4,
        grace=0.0,
        queues=None,
        retention=None,
        resolves=False,
        tasks=(only,),
        schedule=None,
        jobs=tuple(PlannedJob(each, each, 0.0, "t0", key, None, 0.0, False) for each in range(jobs)),
        faults=faults,
    )


def pauses(seed: int, **task: Any) -> JobPlan:
    """Make a plan of pauses a little longer than the lease, which makes takeovers likely."""
    chance = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    faults = [
        JobFault(
            "handler", chance.choice(("pause after", "pause before")), each, 1, seconds=chance.uniform(0.7, 1.4)
        )
        for each in chance.sample(range(8), 2)
    ]
    return _with(seed, *faults, **task)


def stops(seed: int) -> JobPlan:
    """Make a plan of slow handlers, and of a stop of one of its workers."""
    slow = [JobFault("handler", "slow", each, 1, seconds=1.0) for each in range(8)]
    return _with(seed, *slow, JobFault("process", "stop", 0, at=0.3))


def keyed(seed: int) -> JobPlan:
    """Make a plan of one lane of one job at once."""
    return _with(seed, max_running_per_key=1)


def unique(seed: int) -> JobPlan:
    """Make a plan of jobs of one unique key."""
    plan = _with(seed)
    return replace(plan, jobs=tuple(replace(each, unique_key="u0") for each in plan.jobs))


def ticking(seed: int) -> JobPlan:
    """Make a plan with a schedule."""
    plan = _with(seed, JobFault("handler", "slow", 0, 1, seconds=1.0))
    return replace(plan, schedule=PlannedSchedule("t0", 1, False))


def cancels(seed: int) -> JobPlan:
    """Make a plan of slow jobs that an operator cancels while they run."""
    slow = [JobFault("handler", "slow", each, 1, seconds=1.2 * 2) for each in range(4)]
    return _with(seed, *slow, *(JobFault("operator", "cancel", each, at=0.4) for each in range(4)), jobs=4)


def to_verify(seed: int) -> JobPlan:
    """Make a plan of jobs that are to be verified before a repeat."""
    return pauses(seed, recovery="verify")


def into_inbox(seed: int) -> JobPlan:
    """Make a plan of takeovers of jobs whose effect is behind an inbox."""
    return pauses(seed, into_inbox=True)


def hanging(seed: int, recovery: str = "auto", **task: Any) -> JobPlan:
    """Make a plan of handlers that hang until their hard limit."""
    hang = [JobFault("handler", "hang", each, 1) for each in range(3)]
    return _with(seed, *hang, hard_limit=0.3, recovery=recovery, **task)


def by_hand(seed: int) -> JobPlan:
    """Make the same of jobs that are left to a person."""
    return hanging(seed, "manual")


def kept(seed: int) -> JobPlan:
    """Make a plan of takeovers with a ledger."""
    return pauses(seed, ledger=True)


def deferred(seed: int) -> JobPlan:
    """Make a plan of jobs that fail once, and then put themselves off."""
    twice = (("retry", 1), ("defer", 2))
    return _with(seed, *(JobFault("handler", kind, each, nth) for each in range(8) for kind, nth in twice))


def two_queues(seed: int) -> JobPlan:
    """Make a plan of two queues of which one comes first, and of so many jobs that they wait."""
    plan = _with(seed, jobs=24)
    tasks = (plan.tasks[0], replace(plan.tasks[0], name="t1", queue="high"))
    mixed = tuple(replace(each, task=f"t{each.number % 2}") for each in plan.jobs)
    return replace(plan, tasks=tasks, jobs=mixed, queues=("high", "low"), concurrency=2, pace=1.0)


SABOTAGES: Mapping[Callable[[], Patch], tuple[Callable[[int], JobPlan], range, frozenset[str]]] = {
    jobs_finished_without_their_token: (pauses, range(30), frozenset({"I2"})),
    claims_without_a_new_fence: (pauses, range(30), frozenset({"I9"})),
    lanes_counted_behind_no_lock: (keyed, range(30), frozenset({"lane"})),
    lanes_not_counted: (keyed, range(10), frozenset({"lane"})),
    attempts_given_back_twice: (deferred, range(10), frozenset({"I7"})),
    heartbeats_for_whoever_holds_it: (pauses, range(60), frozenset({"I2"})),
    unique_keys_not_looked_at: (unique, range(10), frozenset({"unique"})),
    cancels_that_leave_the_token: (cancels, range(10), frozenset({"I9"})),
    jobs_taken_back_before_their_lease_has_ended: (pauses, range(30), frozenset({"I9"})),
    ticks_that_move_nothing_on: (ticking, range(10), frozenset({"tick"})),
    inbox_that_accepts_everything: (into_inbox, range(60), frozenset({"I8"})),
    attempts_that_end_without_the_ledger: (kept, range(10), frozenset({"ledger"})),
    heartbeat_never_beats: (stops, range(20), frozenset({"I15"})),
    lost_leases_told_to_nobody: (cancels, range(10), frozenset({"lost"})),
    held_jobs_not_given_back: (stops, range(20), frozenset({"I1"})),
    shutdowns_that_spend_attempts: (stops, range(20), frozenset({"I3"})),
    verifiers_not_asked: (to_verify, range(60), frozenset({"verify"})),
    manual_jobs_repeated: (by_hand, range(10), frozenset({"manual"})),
    failures_taken_for_ends: (job_plan_of, range(60), frozenset({"I1"})),
    handlers_begun_late: (pauses, range(60), frozenset({"I15"})),
    leases_trusted_too_long: (pauses, range(60), frozenset({"I15"})),
    hard_limits_without_effect: (hanging, range(10), frozenset({"hard limit"})),
    queues_in_the_wrong_order: (two_queues, range(20), frozenset({"priority"})),
}
"""Each with what makes the schedules, the seeds that it may take, and the guarantees that it breaks."""
