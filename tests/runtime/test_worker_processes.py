"""Workers in processes of their own: killed, frozen, restarted, and what the others make of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from fencepost import Outbox
from tests.runtime.box import wait_until
from tests.runtime.job_worker import JOBS, RAN
from tests.runtime.processes import job_worker


class Office:
    """Jobs, and the record of what was done about them."""

    def __init__(self, url: str, conn: psycopg.Connection[Any]) -> None:
        self.url, self.conn = url, conn

    def enqueue(self, task: str, count: int = 1, **options: Any) -> list[int]:
        return [JOBS.enqueue(self.conn, task, {}, **options).id for _ in range(count)]

    def ran(self, row_id: int) -> list[tuple[Any, ...]]:
        """The runs of a job: attempt, token, owner and whether it ended."""
        found = self.conn.execute(
            "SELECT attempt, token, owner, ended_at IS NOT NULL FROM ran WHERE id = %s ORDER BY at", [row_id]
        )
        return found.fetchall()

    def job(self, row_id: int) -> tuple[Any, ...]:
        found = self.conn.execute(
            "SELECT status, outcome, attempts, reclaim_count, reserved_by FROM outbox_job WHERE id = %s", [row_id]
        ).fetchone()
        assert found is not None
        return tuple(found)

    def statuses(self) -> dict[str, int]:
        return dict(self.conn.execute("SELECT status, count(*) FROM outbox_job GROUP BY status").fetchall())

    def value(self, query: str) -> Any:
        found = self.conn.execute(query.encode()).fetchone()
        assert found is not None
        return found[0]


@pytest.fixture
def office(database18: str) -> Iterator[Office]:
    with psycopg.connect(database18, autocommit=True) as conn:
        with conn.transaction():
            Outbox().migrate(conn)
        conn.execute(RAN)
        yield Office(database18, conn)


def test_a_killed_workers_job_is_run_by_another_one(office: Office) -> None:
    (row_id,) = office.enqueue("hang")
    with job_worker(office.url, "victim") as victim:
        victim.ready()
        wait_until(lambda: office.ran(row_id))
        victim.send(signal.SIGKILL)
        killed_at = time.monotonic()
        with job_worker(office.url, "other") as other:
            other.ready()
            wait_until(lambda: office.statuses() == {"done": 1})
            assert time.monotonic() - killed_at < 10
    assert office.ran(row_id) == [(1, 1, "victim", False), (2, 2, "other", True)]
    assert office.job(row_id) == ("done", "completed", 2, 1, "other")


def test_the_same_name_restarted_at_once_is_another_worker(office: Office) -> None:
    (row_id,) = office.enqueue("hang")
    with job_worker(office.url, "victim") as victim:
        victim.ready()
        wait_until(lambda: office.ran(row_id))
        victim.send(signal.SIGKILL)
        with job_worker(office.url, "victim") as again:
            again.ready()
            wait_until(lambda: len(office.ran(row_id)) == 2)
    # Not before the first one's lease was over, whatever it is called.
    assert office.value("SELECT max(at) - min(at) >= interval '0.9 s' FROM ran")


def test_a_frozen_worker_that_wakes_up_late_changes_nothing(office: Office) -> None:
    (row_id,) = office.enqueue("hang")
    with job_worker(office.url, "victim") as victim:
        victim.ready()
        wait_until(lambda: office.ran(row_id))
        victim.send(signal.SIGSTOP)
        with job_worker(office.url, "other") as other:
            other.ready()
            wait_until(lambda: office.statuses() == {"done": 1})
            before = office.value(f"SELECT xmin::text || attempt_token::text FROM outbox_job WHERE id = {row_id}")
            victim.send(signal.SIGCONT)
            wait_until(lambda: len([1 for run in office.ran(row_id) if run[3]]) == 2)  # its handler ends now
            victim.send(signal.SIGTERM)
            result = victim.result()
    assert result["lost_leases"] == 1
    after = office.value(f"SELECT xmin::text || attempt_token::text FROM outbox_job WHERE id = {row_id}")
    assert after == before
    assert office.job(row_id)[4] == "other"


def test_a_job_that_kills_its_worker_ends_after_its_attempts_and_takes_nobody_along(office: Office) -> None:
    (poison,) = office.enqueue("poison")
    neighbours = office.enqueue("slow", 12)
    crashes = 0
    deadline = time.monotonic() + 60
    while office.statuses().keys() & {"queued", "processing"}:
        assert time.monotonic() < deadline, office.statuses()
        with job_worker(office.url, f"w{crashes}") as worker:
            wait_until(
                lambda w=worker: (  # type: ignore[misc]  # mypy cannot see a lambda's default
                    w.process.poll() is not None or not office.statuses().keys() & {"queued", "processing"}
                )
            )
            crashes += worker.process.poll() == 9
    assert crashes == 3
    assert [run[0] for run in office.ran(poison)] == [1, 2, 3]
    assert office.job(poison)[:2] == ("failed", "crashed")
    assert {office.job(each)[0] for each in neighbours} == {"done"}
    assert max(office.job(each)[2] for each in neighbours) <= 2  # charged for one crash at most


def test_a_crashed_holder_gives_its_slot_back_and_no_earlier(office: Office) -> None:
    held, waiting = office.enqueue("alone", 2, key="k")
    with job_worker(office.url, "victim") as victim, job_worker(office.url, "other") as other:
        victim.ready()
        if not office.ran(held):
            wait_until(lambda: office.ran(held))
        other.ready()
        if office.ran(held)[0][2] == "victim":
            assert office.ran(waiting) == []
            victim.send(signal.SIGKILL)
        wait_until(lambda: office.statuses() == {"done": 2})
    overlaps = office.value(
        "SELECT count(*) FROM ran AS a JOIN ran AS b ON a.key = b.key AND (a.id, a.token) < (b.id, b.token)"
        " AND a.ended_at IS NOT NULL AND b.ended_at IS NOT NULL AND a.at < b.ended_at AND b.at < a.ended_at"
    )
    assert overlaps == 0


def test_a_worker_that_is_killed_while_it_reclaims_leaves_everything_to_the_next(office: Office) -> None:
    rows = office.enqueue("hang", 5)
    with job_worker(office.url, "victim") as victim:
        victim.ready()
        wait_until(lambda: all(office.ran(each) for each in rows))
        victim.send(signal.SIGKILL)
        victim.process.wait()
    # Each row that is taken back takes its time, so that the reclaim is under way for a while.
    office.conn.execute(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END'"
    )
    office.conn.execute(
        "CREATE TRIGGER slowly BEFORE UPDATE ON outbox_job FOR EACH ROW"
        " WHEN (NEW.reclaim_count > OLD.reclaim_count) EXECUTE FUNCTION slowly()"
    )
    with job_worker(office.url, "reclaimer") as reclaimer:
        wait_until(
            lambda: office.value(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE wait_event = 'PgSleep' AND query LIKE '%reclaim_count%'"
            )
        )
        reclaimer.send(signal.SIGKILL)
        reclaimer.process.wait()
    office.conn.execute("DROP TRIGGER slowly ON outbox_job")
    with job_worker(office.url, "next") as following:
        following.ready()
        wait_until(lambda: office.statuses() == {"done": 5})
    assert {office.job(each)[3] for each in rows} == {1}


def test_restarts_by_sigterm_use_up_no_attempts(office: Office) -> None:
    """Jobs that outlast the grace time are cut off and go back; with a limit of three none of them fails."""
    office.enqueue("slow", 30)
    office.enqueue("hang", 2)  # these never end in a victim
    for turn in range(6):
        with job_worker(office.url, f"victim {turn}", grace=0.1, concurrency=4) as worker:
            worker.ready()
            began = office.value("SELECT count(*) FROM ran")
            wait_until(lambda began=began: office.value("SELECT count(*) FROM ran") > began + 2)  # type: ignore[misc]  # as above
            worker.send(signal.SIGTERM)
            worker.process.wait()
            assert worker.process.returncode in (0, 1)
    with job_worker(office.url, "last") as last:
        last.ready()
        wait_until(lambda: office.statuses() == {"done": 32})
    assert office.value("SELECT count(*) FROM outbox_job WHERE status = 'failed'") == 0


def test_many_workers_share_the_work(office: Office) -> None:
    office.enqueue("quick", 200)
    with ExitStack() as stack:
        for n in range(3):
            stack.enter_context(job_worker(office.url, f"w{n}", concurrency=3)).ready()
        wait_until(lambda: office.statuses() == {"done": 200})
    assert office.value("SELECT count(*) FROM ran") == 200
