"""``work`` as a real process: what it runs, how it stops, what a kill leaves behind, and its exit codes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fencepost import Jobs
from fencepost.cli.app import run
from tests.cli.program import Program, Result, finish, read_until
from tests.store.job_rows import SeenJob, all_jobs

MODULE = """
import asyncio, os, time
from datetime import timedelta
import fencepost

jobs = fencepost.Jobs()
other = fencepost.AsyncJobs(table="events")
empty = fencepost.Jobs()
empty.declare("elsewhere")
nothing = {}
busy = fencepost.Jobs()
short = timedelta(seconds=1)

def say(*text):
    print(*text, flush=True)

@other.task("quick")
@jobs.task("quick")
def quick(job):
    say("ran", job.args["n"], job.queue)

@jobs.task("until_told", lease=short)
async def until_told(job, context):
    say("running", context.worker)
    while not os.path.exists("told"):
        await asyncio.sleep(0.01)

@jobs.task("never", lease=short)
async def never(job, context):
    say("running", context.worker)
    try:
        await asyncio.sleep(3_600)
    except asyncio.CancelledError:
        say("cancelled")
        raise

@jobs.task("thread", lease=short)
def thread(job, context):
    say("running", context.worker)
    try:
        while True:
            context.check_lease()
            time.sleep(0.01)
    except fencepost.LeaseLost:
        say("cancelled")
        raise

@jobs.task("stubborn", lease=short)
def stubborn(job):
    say("running")
    time.sleep(3_600)

@jobs.task("dies_once", lease=short)
def dies_once(job, context):
    say("running", context.worker)
    if context.token == 1:
        time.sleep(3_600)

@busy.task("computes", lease=3 * short)
def computes(job):
    end = time.monotonic() + 7
    while time.monotonic() < end:
        sum(range(1000))

@jobs.task("odd")
def odd(job):
    raise KeyError("odd")
"""

JOBS = Jobs()
for name in ("quick", "until_told", "never", "thread", "stubborn", "dies_once", "computes", "odd"):
    JOBS.declare(name)


@pytest.fixture(autouse=True)
def module(folder: Path) -> None:
    folder.joinpath("shop.py").write_text(MODULE)


@pytest.fixture
def db(store: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(store, autocommit=True) as connection:
        yield connection


def add(db: psycopg.Connection[Any], task: str, count: int = 1, **options: Any) -> list[int]:
    with db.transaction():
        return [JOBS.enqueue(db, task, {"n": n}, **options).id for n in range(count)]


def start(program: Program, *arguments: str, until: str = "running") -> subprocess.Popen[str]:
    """Start a worker that is in the middle of a job."""
    process = program.start("work", "shop:jobs", *arguments)
    read_until(process.stdout, until)
    return process


def timed(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[Result, float]:
    """Send a signal; return how the process ended, and after how many seconds."""
    began = time.monotonic()
    process.send_signal(number)
    process.wait(timeout=30)
    seconds = time.monotonic() - began
    return finish(process), seconds


def counters(result: Result) -> dict[str, str]:
    line = result.err.splitlines()[-1]
    assert "message=stopped" in line, result.err
    return dict(pair.split("=", 1) for pair in line.split())


def only(db: psycopg.Connection[Any]) -> SeenJob:
    (found,) = all_jobs(db)
    return found


def until_status(db: psycopg.Connection[Any], status: str) -> SeenJob:
    deadline = time.monotonic() + 20
    while (found := only(db)).status != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


# --- what it runs ---------------------------------------------------------------------------------------------


def test_once(configured: Program, db: psycopg.Connection[Any]) -> None:
    add(db, "quick", 3)
    result = configured.run("work", "shop:jobs", "--once", "--owner", "w1")
    assert (result.code, sorted(result.out.splitlines())) == (0, [f"ran {n} default" for n in range(3)])
    found = counters(result)
    assert (found["drained"], found["claimed"], found["completed"]) == ("true", "3", "3")
    assert "message=working" in result.err
    assert "owner=w1" in result.err
    assert {each.status for each in all_jobs(db)} == {"done"}


def test_queues_are_served_in_the_order_of_their_flags_and_no_other(
    configured: Program, db: psycopg.Connection[Any]
) -> None:
    for queue in ("low", "other", "urgent"):
        add(db, "quick", 2, queue=queue)
    process = configured.start(
        "work", "shop:jobs", "--queue", "urgent", "--queue", "low", "--concurrency", "1", "--poll-interval", "50ms"
    )
    lines = [process.stdout.readline().split() for _ in range(4)]  # type: ignore[union-attr]  # it is a pipe
    assert [line[-1] for line in lines] == ["urgent", "urgent", "low", "low"]
    assert finish(process, signal.SIGTERM).code == 0
    assert sum(each.status == "queued" for each in all_jobs(db)) == 2


def test_eight_handlers_that_compute_leave_the_heartbeats_their_turns(
    configured: Program, db: psycopg.Connection[Any]
) -> None:
    """Each takes more than two leases, in a thread. With Python's own turns, one run in three lost them all."""
    add(db, "computes", 8)
    result = configured.run("work", "shop:busy", "--once", "--concurrency", "8")
    found = counters(result)
    assert (found["completed"], found["lost_leases"], found["reclaimed"]) == ("8", "0", "0")
    assert {(each.status, each.fence) for each in all_jobs(db)} == {("done", 1)}


def test_settings_from_the_file(configured: Program, db: psycopg.Connection[Any], folder: Path) -> None:
    folder.joinpath("fencepost.toml").write_text(
        'owner = "filed"\nlog_json = true\n[worker]\nqueues = ["mail"]\nconcurrency = 2\nretention = "0s"\n'
    )
    add(db, "quick", 3, queue="mail")
    add(db, "quick")
    result = configured.run("work", "shop:jobs", "--once")
    assert result.out.splitlines() == ["ran 0 mail", "ran 1 mail"]
    assert '"worker_queues": "mail"' in result.err
    assert {each.reserved_by for each in all_jobs(db)} == {"filed", None}


def test_it_goes_on_until_it_is_stopped(configured: Program, db: psycopg.Connection[Any]) -> None:
    process = configured.start("work", "shop:jobs", "--poll-interval", "100ms")
    read_until(process.stderr, "message=working")
    for n in range(2):
        add(db, "quick", n + 1)
        read_until(process.stdout, f"ran {n}")
    result = finish(process, signal.SIGTERM)
    assert (result.code, counters(result)["completed"]) == (0, "3")


def test_modules_of_the_folder_are_found_without_pythons_help(
    configured: Program, db: psycopg.Connection[Any]
) -> None:
    configured.environ = {**configured.environ, "PYTHONSAFEPATH": "1"}
    add(db, "quick")
    assert configured.run("work", "shop:jobs", "--once").out == "ran 0 default\n"


def test_async_jobs_and_tables_of_another_name(configured: Program, store: str) -> None:
    assert configured.run("work", "shop:other", "--once").code == 4  # its tables are not there
    assert configured.run("migrate", "--table", "events").code == 0
    jobs = Jobs(table="events")
    jobs.declare("quick")
    with psycopg.connect(store) as connection:
        jobs.enqueue(connection, "quick", {"n": 5})
    assert configured.run("work", "shop:other", "--once").out == "ran 5 default\n"
    wrong = configured.run("work", "shop:other", "--once", "--table", "outbox")
    assert wrong.code == 2
    assert "have the table 'events': say the same in both" in wrong.err


# --- how it stops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_one(configured: Program, number: signal.Signals) -> None:
    process = configured.start("work", "shop:jobs")
    read_until(process.stderr, "message=working")
    result, seconds = timed(process, number)
    assert result.code == 0
    assert seconds < 2
    assert counters(result)["drained"] == "true"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_is_finished_first(
    configured: Program, db: psycopg.Connection[Any], folder: Path, number: signal.Signals
) -> None:
    add(db, "until_told")
    process = start(configured)
    process.send_signal(number)
    (_, later) = add(db, "quick", 2)
    folder.joinpath("told").touch()
    result = finish(process)
    assert (result.code, counters(result)["drained"]) == (0, "true")
    assert [each.status for each in all_jobs(db)] == ["done", "queued", "queued"]
    assert all_jobs(db)[-1].id == later


@pytest.mark.parametrize("task", ["never", "thread", "stubborn"])
def test_the_grace_time_ends_what_goes_on_and_its_attempt_is_given_back(
    configured: Program, db: psycopg.Connection[Any], task: str
) -> None:
    add(db, task)
    result, seconds = timed(start(configured, "--grace", "500ms"))
    assert result.code == 1
    assert seconds < 0.5 + 1
    assert "Traceback" not in result.err
    seen = only(db)
    assert (seen.status, seen.attempts, seen.fence) == ("queued", 0, 1)


def test_a_second_signal_ends_the_grace_time(configured: Program, db: psycopg.Connection[Any]) -> None:
    add(db, "never")
    process = start(configured, "--grace", "1h")
    process.send_signal(signal.SIGTERM)
    assert configured.run("jobs", "list", "--status", "processing").out.count("never") == 1
    result, seconds = timed(process)
    assert result.code == 1
    assert seconds < 1
    assert only(db).status == "queued"


def test_killed_its_job_is_completed_by_another(configured: Program, db: psycopg.Connection[Any]) -> None:
    add(db, "dies_once")
    first = start(configured, "--owner", "first")
    first.kill()
    first.wait(timeout=10)
    assert only(db).status == "processing"
    second = start(configured, "--owner", "second", "--poll-interval", "100ms", until="running second")
    seen = until_status(db, "done")
    assert (seen.attempts, seen.fence, seen.reclaim_count, seen.reserved_by) == (2, 2, 1, "second")
    assert "lease of worker first expired" in (seen.last_error or "")
    assert finish(second, signal.SIGTERM).code == 0


@pytest.mark.parametrize("task", ["never", "thread"])
@pytest.mark.parametrize("verb", [("cancel",), ("fail", "--reason", "enough")], ids=lambda words: words[0])
def test_a_running_job_that_is_ended_stops_within_a_heartbeat(
    configured: Program, db: psycopg.Connection[Any], task: str, verb: tuple[str, ...]
) -> None:
    (row_id,) = add(db, task)
    process = start(configured)
    assert configured.run("jobs", *verb, str(row_id)).code == 0
    began = time.monotonic()
    read_until(process.stdout, "cancelled")
    assert time.monotonic() - began < 5  # its lease of 1 s, of which a heartbeat is a third, on a busy machine
    read_until(process.stderr, "lost lease")
    assert only(db).status == "failed"
    # The worker is free, and the job stays as the operator left it.
    add(db, "quick")
    read_until(process.stdout, "ran 0")
    result = finish(process, signal.SIGTERM)
    assert (result.code, counters(result)["lost_leases"]) == (0, "1")
    assert all_jobs(db)[0].outcome == {"cancel": "cancelled", "fail": "failed"}[verb[0]]


def test_an_unclassified_exception_may_stop_it(configured: Program, db: psycopg.Connection[Any]) -> None:
    add(db, "odd")
    for arguments in (("--on-unexpected", "stop"), ("--once", "--worker-on-unexpected", "stop")):
        result = configured.run("work", "shop:jobs", *arguments)
        assert result.code == 5
        assert "stopped, since a handler raised KeyError" in result.err
        db.execute("UPDATE outbox_job SET available_at = now()")


# --- what is wrong from the start -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("shop",), 2, "expected MODULE:JOBS, such as shop.jobs:jobs, not 'shop'"),
        (("nowhere_at_all:jobs",), 2, "jobs nowhere_at_all:jobs cannot be loaded: ModuleNotFoundError"),
        (("shop:missing",), 2, "jobs shop:missing cannot be loaded: AttributeError"),
        (("broken:jobs",), 2, "jobs broken:jobs cannot be loaded: ZeroDivisionError: division by zero"),
        (("shop:nothing",), 2, "jobs shop:nothing: it is of the type dict, not a fencepost.Jobs or AsyncJobs"),
        (("shop:empty",), 2, "jobs shop:empty: it has no task with a handler"),
        (
            ("shop:jobs", "--table", "events"),
            2,
            "table (flag --table): 'events', but the tables of jobs",
        ),
        (("shop:jobs", "--schema", "x"), 2, "schema (flag --schema): 'x', but the tables of jobs shop:jobs"),
        (("shop:jobs", "--concurrency", "0"), 2, "worker_concurrency (flag --worker-concurrency): 0 must lie"),
        (("shop:jobs", "--queue", ""), 2, "worker_queues (flag --worker-queue): expected names"),
        (("shop:jobs", "--store", "postgresql://nobody@127.0.0.1:1/x"), 3, "Connection refused"),
        ((), 2, "Missing argument 'MODULE:JOBS'"),
    ],
)
def test_a_mistake_is_one_line(
    configured: Program, folder: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    folder.joinpath("broken.py").write_text("1 / 0\n")
    result = configured.run("work", *arguments)
    assert result.code == code
    assert says in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


def test_without_tables(configured: Program, database18: str) -> None:
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute("DROP TABLE outbox_job")
    result = configured.run("work", "shop:jobs", "--once")
    assert result.code == 4
    assert "outbox_job" in result.err


def test_the_help_names_the_flags_without_the_prefix_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["work", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--queue, --worker-queue NAME" in shown
    assert "--grace, --worker-grace DURATION" in shown
    assert "[FENCEPOST_WORKER_GRACE]" in shown
