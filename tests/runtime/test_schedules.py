"""Schedules on a real database: each tick is enqueued once, by however many workers, wherever they die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fencepost import AsyncJobs, Job, Jobs, Outbox, Worker
from fencepost.core.operation import Operation, run
from fencepost.core.ticks import due
from fencepost.drivers import driver_for
from fencepost.store import schedules as store
from fencepost.store.schedules import SEEN_EVERY, UNSEEN_AFTER, Ticked
from tests.runtime.box import until, wait_until
from tests.runtime.proxy import Proxy
from tests.runtime.scheduling import EVERY_SECOND, NAME, TASK, scheduled, worker

Connection = psycopg.Connection[Any]

ROOT = Path(__file__).parents[2]
YEARLY = "0 0 1 1 *"
MINUTELY = "* * * * *"


@pytest.fixture
def db(database18: str) -> Iterator[Connection]:
    """A connection in autocommit mode to a migrated database."""
    with psycopg.connect(database18, autocommit=True) as connection:
        Outbox(allow_autocommit=True).migrate(connection)
        yield connection


@contextlib.asynccontextmanager
async def running(made: Worker) -> AsyncIterator[Worker]:
    async with made:
        task = asyncio.create_task(made.run(handle_signals=False))
        try:
            yield made
        finally:
            made.stop()
            await task


def ticks(db: Connection) -> list[datetime]:
    """Return the tick of every job, in the order in which they were enqueued."""
    rows = db.execute("SELECT headers->>'scheduled-for' FROM outbox_job ORDER BY id").fetchall()
    return [datetime.fromisoformat(text) for (text,) in rows]


def whole_seconds(begin: datetime, end: datetime) -> list[datetime]:
    """Return every whole second in (begin, end]."""
    first = begin.replace(microsecond=0)
    return [first + timedelta(seconds=n) for n in range(1, int((end - first).total_seconds()) + 1)]


def stands_at(db: Connection, name: str = NAME) -> datetime:
    row = db.execute("SELECT last_tick FROM outbox_cron WHERE name = %s", [name]).fetchone()
    assert row is not None
    found: datetime = row[0]
    return found.astimezone(UTC)


def row(db: Connection, last_tick: str, seen: str = "now()", **definition: str) -> datetime:
    """Put a schedule into the table, as it was left; return its last tick."""
    stored = {"name": NAME, "task": TASK, "expression": EVERY_SECOND, "timezone": "UTC"} | definition
    db.execute(
        f"INSERT INTO outbox_cron VALUES (%(name)s, %(task)s, %(expression)s, %(timezone)s, {last_tick}, {seen})",
        stored,
    )
    return stands_at(db, stored["name"])


def step(db: Connection, jobs: Jobs, *, adopts: bool = False) -> Ticked | None:
    """Do one step of the schedule, as a worker does."""
    with db.transaction():
        return run(_step(jobs, adopts), driver_for(db).execute)


def _step(jobs: Jobs, adopts: bool = False) -> Operation[Ticked | None]:
    schedule = jobs.registry.schedules[NAME]
    return store.step(
        jobs.catalog,
        NAME,
        schedule.definition,
        adopts=adopts,
        due=lambda last_tick, now: due(schedule.cron.after, last_tick, now, schedule.catch_up),
        draft=lambda tick: jobs.job_at(schedule, tick),
        notify=True,
    )


# --- exactly once ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def process(url: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.scheduling", url, json.dumps(options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.mark.timeout(240)
def test_ticks_of_eight_workers_that_are_killed_come_once_each(db: Connection, database18: str) -> None:
    """All eight come by at each second; every second some of them is killed, and another one takes its place."""
    dice = random.Random(7)  # noqa: S311 - which worker dies
    begin = row(db, "now()")
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(process(database18)) for _ in range(8)]
        while len(ticks(db)) < 25:
            seen = len(ticks(db))
            wait_until(lambda seen=seen: len(ticks(db)) > seen, "the next tick")  # type: ignore[misc] # bound at once
            victim = dice.randrange(8)
            workers[victim].send_signal(signal.SIGKILL)
            workers[victim].wait()
            workers[victim] = stack.enter_context(process(database18))
        found = ticks(db)
    assert found == whole_seconds(begin, found[-1])


def test_a_step_that_ends_anywhere_enqueues_nothing_or_everything(db: Connection) -> None:
    jobs = scheduled(catch_up="all")
    last = row(db, "date_trunc('second', now()) - interval '5 seconds'")
    cut = 0
    while True:
        with contextlib.suppress(KeyboardInterrupt), db.transaction():
            _run_so_far(db, _step(jobs), cut)
            break
        assert ticks(db) == []
        assert stands_at(db) == last
        cut += 1
    assert cut >= 3
    assert ticks(db) == whole_seconds(last, stands_at(db))


def _run_so_far(db: Connection, operation: Operation[Any], statements: int) -> None:
    """Run an operation, and die before its statement of this number."""
    sent = iter(range(statements))

    def execute(statement: Any) -> Any:
        if next(sent, None) is None:
            raise KeyboardInterrupt
        return driver_for(db).execute(statement)

    run(operation, execute)


def test_who_finds_it_held_goes_on_without_waiting(db: Connection, database18: str) -> None:
    jobs = scheduled()
    row(db, "now() - interval '5 seconds'")
    with psycopg.connect(database18) as other:
        other.execute("SELECT 1 FROM outbox_cron FOR UPDATE")
        db.execute("SET lock_timeout = 1")
        assert step(db, jobs) is None
    found = step(db, jobs)
    assert found is not None
    assert found.enqueued >= 5


async def test_a_commit_whose_answer_is_lost_is_not_repeated(db: Connection, database18: str) -> None:
    """The connection is cut right after the client sent COMMIT: it may stand, and nobody heard."""
    last = row(db, "date_trunc('second', now())")
    async with Proxy(db.info.host, db.info.port) as proxy:
        async with running(worker(proxy.url(database18), scheduled(), notify=False)):
            for cuts in range(1, 4):
                proxy.cut_after = b"COMMIT"
                await until(lambda cuts=cuts: proxy.cuts == cuts, "a cut")  # type: ignore[misc] # bound at once
                seen = len(ticks(db))
                await until(lambda seen=seen: len(ticks(db)) > seen, "a tick behind the cut")  # type: ignore[misc] # bound at once
        found = ticks(db)
    assert found == whole_seconds(last, found[-1])


# --- what was missed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("catch_up", "expected"), [("last", [1]), ("all", [1, 2, 3, 4, 5]), ("none", [])])
def test_what_was_missed(db: Connection, catch_up: str, expected: list[int]) -> None:
    """Five hours passed without a worker, on the hour each."""
    jobs = scheduled("0 * * * *", catch_up=catch_up)
    last = row(
        db, "date_trunc('hour', now() - interval '61 seconds') - interval '5 hours'", expression="0 * * * *"
    )
    found = step(db, jobs)
    assert found is not None
    five = [last + timedelta(hours=n) for n in range(1, 6)]
    assert ticks(db) == [five[-n] for n in reversed(expected)]
    assert stands_at(db) == five[-1]
    assert step(db, jobs) is not None
    assert len(ticks(db)) == len(expected)


async def test_all_of_many_missed_ones_come_in_bounded_steps(db: Connection, database18: str) -> None:
    last = row(db, "date_trunc('second', now()) - interval '350 seconds'")
    async with running(worker(database18, scheduled(catch_up="all"))) as made:
        await until(lambda: made.counters.scheduled >= 350, "all of them")
    found = ticks(db)
    assert found == whole_seconds(last, found[-1])
    assert made.counters.scheduled == len(found)
    steps = db.execute("SELECT count(*) FROM outbox_job GROUP BY created_at").fetchall()
    assert max(count for (count,) in steps) <= 100


def test_a_clock_that_was_stepped_back_brings_nothing_twice(db: Connection) -> None:
    ahead = row(db, "now() + interval '1 hour'")
    assert step(db, scheduled()) is not None
    assert ticks(db) == []
    assert stands_at(db) == ahead


async def test_a_schedule_that_stands_far_ahead_is_told(
    db: Connection, database18: str, caplog: pytest.LogCaptureFixture
) -> None:
    row(db, "now() + interval '1 hour'")
    async with running(worker(database18, scheduled())):
        await until(lambda: "was that clock stepped back" in caplog.text)
    assert ticks(db) == []


# --- what it becomes ---------------------------------------------------------------------------------------


async def test_a_handler_sees_the_tick_and_its_arguments(db: Connection, database18: str) -> None:
    jobs, seen = AsyncJobs(), list[Job]()

    @jobs.task(TASK)
    async def report(job: Job) -> None:
        seen.append(job)

    jobs.schedule(NAME, EVERY_SECOND, TASK, {"kind": "daily"}, headers={"a": "b"})
    made = Worker(database18, jobs, poll_interval=timedelta(seconds=0.1))
    async with running(made):
        await until(lambda: len(seen) >= 2)
    first = stands_at(db) - timedelta(seconds=made.counters.scheduled - 1)
    assert seen[0].scheduled_for == first
    assert seen[0].args == {"kind": "daily"}
    assert seen[0].headers == {"a": "b", "scheduled-for": first.isoformat()}
    assert seen[0].job_id != seen[1].job_id


def test_a_unique_key_holds_ticks_back_while_a_job_is_open(db: Connection) -> None:
    last = row(db, "date_trunc('second', now()) - interval '5 seconds'")
    found = step(db, scheduled(unique_key="one", args={"n": 1}))
    assert found is not None
    assert (found.enqueued, found.held_back >= 4) == (1, True)
    assert ticks(db) == [last + timedelta(seconds=1)]
    # Other arguments, while the job with the earlier ones is open: no error, and no job.
    db.execute("UPDATE outbox_cron SET last_tick = last_tick - interval '1 second'")
    found = step(db, scheduled(unique_key="one", args={"n": 2}))
    assert found is not None
    assert found.enqueued == 0
    assert found.held_back > 0


# --- how it is defined -------------------------------------------------------------------------------------


async def test_the_first_time_begins_now(db: Connection, database18: str) -> None:
    async with running(worker(database18, scheduled(YEARLY))):
        await until(lambda: Jobs().schedules(db))
    (found,) = Jobs().schedules(db)
    assert (found.name, found.definition.expression) == (NAME, YEARLY)
    assert timedelta(0) <= found.now - found.last_tick < timedelta(seconds=30)
    assert ticks(db) == []


@pytest.mark.parametrize("changed", [{"expression": MINUTELY}, {"expression": YEARLY, "timezone": "Asia/Tokyo"}])
def test_other_ticks_hold_from_now_on(db: Connection, changed: dict[str, str]) -> None:
    """Ticks of the new expression before that are none of its own, and what the old one still owed is dropped."""
    row(db, "now() - interval '3 days'")
    jobs = scheduled(**changed)
    assert step(db, jobs) is None  # not ours to change: somebody with the other one is alive
    found = step(db, jobs, adopts=True)
    assert found is not None
    assert ticks(db) == []
    (stored,) = Jobs().schedules(db)
    assert stored.definition == jobs.registry.schedules[NAME].definition
    assert stored.now - stored.last_tick < timedelta(seconds=30)


def test_another_task_loses_no_tick(db: Connection) -> None:
    last = row(db, "date_trunc('second', now()) - interval '5 seconds'")
    assert step(db, scheduled(task="other"), adopts=True) is not None
    found = ticks(db)
    assert found == whole_seconds(last, found[-1])
    assert db.execute("SELECT DISTINCT task FROM outbox_job").fetchall() == [("other",)]


async def test_the_worker_that_started_later_decides_and_nobody_fights(
    db: Connection, database18: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(worker(database18, scheduled(args="old"))) as old:
        await until(lambda: old.counters.scheduled)
        async with running(worker(database18, scheduled("*/2 * * * * *", "new"))) as new:
            await until(lambda: new.counters.scheduled)
            changed_at = old.counters.scheduled
            await until(lambda: new.counters.scheduled >= 3)
            assert old.counters.scheduled == changed_at
    assert caplog.text.count("a worker that started later declares it otherwise") == 1
    found = ticks(db)
    assert len(set(found)) == len(found)
    assert db.execute("SELECT count(*) FROM outbox_job WHERE args::text = '\"new\"'").fetchone() == (
        new.counters.scheduled,
    )


def test_what_nobody_is_left_for_is_taken_over_from_where_they_were_last_seen(db: Connection) -> None:
    """After a deployment in which an old worker happened to start last, and is gone now."""
    gone = UNSEEN_AFTER + timedelta(seconds=5)
    row(
        db,
        "now() - interval '2 days'",
        f"date_trunc('second', now()) - interval '{gone.seconds} s'",
        expression=YEARLY,
    )
    jobs = scheduled(catch_up="all")
    (stored,) = Jobs().schedules(db)
    assert step(db, jobs) is not None
    found = ticks(db)
    assert found == whole_seconds(stored.seen_at, found[-1])
    assert len(found) >= gone.seconds


async def test_a_worker_gives_signs_of_life(db: Connection, database18: str) -> None:
    row(db, "now()", "now() - interval '2 days'", expression=YEARLY)
    async with running(worker(database18, scheduled(YEARLY))):
        await until(lambda: not Jobs().schedules(db)[0].is_unseen, "a sign of life")
        db.execute("UPDATE outbox_cron SET seen_at = now() + interval '1 day'")  # the clock was stepped back
        await until(lambda: Jobs().schedules(db)[0].seen_at <= Jobs().schedules(db)[0].now, "another one")
    written = db.execute("SELECT xmin::text FROM outbox_cron").fetchone()
    async with running(worker(database18, scheduled(YEARLY))) as made:
        await until(lambda: made.counters.claimed == 0)
    assert SEEN_EVERY < UNSEEN_AFTER / 2
    assert db.execute("SELECT xmin::text FROM outbox_cron").fetchone() == written


async def test_one_schedule_that_cannot_be_enqueued_does_not_stop_the_others(
    db: Connection, database18: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = scheduled(name="bad", args="bad")
    jobs.schedule(NAME, EVERY_SECOND, TASK)
    db.execute("ALTER TABLE outbox_job ADD CHECK (args::text <> '\"bad\"')")
    async with running(worker(database18, jobs)) as made:
        await until(lambda: made.counters.scheduled >= 2)
    assert "schedule bad failed" in caplog.text
    found = ticks(db)
    assert found == whole_seconds(found[0] - timedelta(seconds=1), found[-1])
