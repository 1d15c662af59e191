"""The worker: what handlers are given, how their ends are told apart, leases, limits, order, and how it stops."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from fencepost import (
    ConfigError,
    Defer,
    InvalidMessage,
    Job,
    JobContext,
    Jobs,
    LeaseLost,
    Permanent,
    Retryable,
    SoftLimitReached,
    UnexpectedFailure,
    Verdict,
    Worker,
)
from fencepost.runtime import retention
from fencepost.runtime.held import Stage
from fencepost.runtime.job_flight import MOST_UNWRITTEN
from tests.runtime.box import Stubborn, until
from tests.runtime.job_box import LEASE, JobBox, working

# --- handlers --------------------------------------------------------------------------------------------


async def test_async_and_plain_handlers_get_the_job_and_what_is_known_of_the_attempt(jobs: JobBox) -> None:
    seen: dict[str, tuple[Job, JobContext, bool]] = {}

    @jobs.task("async")
    async def on_the_loop(job: Job, context: JobContext) -> None:
        seen["async"] = job, context, threading.current_thread() is threading.main_thread()

    @jobs.task("plain")
    def in_a_thread(job: Job, context: JobContext) -> None:
        seen["plain"] = job, context, threading.current_thread() is threading.main_thread()

    for name in ("async", "plain"):
        jobs.enqueue(task=name, headers={"h": "v"})
    assert await jobs.worker().work_once() == 2
    assert jobs.are_done(2)
    for name, is_main in (("async", True), ("plain", False)):
        job, context, was_main = seen[name]
        assert was_main is is_main
        assert (job.task, job.args, dict(job.headers)) == (name, {"n": 0}, {"h": "v"})
        assert (context.attempt, context.max_attempts, context.token, context.may_be_repeat) == (1, 12, 1, False)


@dataclass
class AsDataclass:
    id: int
    name: str = "x"


class AsStruct(msgspec.Struct):
    id: int
    name: str = "x"


class AsModel(pydantic.BaseModel):
    id: int
    name: str = "x"


@pytest.mark.parametrize("kind", [AsDataclass, AsStruct, AsModel])
async def test_arguments_have_the_type_that_the_task_declares(jobs: JobBox, kind: Any) -> None:
    seen: list[Any] = []

    @jobs.task(args=kind)
    async def handle(job: Job) -> None:
        seen.append(job.args)

    jobs.jobs.enqueue(jobs.conn, "t", kind(id=7))
    for wrong in ({"id": "seven"}, None, {"name": "y"}):
        with pytest.raises(InvalidMessage, match="args of task 't'"):
            jobs.jobs.enqueue(jobs.conn, "t", wrong)
    await jobs.worker().work_once()
    assert seen == [kind(id=7)]


async def test_arguments_that_are_not_what_the_task_takes_here_have_failed_for_good(jobs: JobBox) -> None:
    others = Jobs(allow_autocommit=True)
    others.declare("t")
    row_id = others.enqueue(jobs.conn, "t", {"id": "seven"}).id

    @jobs.task(args=AsStruct)
    async def handle(job: Job) -> None:
        raise AssertionError

    await jobs.worker().work_once()
    row = jobs.row(row_id)
    assert (row["status"], row["outcome"]) == ("failed", "permanent")
    assert "not what task 't' takes here" in row["last_error"]


async def test_a_result_is_kept_where_the_task_says_so(jobs: JobBox) -> None:
    @jobs.task("kept", keep_result=True)
    def kept(job: Job) -> dict[str, int]:
        return {"sum": 3}

    @jobs.task("dropped")
    def dropped(job: Job) -> int:
        return 3

    @jobs.task("odd", keep_result=True)
    def odd(job: Job) -> object:
        return object()

    ids = [jobs.enqueue(task=name)[0] for name in ("kept", "dropped", "odd")]
    await jobs.worker().work_once()
    assert [jobs.row(each)["result"] for each in ids] == [{"sum": 3}, None, None]
    assert jobs.are_done(3)  # what cannot be kept does not undo what is done


class Odd(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "status", "outcome", "attempts"),
    [
        (Retryable("later"), "queued", None, 1),
        (ValueError("what?"), "queued", None, 1),
        (Odd("odd"), "queued", None, 1),
        (SystemExit(3), "queued", None, 1),
        (StopIteration(), "queued", None, 1),
        (asyncio.CancelledError(), "queued", None, 1),
        (Permanent("never"), "failed", "permanent", 1),
        (Defer(timedelta(hours=1), "not yet"), "queued", None, 0),
    ],
)
async def test_what_a_handler_raises_says_how_it_went(
    jobs: JobBox, is_async: bool, error: BaseException, status: str, outcome: str | None, attempts: int
) -> None:
    if is_async:
        if isinstance(error, StopIteration):
            return  # Python makes a RuntimeError of it

        @jobs.task(backoff_base=timedelta(hours=1), backoff_cap=timedelta(hours=2))
        async def on_the_loop(job: Job) -> None:
            raise error
    else:

        @jobs.task(backoff_base=timedelta(hours=1), backoff_cap=timedelta(hours=2))
        def in_a_thread(job: Job) -> None:
            raise error

    (row_id,) = jobs.enqueue()
    await jobs.worker().work_once()
    row = jobs.row(row_id)
    assert (row["status"], row["outcome"], row["attempts"]) == (status, outcome, attempts)
    assert row["last_error"]


async def test_it_is_tried_as_often_as_its_limit_says(jobs: JobBox) -> None:
    attempts: list[int] = []

    @jobs.task(max_attempts=3)
    async def handle(job: Job, context: JobContext) -> None:
        attempts.append(context.attempt)
        raise Retryable("\x00 is no text for a database")

    (row_id,) = jobs.enqueue()
    async with working(jobs.worker()):
        await until(lambda: jobs.row(row_id)["status"] == "failed")
    row = jobs.row(row_id)
    assert attempts == [1, 2, 3]
    assert (row["outcome"], row["last_error"]) == ("exhausted", "\\x00 is no text for a database")


async def raises_lease_lost() -> None:
    raise LeaseLost("of something else")


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def awaits_what_was_cancelled() -> None:
    other = asyncio.ensure_future(asyncio.sleep(60))
    other.cancel()
    await other


@pytest.mark.parametrize("ends", [raises_lease_lost, cancels_itself, awaits_what_was_cancelled])
async def test_an_end_that_the_handler_makes_itself_uses_up_an_attempt(jobs: JobBox, ends: Any) -> None:
    """Given back as if it had been cut off, it would run again at once, and so for ever."""
    attempts = []

    @jobs.task(max_attempts=2)
    async def handler(job: Job, context: JobContext) -> None:
        attempts.append(context.attempt)
        await ends()

    (row_id,) = jobs.enqueue()
    async with working(jobs.worker()):
        await until(lambda: jobs.statuses() == {"failed": 1} or len(attempts) > 2)
    assert attempts == [1, 2]
    assert jobs.row(row_id)["outcome"] == "exhausted"


class Changing(dict[str, int]):
    """As a dictionary that another thread fills while it is read."""

    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


async def test_a_result_that_cannot_even_be_read_is_not_kept_and_its_job_is_done(jobs: JobBox) -> None:
    @jobs.task(keep_result=True)
    def handler(job: Job) -> Any:
        return Changing(a=1)

    (row_id,) = jobs.enqueue()
    assert await jobs.worker().work_once() == 1
    row = jobs.row(row_id)
    assert (row["status"], row["attempts"], row["result"]) == ("done", 1, None)


@pytest.mark.parametrize("limits", [{}, {"max_running": 2}], ids=["plain", "lanes"])
async def test_jobs_over_their_limit_hold_up_nobody_and_say_why_they_failed(
    jobs: JobBox, limits: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task(max_attempts=3, **limits)
    async def handler(job: Job) -> None:
        pass

    *spent, fresh = jobs.enqueue(8)
    jobs.conn.execute("UPDATE outbox_job SET attempts = 3, last_error = 'x' WHERE id = ANY (%s)", [spent])
    worker = jobs.worker(concurrency=2, poll_interval=timedelta(hours=1))
    assert await worker.work_once() == 1
    assert jobs.row(fresh)["status"] == "done"
    assert {jobs.row(each)["last_error"] for each in spent} == {
        "not begun: 3 attempts were made, of at most 3\nbefore: x"
    }
    assert worker.counters.failed == 7
    assert "have failed (exhausted)" in caplog.text


async def test_on_unexpected_stop_ends_the_worker_with_the_cause(jobs: JobBox) -> None:
    @jobs.task()
    async def handle(job: Job) -> None:
        raise ValueError("what?")

    jobs.enqueue()
    with pytest.raises(UnexpectedFailure, match="ValueError: what"):
        await jobs.worker(on_unexpected="stop").run(handle_signals=False)


async def test_one_step_serves_every_queue_as_far_as_there_is_room(jobs: JobBox) -> None:
    began: list[str] = []

    @jobs.task("plain")
    async def plain(job: Job) -> None:
        began.append(job.queue)

    @jobs.task("limited", max_running=5)
    async def limited(job: Job) -> None:
        began.append(job.queue)

    for queue in ("a", "b", "c"):
        jobs.enqueue(2, "plain", queue=queue)
    jobs.enqueue(2, "limited", queue="a")
    assert await jobs.worker(concurrency=5).work_once() == 5
    assert len(began) == 5
    assert await jobs.worker(concurrency=5).work_once() == 3
    assert sorted(began) == ["a", "a", "a", "a", "b", "b", "c", "c"]
    assert jobs.are_done(8)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda jobs: jobs.task("a", lease=timedelta(0)), "lease"),
        (lambda jobs: jobs.task("a", lease=5), "lease must be a datetime.timedelta, not int"),
        (lambda jobs: jobs.task("a", backoff_cap=None), "backoff_cap must be a datetime.timedelta, not NoneType"),
        (lambda jobs: jobs.task("a", hard_limit="5s"), "hard_limit must be a datetime.timedelta, not str"),
        (lambda jobs: jobs.task("a", soft_limit=timedelta(2), hard_limit=timedelta(1)), "soft_limit"),
        (lambda jobs: jobs.task("a", max_running=0), "max_running"),
        (lambda jobs: jobs.task("a", queue="a b"), "queue"),
        (lambda jobs: jobs.task("a", colour=1), "colour"),
        (lambda jobs: jobs.task("a", recovery="maybe"), "recovery"),
    ],
)
def test_a_task_that_cannot_work_is_refused_with_the_setting(make: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        make(Jobs())(lambda job: None)


@pytest.mark.parametrize("handler", [int, "text", lambda: None, lambda a, b, c: None])
def test_a_handler_of_another_shape_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigError, match="handler"):
        Jobs().task("a")(handler)


def test_a_generator_is_no_handler() -> None:
    def handle(job: Job) -> Any:
        yield

    with pytest.raises(ConfigError, match="yield"):
        Jobs().task("a")(handle)


def test_a_name_belongs_to_one_task() -> None:
    jobs = Jobs()
    jobs.declare("a")
    with pytest.raises(ConfigError, match="already"):
        jobs.declare("a")


def test_a_worker_without_a_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="no task to work on"):
        Worker("postgresql://", Jobs())


async def test_a_task_that_a_worker_does_not_know_is_given_back(jobs: JobBox) -> None:
    @jobs.task()
    async def handle(job: Job) -> None:
        pass

    others = Jobs(allow_autocommit=True)
    others.declare("new")
    row_id = others.enqueue(jobs.conn, "new").id
    await jobs.worker().work_once()
    row = jobs.row(row_id)
    assert (row["status"], row["attempts"]) == ("queued", 0)
    assert "knows no task 'new'" in row["last_error"]


# --- leases ----------------------------------------------------------------------------------------------


async def test_two_hundred_jobs_of_ten_leases_length_are_claimed_once_each(jobs: JobBox) -> None:
    @jobs.task()
    async def handle(job: Job) -> None:
        await asyncio.sleep(10 * LEASE.total_seconds())  # the work

    jobs.enqueue(200)
    async with working(jobs.worker(concurrency=100)), working(jobs.worker(concurrency=100, owner="w2")):
        await until(lambda: jobs.are_done(200))
    assert jobs.conn.execute(
        "SELECT max(attempts), max(fence), max(reclaim_count) FROM outbox_job"
    ).fetchone() == (
        1,
        1,
        0,
    )


async def test_a_blocked_event_loop_does_not_cost_a_lease(jobs: JobBox) -> None:
    @jobs.task()
    async def handle(job: Job) -> None:
        time.sleep(2.5 * LEASE.total_seconds())  # noqa: ASYNC251 - it blocks the loop on purpose

    jobs.enqueue()
    worker = jobs.worker()
    async with working(worker):
        await until(lambda: jobs.are_done(1))
    assert worker.counters.stalls == 1
    assert worker.counters.lost_leases == 0


async def test_an_async_handler_whose_lease_is_lost_is_cancelled_and_changes_nothing(jobs: JobBox) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    @jobs.task()
    async def handle(job: Job) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    (row_id,) = jobs.enqueue()
    worker = jobs.worker()
    async with working(worker):
        await started.wait()
        jobs.take_away(row_id)
        xmin = jobs.row(row_id)["xmin"]
        async with asyncio.timeout(10):
            await cancelled.wait()
        await until(lambda: worker.counters.lost_leases == 1)
    assert jobs.row(row_id)["xmin"] == xmin


async def test_a_plain_handler_learns_that_its_lease_is_lost(jobs: JobBox) -> None:
    started, told = threading.Event(), threading.Event()

    @jobs.task()
    def handle(job: Job, context: JobContext) -> None:
        started.set()
        while True:
            try:
                context.check_lease()
            except LeaseLost:
                told.set()
                raise
            context.lost.wait(0.02)

    (row_id,) = jobs.enqueue()
    worker = jobs.worker()
    async with working(worker):
        await until(started.is_set)
        jobs.take_away(row_id)
        await until(told.is_set)
        await until(lambda: worker.counters.lost_leases == 1)
    assert jobs.row(row_id)["reserved_by"] == "other"


async def test_a_lease_that_was_not_renewed_in_time_costs_an_attempt(jobs: JobBox) -> None:
    """Nobody has taken the job over yet; but what kept the heartbeats from their thread may be its own handler."""
    started = asyncio.Event()

    @jobs.task(backoff_base=timedelta(hours=1), backoff_cap=timedelta(hours=1))
    async def handle(job: Job) -> None:
        started.set()
        await asyncio.Event().wait()

    (row_id,) = jobs.enqueue()
    worker = jobs.worker()
    async with worker:
        working_once = asyncio.create_task(worker.work_once())
        await started.wait()
        (held,) = worker._held.in_stage(Stage.PUBLISHING)
        held.lost.set()
        assert await working_once == 1
    row = jobs.row(row_id)
    assert (row["status"], row["attempts"]) == ("queued", 1)


async def test_progress_comes_with_the_next_heartbeat(jobs: JobBox) -> None:
    go = asyncio.Event()

    @jobs.task()
    async def handle(job: Job, context: JobContext) -> None:
        context.progress({"done": 1, "of": 2})
        with pytest.raises(InvalidMessage, match="progress"):
            context.progress("x" * 5000)
        await go.wait()

    (row_id,) = jobs.enqueue()
    async with working(jobs.worker()):
        await until(lambda: jobs.row(row_id)["progress"] == {"done": 1, "of": 2})
        go.set()
        await until(lambda: jobs.are_done(1))


# --- limits ----------------------------------------------------------------------------------------------


async def test_the_soft_limit_is_told_to_who_asks(jobs: JobBox) -> None:
    @jobs.task(soft_limit=timedelta(seconds=0.1), hard_limit=timedelta(seconds=20), max_attempts=1)
    async def handle(job: Job, context: JobContext) -> None:
        while True:
            context.check_lease()
            await asyncio.sleep(0.01)  # work

    (row_id,) = jobs.enqueue()
    await jobs.worker().work_once()
    assert "soft time limit" in jobs.row(row_id)["last_error"]
    assert issubclass(SoftLimitReached, Retryable)


@pytest.mark.parametrize("recovery", ["auto", "manual"])
async def test_the_hard_limit_cancels_and_the_outcome_is_unknown(jobs: JobBox, recovery: str) -> None:
    @jobs.task(hard_limit=timedelta(seconds=0.1), recovery=recovery, max_attempts=1)
    async def handle(job: Job) -> None:
        await asyncio.Event().wait()

    (row_id,) = jobs.enqueue()
    worker = jobs.worker()
    await worker.work_once()
    row = jobs.row(row_id)
    assert row["outcome"] == ("unknown_outcome" if recovery == "manual" else "exhausted")
    assert "hard time limit of 0.1 s" in row["last_error"]
    assert worker.counters.timed_out == 1


async def test_a_thread_that_ignores_the_hard_limit_keeps_its_slot_and_nothing_else(jobs: JobBox) -> None:
    go = threading.Event()
    ran: list[str] = []

    @jobs.task("hangs", hard_limit=timedelta(seconds=0.1), max_attempts=1)
    def hangs(job: Job) -> None:
        go.wait(30)

    @jobs.task("works")
    def works(job: Job) -> None:
        ran.append("works")

    jobs.enqueue(task="hangs")
    worker = jobs.worker(concurrency=2)
    async with working(worker):
        await until(lambda: jobs.statuses() == {"failed": 1})
        assert worker.counters.hung_threads == 1
        jobs.enqueue(task="works")
        await until(lambda: ran == ["works"])
        go.set()


async def test_an_async_handler_that_swallows_its_cancellation_is_given_up_on(jobs: JobBox) -> None:
    stubborn = Stubborn()

    @jobs.task(hard_limit=timedelta(seconds=0.1), max_attempts=1)
    async def handle(job: Job) -> None:
        await stubborn.wait()

    jobs.enqueue()
    async with working(jobs.worker()):
        with stubborn:
            await until(lambda: jobs.statuses() == {"failed": 1})


# --- what is claimed -------------------------------------------------------------------------------------


async def test_queues_are_served_by_priority(jobs: JobBox) -> None:
    order: list[str] = []

    @jobs.task()
    async def handle(job: Job) -> None:
        order.append(job.queue)

    jobs.enqueue(5, queue="low")
    jobs.enqueue(5, queue="high")
    jobs.enqueue(1, queue="not_mine")
    async with working(jobs.worker(queues=["high", "low"], concurrency=1)):
        await until(lambda: len(order) == 10)
    assert order == ["high"] * 5 + ["low"] * 5


async def test_no_more_run_at_once_than_there_are_slots(jobs: JobBox) -> None:
    running, most = 0, 0

    @jobs.task()
    async def handle(job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)  # work
        running -= 1

    jobs.enqueue(40)
    async with working(jobs.worker(concurrency=4)):
        await until(lambda: jobs.are_done(40))
    assert most == 4


async def test_limits_hold_over_workers(jobs: JobBox) -> None:
    running: dict[str | None, int] = {}
    most: dict[str | None, int] = {}

    @jobs.task("keyed", max_running_per_key=1, max_running=3)
    async def keyed(job: Job) -> None:
        running[job.key] = running.get(job.key, 0) + 1
        most[job.key] = max(most.get(job.key, 0), running[job.key])
        most[None] = max(most.get(None, 0), sum(running.values()))
        await asyncio.sleep(0.005)  # work
        running[job.key] -= 1

    for key in "abcde":
        jobs.enqueue(8, task="keyed", key=key)
    async with working(jobs.worker()), working(jobs.worker(owner="w2")):
        await until(lambda: jobs.are_done(40))
    assert max(most[key] for key in "abcde") == 1
    assert most[None] <= 3


async def test_a_notice_starts_a_job_long_before_the_next_poll(jobs: JobBox) -> None:
    started = asyncio.Event()

    @jobs.task()
    async def handle(job: Job) -> None:
        started.set()

    async with working(jobs.worker(poll_interval=timedelta(seconds=30))):
        listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        await until(lambda: jobs.conn.execute(listening).fetchone() == (1,))
        jobs.enqueue()
        async with asyncio.timeout(5):
            await started.wait()


async def test_what_may_have_crashed_a_worker_runs_with_nothing_else_beside_it(jobs: JobBox) -> None:
    company: dict[int, int] = {}
    running = 0

    @jobs.task()
    async def handle(job: Job) -> None:
        nonlocal running
        running += 1
        company[job.id] = running
        await asyncio.sleep(0.01)  # work
        company[job.id] = max(company[job.id], running)
        running -= 1

    suspects = jobs.enqueue(3)
    jobs.conn.execute("UPDATE outbox_job SET reclaim_count = 2, attempts = 1")
    healthy = jobs.enqueue(30)
    async with working(jobs.worker()):
        await until(lambda: jobs.are_done(33))
    assert [company[each] for each in suspects] == [1, 1, 1]
    assert max(company[each] for each in healthy) > 1


# --- what is unknown -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("verdict", "status", "outcome", "ran"),
    [
        (Verdict.DONE, "done", "completed", 0),
        (Verdict.NOT_DONE, "done", "completed", 1),
        (Verdict.UNKNOWN, "failed", "unknown_outcome", 0),
        (Retryable("cannot ask"), "queued", None, 0),
        ("odd", "queued", None, 0),
    ],
)
async def test_a_verifier_is_asked_before_any_repeat(
    jobs: JobBox, is_async: bool, verdict: Any, status: str, outcome: str | None, ran: int
) -> None:
    runs: list[int] = []
    slow: Any = {"backoff_base": timedelta(hours=1), "backoff_cap": timedelta(hours=2)}

    @jobs.task(recovery="verify", **slow)
    async def handle(job: Job) -> None:
        runs.append(job.id)

    def answer() -> Any:
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict

    if is_async:

        @jobs.jobs.verify("t")
        async def verify(job: Job) -> Any:
            return answer()
    else:

        @jobs.jobs.verify("t")
        def verify_in_a_thread(job: Job, context: JobContext) -> Any:
            assert context.may_be_repeat
            return answer()

    (row_id,) = jobs.enqueue()
    jobs.held_before(row_id)
    await jobs.worker().work_once()
    row = jobs.row(row_id)
    assert (row["status"], row["outcome"], len(runs)) == (status, outcome, ran)


async def test_the_first_attempt_is_not_verified_and_without_a_verifier_a_repeat_is_for_a_person(
    jobs: JobBox,
) -> None:
    runs: list[int] = []

    @jobs.task(recovery="verify")
    async def handle(job: Job) -> None:
        runs.append(job.id)

    first, repeat = jobs.enqueue(2)
    jobs.held_before(repeat)
    await jobs.worker().work_once()
    assert runs == [first]
    row = jobs.row(repeat)
    assert row["outcome"] == "unknown_outcome"
    assert "@jobs.verify('t')" in row["last_error"]


async def test_an_operators_retry_is_a_decision_and_not_asked_about_again(jobs: JobBox) -> None:
    runs: list[int] = []

    @jobs.task(recovery="verify")
    async def handle(job: Job) -> None:
        runs.append(job.id)

    @jobs.jobs.verify("t")
    def verify(job: Job) -> Verdict:
        return Verdict.UNKNOWN

    (row_id,) = jobs.enqueue()
    jobs.held_before(row_id)
    await jobs.worker().work_once()
    assert jobs.row(row_id)["outcome"] == "unknown_outcome"
    jobs.jobs.retry(jobs.conn, [row_id], "ann")
    await jobs.worker().work_once()
    assert runs == [row_id]
    assert jobs.are_done(1)


# --- stopping --------------------------------------------------------------------------------------------


async def test_a_stop_waits_for_what_runs(jobs: JobBox) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @jobs.task()
    async def handle(job: Job, context: JobContext) -> None:
        started.set()
        await go.wait()
        assert context.is_stopping()

    jobs.enqueue(2)
    worker = jobs.worker(concurrency=1)
    async with worker:
        task = asyncio.create_task(worker.run(handle_signals=False))
        await started.wait()
        worker.stop()
        go.set()
        assert await task is True
    assert jobs.statuses() == {"done": 1, "queued": 1}


@pytest.mark.parametrize(("recovery", "status"), [("auto", "queued"), ("verify", "queued"), ("manual", "failed")])
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_outlasts_the_grace_time_goes_back_with_its_attempt_or_to_a_person(
    jobs: JobBox, recovery: str, status: str, is_async: bool
) -> None:
    started, go = threading.Event(), threading.Event()
    if is_async:

        @jobs.task(recovery=recovery)
        async def on_the_loop(job: Job) -> None:
            started.set()
            await asyncio.Event().wait()
    else:

        @jobs.task(recovery=recovery)
        def in_a_thread(job: Job, context: JobContext) -> None:
            started.set()
            context.lost.wait(30)
            go.set()

    (row_id,) = jobs.enqueue()
    worker = jobs.worker(grace=timedelta(seconds=0.2))
    async with worker:
        task = asyncio.create_task(worker.run(handle_signals=False))
        await until(started.is_set)
        worker.stop()
        assert await task is False
    row = jobs.row(row_id)
    # The first attempt of one to be verified is kept, so that the next one asks.
    assert (row["status"], row["attempts"]) == (status, 0 if recovery == "auto" else 1)
    if not is_async:
        await until(go.is_set)  # it was told


async def test_it_lives_through_a_cut_connection(jobs: JobBox) -> None:
    ran: list[int] = []

    @jobs.task()
    async def handle(job: Job) -> None:
        ran.append(job.id)

    worker = jobs.worker()
    async with working(worker):
        jobs.enqueue()
        await until(lambda: jobs.are_done(1))
        jobs.conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'fencepost %'"
        )
        jobs.enqueue()
        await until(lambda: jobs.are_done(2))
    assert len(ran) == 2
    assert worker.counters.reconnects > 0


async def test_old_jobs_are_deleted_beside_the_work(jobs: JobBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "REST_SECONDS", 0.05)

    @jobs.task()
    async def handle(job: Job) -> None:
        pass

    jobs.enqueue(3)
    await jobs.worker().work_once()
    async with working(jobs.worker(retention=timedelta(0))):
        await until(lambda: jobs.statuses() == {})


# --- results that wait -----------------------------------------------------------------------------------


async def test_no_job_is_claimed_while_the_results_of_earlier_ones_cannot_be_written(
    jobs: JobBox, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs that end at once: without a bound, a worker that can write nothing would take everything there is."""
    jobs.task(lease=timedelta(seconds=6))(lambda _job: None)
    jobs.enqueue(200)
    jobs.conn.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN new; END'"
    )
    jobs.conn.execute(
        "CREATE TRIGGER wait BEFORE UPDATE ON outbox_job FOR EACH ROW WHEN (new.status = 'done')"
        " EXECUTE FUNCTION wait()"
    )
    jobs.conn.execute("SELECT pg_advisory_lock(7)")
    worker = jobs.worker(concurrency=2)
    async with working(worker):
        await until(lambda: worker._finalizer.backlog >= MOST_UNWRITTEN * 2, "results that wait")
        # Time enough to claim all of them.
        await until(lambda: caplog.text.count("finalize: ") >= 2, "attempts to write that are given up")
        # In writing, waiting, and claimed before the last ones ended; a claim takes two.
        assert worker.counters.claimed <= 2 + MOST_UNWRITTEN * 2 + 2 + 2
        jobs.conn.execute("SELECT pg_advisory_unlock(7)")
        await until(lambda: jobs.are_done(200))
    assert worker.counters.claimed == 200
