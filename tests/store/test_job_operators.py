"""What operators ask about jobs and do to them, the record of it, and the report of what is stuck."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from fencepost import ConfigError, Jobs
from fencepost.core.job import KNOWS_NO_TASK, ClaimedJob, JobInfo
from fencepost.core.job_states import JOB_TRANSITIONS, JobOutcome, JobState
from fencepost.core.job_stuck import StuckKind
from fencepost.core.outcome import DONE, Dead, Reschedule
from fencepost.core.states import Event, Outcome, attempts_after
from tests.store.job_rows import (
    ACTIONS,
    CATALOG,
    JOBS,
    WRITES,
    add_jobs,
    all_jobs,
    claim_in_lanes,
    claim_jobs,
    claim_one_job,
    do,
    expire_jobs,
    finish,
    job_row,
)
from tests.store.rows import Connection

HOUR = timedelta(hours=1)


def audit(db: Connection) -> list[tuple[Any, ...]]:
    return db.execute("SELECT row_id, action, actor, reason, before FROM outbox_job_audit ORDER BY id").fetchall()


def failed(db: Connection, count: int = 1, outcome: Outcome = Outcome.PERMANENT, **options: Any) -> list[int]:
    ids = add_jobs(db, count, **options)
    held = [each for each in claim_jobs(db, queue=options.get("queue", "default")) if each.id in ids]
    assert finish(db, held, Dead(Event.PERMANENT_FAILURE, outcome, f"because {outcome}")) == frozenset()
    return ids


def running(db: Connection, **options: Any) -> ClaimedJob:
    add_jobs(db, **options)
    return claim_one_job(db)


def ago(db: Connection, row_id: int, **columns: float) -> None:
    """Move instants of a row into the past, by so many seconds before now."""
    for column, seconds in columns.items():
        db.execute(
            f"UPDATE outbox_job SET {column} = statement_timestamp() - %s::float8 * interval '1 s' WHERE id = %s",
            [seconds, row_id],
        )


# --- changes -----------------------------------------------------------------------------------------------


def test_a_retry_puts_back_to_the_queue_without_attempts_and_says_who_did_it(db: Connection) -> None:
    (row_id,) = failed(db)
    db.execute("UPDATE outbox_job SET reclaim_count = 2")
    before = job_row(db, row_id)

    found = JOBS.retry(db, [row_id], "ann@ops", "customer exists now")

    assert (found.changed, found.refused) == ((row_id,), {})
    after = job_row(db, row_id)
    assert (after.status, after.outcome, after.attempts, after.reclaim_count) == ("queued", None, 0, 0)
    assert after.fence == before.fence
    assert after.token not in (None, before.token)
    assert after.due_in <= 0
    ((changed, action, actor, reason, state),) = audit(db)
    assert (changed, action, actor, reason) == (row_id, "retry", "ann@ops", "customer exists now")
    assert (state["status"], state["outcome"], state["attempts"], state["attempt_token"]) == (
        "failed",
        "permanent",
        1,
        before.token,
    )
    assert state["last_error"] == "because permanent"
    assert claim_one_job(db).attempt == 1


@pytest.mark.parametrize(
    ("verb", "outcome"), [("cancel", JobOutcome.CANCELLED), ("fail", JobOutcome.FAILED)], ids=["cancel", "fail"]
)
def test_open_jobs_are_ended_and_nothing_else(db: Connection, verb: str, outcome: JobOutcome) -> None:
    held = running(db)
    (queued,) = add_jobs(db)
    (done,) = add_jobs(db, queue="other")
    finish(db, claim_jobs(db, queue="other"), DONE)
    (dead,) = failed(db, queue="third")
    untouched = {each.id: each.xmin for each in all_jobs(db) if each.id in (done, dead)}

    found = getattr(JOBS, verb)(db, [dead, done, queued, held.id, 10**9, 10**18], "ann", "no longer wanted")

    assert found.changed == (held.id, queued)
    assert found.refused == {
        dead: "it is failed (permanent)",
        done: "it is done (completed)",
        10**9: "it is not there",
        10**18: "it is not there",
    }
    for row_id in (held.id, queued):
        seen = job_row(db, row_id)
        assert (seen.status, seen.outcome, seen.lease_left) == ("failed", outcome, None)
        assert seen.last_error == f"{outcome} by ann: no longer wanted"
        assert seen.token not in (None, held.token)
    assert job_row(db, held.id).reserved_by == "w1"
    assert {each.id: each.xmin for each in all_jobs(db) if each.id in untouched} == untouched
    assert [each[:4] for each in audit(db)] == [
        (held.id, verb, "ann", "no longer wanted"),
        (queued, verb, "ann", "no longer wanted"),
    ]
    assert [each[4]["status"] for each in audit(db)] == ["processing", "queued"]


@pytest.mark.parametrize("write", WRITES)
def test_the_holder_of_an_ended_job_writes_nothing_more(db: Connection, write: str) -> None:
    """Not even a failure that looks like the operator's own; and not after a retry either."""
    held = running(db)
    assert JOBS.fail(db, [held.id], "ann", "stop").changed == (held.id,)
    before = job_row(db, held.id).xmin
    assert WRITES[write](db, [held]) == {held.id}
    assert job_row(db, held.id).xmin == before
    assert JOBS.retry(db, [held.id], "ann").changed == (held.id,)
    before = job_row(db, held.id).xmin
    assert WRITES[write](db, [held]) == {held.id}
    assert job_row(db, held.id).xmin == before


EVENTS = {
    Event.OPERATOR_CANCEL: lambda db, row_id: JOBS.cancel(db, [row_id], "ann"),
    Event.OPERATOR_FAIL: lambda db, row_id: JOBS.fail(db, [row_id], "ann", "why"),
    Event.OPERATOR_RETRY: lambda db, row_id: JOBS.retry(db, [row_id], "ann"),
}


def in_state(db: Connection, state: JobState) -> int:
    if state is JobState.QUEUED:
        return add_jobs(db)[0]
    held = running(db)
    if state is JobState.DONE:
        finish(db, [held], DONE)
    if state is JobState.FAILED:
        finish(db, [held], ACTIONS["fail"])
    return held.id


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("event", EVENTS)
def test_what_an_operator_does_is_what_the_table_says(db: Connection, state: JobState, event: Event) -> None:
    row_id = in_state(db, state)
    before = job_row(db, row_id)
    found = EVENTS[event](db, row_id)
    rule = JOB_TRANSITIONS.get((state, event))
    if rule is None:
        assert (found.changed, list(found.refused)) == ((), [row_id])
        assert job_row(db, row_id).xmin == before.xmin
        assert audit(db) == []
        return
    after = job_row(db, row_id)
    assert (found.changed, found.refused) == ((row_id,), {})
    assert (after.status, after.outcome) == (rule.to, rule.outcome)
    assert after.attempts == attempts_after(before.attempts, rule.attempts)
    assert (after.token != before.token) == rule.raises_token
    assert len(audit(db)) == 1


def test_a_unique_key_that_is_taken_meanwhile_stays_with_the_open_job(db: Connection) -> None:
    (old,) = failed(db, unique_key="k")
    (new,) = add_jobs(db, unique_key="k")
    others = failed(db, 2, queue="other")
    found = JOBS.retry(db, [old, *others], "ann")
    assert found.changed == tuple(others)
    assert found.refused == {old: f"its unique key 'k' belongs to job {new}, which is open"}
    assert JOBS.cancel(db, [new], "ann").changed == (new,)
    # Two of one key at once: the first goes back.
    found = JOBS.retry(db, [new, old], "ann")
    assert found.changed == (old,)
    assert found.refused == {new: f"its unique key 'k' belongs to job {old}, which is open"}


def test_two_operators_at_once_one_of_them_moves_the_job(db: Connection, url: str) -> None:
    (row_id,) = failed(db)
    with psycopg.connect(url) as second:
        with db.transaction():
            assert JOBS.retry(db, [row_id], "ann").changed == (row_id,)
            second.execute("SET LOCAL lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                JOBS.retry(second, [row_id], "bob")
            second.rollback()
        assert JOBS.retry(second, [row_id], "bob").refused == {row_id: "it is queued"}
    assert [each[2] for each in audit(db)] == ["ann"]


def test_an_action_rolls_back_with_its_audit(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    with db.transaction(force_rollback=True):
        JOBS.cancel(db, [row_id], "ann")
    assert job_row(db, row_id).status == "queued"
    assert audit(db) == []
    assert JOBS.cancel(db, [], "ann").changed == ()


def test_names_and_reasons_that_no_store_can_keep_stop_nobody(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    assert JOBS.fail(db, [row_id], "a\x00nn", "b\x00\ud800" + "x" * 10_000).changed == (row_id,)
    assert len(job_row(db, row_id).last_error or "") <= 4_000
    ((_, _, actor, reason, _),) = audit(db)
    assert actor == "a\\x00nn"
    assert reason.startswith("b\\x00\\ud800x")


def test_what_went_before_stays_in_the_error(db: Connection) -> None:
    held = running(db)
    finish(db, [held], Reschedule(Event.RETRY, timedelta(0), "no route", refund_attempt=False))
    JOBS.cancel(db, [held.id], "ann")
    assert job_row(db, held.id).last_error == "cancelled by ann\nbefore: no route"


def test_a_fail_needs_a_reason(db: Connection) -> None:
    with pytest.raises(ConfigError, match="fail needs a reason"):
        JOBS.fail(db, [1], "ann", "")


def test_a_retry_wakes_the_workers(db: Connection, url: str) -> None:
    (row_id,) = failed(db)
    with psycopg.connect(url, autocommit=True) as listening:
        listening.execute('LISTEN "fencepost:outbox:j"')
        Jobs(notify=False).retry(db, [row_id], "ann")
        assert list(listening.notifies(timeout=0.2)) == []
        JOBS.cancel(db, [row_id], "ann")
        JOBS.retry(db, [row_id], "ann")
        assert [each.channel for each in listening.notifies(timeout=5, stop_after=1)] == ["fencepost:outbox:j"]


# --- looking -----------------------------------------------------------------------------------------------


def ids_of(jobs: tuple[JobInfo, ...]) -> list[int]:
    return [each.id for each in jobs]


def all_pages(db: Connection, limit: int, **filters: Any) -> list[int]:
    found: list[int] = []
    page = JOBS.list_jobs(db, limit=limit, **filters)
    while True:
        assert len(page.jobs) <= limit
        found += ids_of(page.jobs)
        if page.after is None:
            return found
        page = JOBS.list_jobs(db, limit=limit, after=page.after, **filters)


def one_of_everything(db: Connection) -> dict[str, list[int]]:
    """Jobs in every part of the list, each part in its order."""
    made = {"done": add_jobs(db, 3)}
    finish(db, claim_jobs(db), DONE)
    made["failed"] = failed(db, 2) + failed(db, 2, outcome=Outcome.UNKNOWN_OUTCOME, queue="a", task="manual")
    add_jobs(db, 2, queue="crashed")
    claim_jobs(db, queue="crashed")
    expire_jobs(db)
    made["suspects"] = sorted(each.id for each in JOBS.reclaim(db))
    made["processing"] = add_jobs(db, 3)
    assert len(claim_jobs(db)) == 3
    made["lanes"] = [add_jobs(db, task="keyed", key=key)[0] for key in "aabc"] + add_jobs(db, task="few")
    made["lanes"] = made["lanes"][-1:] + made["lanes"][:-1]  # by task: "few" comes before "keyed"
    made["ready"] = add_jobs(db, 2, queue="b") + add_jobs(db, 2)
    return made


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_pages_have_every_job_once_in_its_place(db: Connection, limit: int) -> None:
    made = one_of_everything(db)
    # Reclaimed in one statement, they are due in the same instant.
    queued = [*made["ready"], *made["lanes"], *made["suspects"]]
    assert all_pages(db, limit) == [*made["processing"], *queued, *made["failed"], *made["done"]]
    assert all_pages(db, limit, status="queued") == queued
    assert all_pages(db, limit, status="failed") == made["failed"]
    assert all_pages(db, limit, status="processing") == made["processing"]
    assert all_pages(db, limit, status="done") == made["done"]
    assert all_pages(db, limit, outcome="unknown_outcome") == made["failed"][2:]
    assert all_pages(db, limit, outcome="completed") == made["done"]
    assert all_pages(db, limit, status="queued", outcome="completed") == []
    assert all_pages(db, limit, queue="b") == made["ready"][:2]
    assert all_pages(db, limit, task="keyed") == made["lanes"][1:]
    assert all_pages(db, limit, task="manual", queue="a", status="failed") == made["failed"][2:]


def test_a_page_goes_on_although_its_last_job_left_the_list(db: Connection) -> None:
    ids = failed(db, 4)
    page = JOBS.list_jobs(db, "failed", limit=2)
    JOBS.retry(db, ids[:2], "ann")
    rest = JOBS.list_jobs(db, "failed", limit=2, after=page.after)
    assert (ids_of(rest.jobs), rest.after) == (ids[2:], None)


@pytest.mark.parametrize("after", ["", "x", "é", "WzFd", "WyJmYWlsZWQiLCAiIiwgIiIsICIiLCAieCIsIDFd"])
def test_what_is_no_place_in_the_list_is_refused(db: Connection, after: str) -> None:
    with pytest.raises(ConfigError, match="no place in this list"):
        JOBS.list_jobs(db, after=after)


def test_a_place_in_another_list_is_refused(db: Connection) -> None:
    failed(db, 2)
    after = JOBS.list_jobs(db, "failed", limit=1).after
    with pytest.raises(ConfigError, match="with the same filters"):
        JOBS.list_jobs(db, "done", after=after)


def test_a_filter_that_there_is_not_is_refused(db: Connection) -> None:
    with pytest.raises(ConfigError, match="status 'dead' is none of queued, processing, done, failed"):
        JOBS.list_jobs(db, "dead")
    with pytest.raises(ConfigError, match="outcome 'delivered' is none of"):
        JOBS.list_jobs(db, outcome="delivered")


def test_show_has_everything_and_a_list_leaves_out_the_bulk(db: Connection) -> None:
    job_id = uuid4()
    add_jobs(db, job_id=job_id, headers={"a": "b"}, unique_key="k")
    held = claim_one_job(db)
    found = JOBS.show_job(db, held.id)
    assert found is not None
    assert (found.job.job_id, found.job.args, found.job.headers, found.job.unique_key) == (
        job_id,
        {"n": 0},
        {"a": "b"},
        "k",
    )
    assert (found.state, found.outcome, found.attempts, found.worker) == (JobState.PROCESSING, None, 1, "w1")
    assert found.lease_left is not None
    assert timedelta(seconds=50) < found.lease_left <= timedelta(seconds=60)
    finish(db, [held], DONE, result='{"sent": 1}')
    found = JOBS.show_job(db, job_id)
    assert found is not None
    assert (found.state, found.result, found.lease_left) == (JobState.DONE, {"sent": 1}, None)
    (listed,) = JOBS.list_jobs(db).jobs
    assert (listed.job.args, listed.result, listed.finished_at) == (None, None, found.finished_at)
    assert JOBS.show_job(db, 10**9) is None
    assert JOBS.show_job(db, uuid4()) is None


def test_stats_count_what_is_open_by_queue_and_what_failed_by_outcome(db: Connection) -> None:
    made = one_of_everything(db)
    add_jobs(db, queue="b", delay=HOUR)
    ago(db, made["ready"][0], available_at=100)
    expire_jobs(db, made["processing"][:1])
    found = JOBS.stats(db)
    assert [(each.queue, each.queued, each.due, each.processing, each.expired) for each in found.queues] == [
        ("b", 3, 2, 0, 0),
        ("crashed", 2, 2, 0, 0),
        ("default", 7, 7, 3, 1),
    ]
    assert found.failed_by_outcome == {"permanent": 2, "unknown_outcome": 2}
    oldest = found.queues[0].oldest_age
    assert oldest is not None
    assert 99 < oldest.total_seconds() < 110


# --- what is stuck -----------------------------------------------------------------------------------------


def test_nothing_is_stuck_where_all_goes_well(db: Connection) -> None:
    one_of_everything(db)
    found = JOBS.stuck(db)
    assert {each.kind for each in found.jobs} == {StuckKind.UNKNOWN_OUTCOME}


def test_each_kind_of_stuck_job_is_found_with_its_worker_and_its_heartbeat(db: Connection) -> None:
    ids: dict[str, int] = {}

    def held(kind: str, **columns: float) -> None:
        ids[kind] = running(db).id
        ago(db, ids[kind], **columns)

    held("expired", lease_expires_at=30, heartbeat_at=90, reserved_at=200)
    held("silent", lease_expires_at=-20, heartbeat_at=40, reserved_at=50)
    held("long", reserved_at=4_000)
    held("beating", reserved_at=60)
    (ids["unknown_outcome"],) = failed(db, outcome=Outcome.UNKNOWN_OUTCOME)
    (ids["waiting"],) = add_jobs(db, queue="nobodys")
    ago(db, ids["waiting"], available_at=400)
    add_jobs(db, queue="nobodys")
    (ids["unknown_task"],) = add_jobs(db, delay=timedelta(seconds=5))
    ago(db, ids["unknown_task"], created_at=400)
    db.execute("UPDATE outbox_job SET last_error = %s WHERE id = %s", [f"w{KNOWS_NO_TASK}x", ids["unknown_task"]])
    ids["limit_reached"] = add_jobs(db, 3, task="few")[-1]
    assert len(claim_in_lanes(db)) == 2
    ago(db, ids["limit_reached"], available_at=400)
    (ids["came_back"],) = add_jobs(db, queue="crashes")
    for _ in range(2):
        db.execute(
            "UPDATE outbox_job SET status = 'processing', reserved_at = now(), reserved_by = 'w9', attempts = 1,"
            " fence = 1, attempt_token = gen_random_uuid(), heartbeat_at = now(),"
            " lease_expires_at = now() - interval '1 h' WHERE id = %s",
            [ids["came_back"]],
        )
        (back,) = [each for each in JOBS.reclaim(db, 1) if each.id == ids["came_back"]]
        assert back.state is JobState.QUEUED

    found = JOBS.stuck(db)

    assert not found.is_capped
    by_kind = {str(each.kind): each for each in found.jobs}
    assert {kind: each.id for kind, each in by_kind.items()} == {
        kind: row_id for kind, row_id in ids.items() if kind != "beating"
    }
    assert [each.kind for each in found.jobs] == list(StuckKind)  # the worst first
    assert len(found.jobs) == len(by_kind)
    silent = by_kind["silent"]
    assert (silent.worker, silent.last_heartbeat) == ("w1", silent.info.heartbeat_at)
    assert 39 < silent.for_how_long.total_seconds() < 50
    assert by_kind["limit_reached"].action.startswith("2 of its task run")
    assert by_kind["came_back"].worker == "w9"


def test_the_report_is_bounded_and_says_so(db: Connection) -> None:
    ids = add_jobs(db, 3)
    for row_id in ids:
        ago(db, row_id, available_at=1_000)
    found = JOBS.stuck(db, limit=2)
    assert ([each.id for each in found.jobs], found.is_capped) == (ids[:2], True)
    assert not JOBS.stuck(db, limit=3).is_capped
    assert JOBS.stuck(db, waiting=HOUR).jobs == ()


def test_it_reads_nothing_of_the_history(db: Connection) -> None:
    """Each statement but the one of the lanes scans the partial indexes alone."""
    db.execute(
        "INSERT INTO outbox_job (task, status, outcome, finished_at)"
        " SELECT 'plain', 'done', 'completed', now() FROM generate_series(1, 5000)"
    )
    one_of_everything(db)
    db.execute("ANALYZE outbox_job")
    params = {"running": 1.0, "waiting": 1.0, "reclaims": 2, "no_task": "x", "window": 10, "limit": 10}
    params |= {"queues": ["b", "default"], "queue": None, "task": None, "outcome": None, "after_queue": ""}
    params |= {"after_task": "", "after_lane": "", "after_at": "-infinity", "after_id": 0}
    stuck = ("running", "waiting", "suspects", "lanes", "unknown")
    listed = ("processing", "ready", "lanes", "suspects", "failed", "done")
    names = [*(f"job_stuck_{name}" for name in stuck), *(f"job_list_{name}" for name in listed)]
    for name in [*names, "job_stats_queues", "job_stats_failed"]:
        plan = db.execute(f"EXPLAIN {CATALOG.statement(name).sql}", params).fetchall()
        text = "\n".join(line for (line,) in plan)
        assert "Seq Scan" not in text, f"{name}\n{text}"
        assert "outbox_job_pkey" not in text, f"{name}\n{text}"


def test_durations_that_cannot_be_are_refused(db: Connection) -> None:
    with pytest.raises(ConfigError, match="stuck needs durations"):
        JOBS.stuck(db, running=timedelta(seconds=-1))


def test_an_operation_asks_nothing_of_a_queue_where_nothing_is_queued(db: Connection) -> None:
    assert JOBS.stuck(db).jobs == ()
    assert JOBS.stats(db).queues == ()
    assert do(db, JOBS._list(None, None, None, None, None, 1)).jobs == ()
