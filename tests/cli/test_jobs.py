"""``jobs``: look at jobs, find what is stuck, and decide what becomes of them."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from fencepost import Jobs
from fencepost.core.outcome import DONE, Dead
from fencepost.core.states import Event, Outcome
from tests.cli.program import Program, Result, finish, read_until
from tests.store.job_rows import JOBS, add_jobs, all_jobs, claim_jobs, expire_jobs
from tests.store.job_rows import finish as write

Call = Callable[..., Result]


@pytest.fixture
def db(store: str) -> Any:
    """An autocommit connection to the store."""
    with psycopg.connect(store, autocommit=True) as connection:
        yield connection


def failed(db: Any, count: int = 1, outcome: Outcome = Outcome.PERMANENT, **options: Any) -> list[int]:
    ids = add_jobs(db, count, **options)
    held = claim_jobs(db, queue=options.get("queue", "default"), batch=1_000)
    assert [each.id for each in held] == ids
    write(db, held, Dead(Event.PERMANENT_FAILURE, outcome, "first\nsecond \x1b[31m"))
    return ids


def statuses(db: Any) -> dict[int, str]:
    return {each.id: each.outcome or each.status for each in all_jobs(db)}


def audit(db: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = db.execute(
        "SELECT row_id, action, actor, reason FROM outbox_job_audit ORDER BY id"
    ).fetchall()
    return found


# --- looking -----------------------------------------------------------------------------------------------


def test_list(call: Call, store: str, db: Any) -> None:
    (dead,) = failed(db)
    (held,) = add_jobs(db)
    claim_jobs(db)
    (queued,) = add_jobs(db, queue="mail", delay=timedelta(hours=1))
    result = call("jobs", "list", store=store)
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["id", "status", "queue", "task", "attempts", "outcome", "worker", "since", "last_error"]
    assert lines[1][:7] == [str(held), "processing", "default", "plain", "1", "-", "w1"]
    assert lines[2][:7] == [str(queued), "queued", "mail", "plain", "0", "-", "-"]
    assert lines[3][:7] == [str(dead), "failed", "default", "plain", "1", "permanent", "w1"]
    assert result.out.splitlines()[3].endswith("first\\nsecond \\x1b[31m")
    assert (result.code, result.err) == (0, "")


def test_list_with_filters_and_pages(call: Call, store: str, db: Any) -> None:
    ids = failed(db, 3)
    (other,) = failed(db, outcome=Outcome.EXHAUSTED, queue="mail", task="manual")

    def listed(*arguments: str) -> Any:
        return call("jobs", "list", "--json", *arguments, store=store).json

    assert [each["id"] for each in listed()["jobs"]] == [*ids, other]
    for filters in (("--queue", "mail"), ("--task", "manual"), ("--outcome", "exhausted")):
        assert [each["id"] for each in listed(*filters)["jobs"]] == [other]
    assert listed("--status", "queued") == {"jobs": [], "after": None}
    page = listed("--limit", "2", "--status", "failed")
    rest = listed("--after", page["after"], "--status", "failed")
    assert ([each["id"] for each in rest["jobs"]], rest["after"]) == ([ids[2], other], None)
    assert call("jobs", "list", "--limit", "2", store=store).err.startswith("there are more: --after ")
    assert call("jobs", "list", "--status", "done", "--queue", "x", store=store).err == "no done jobs of queue x\n"
    wrong = call("jobs", "list", "--after", "nowhere", store=store)
    assert (wrong.code, wrong.err.startswith("fencepost: error: after: no place in this list")) == (2, True)


def test_show(call: Call, store: str, db: Any) -> None:
    job_id = uuid4()
    (row_id,) = add_jobs(db, job_id=job_id, headers={"a": "b"}, unique_key="k")
    claim_jobs(db)
    for identity in (str(row_id), str(job_id)):
        found = call("jobs", "show", identity, "--json", store=store).json
        assert (found["id"], found["status"], found["worker"], found["args"]) == (
            row_id,
            "processing",
            "w1",
            {"n": 0},
        )
    text = call("jobs", "show", str(row_id), store=store).out
    assert 'args              {"n": 0}' in text
    assert "unique_key        k" in text
    missing = call("jobs", "show", "999999", store=store)
    assert (missing.code, missing.err) == (1, "there is no job 999999\n")
    assert "neither a job's id (a number) nor its job id" in call("jobs", "show", "x", store=store).err


def test_stats(call: Call, store: str, db: Any) -> None:
    assert call("jobs", "stats", store=store).out == "no open jobs\n"
    failed(db, 2)
    add_jobs(db, 3, queue="mail")
    claim_jobs(db, 1, queue="mail")
    lines = call("jobs", "stats", store=store).out.splitlines()
    assert lines[0].split() == ["queue", "queued", "due", "processing", "expired", "oldest"]
    assert lines[1].split()[:5] == ["mail", "2", "2", "1", "0"]
    assert lines[3] == "failed: 2 permanent"
    found = call("jobs", "stats", "--json", store=store).json
    assert found["failed_by_outcome"] == {"permanent": 2}
    assert found["queues"][0]["processing"] == 1


def test_stuck(call: Call, store: str, db: Any) -> None:
    result = call("jobs", "stuck", store=store)
    assert result == Result(0, "nothing is stuck\n", "")
    (row_id,) = failed(db, outcome=Outcome.UNKNOWN_OUTCOME)
    (held,) = add_jobs(db)
    claim_jobs(db)
    expire_jobs(db)
    result = call("jobs", "stuck", store=store)
    lines = result.out.splitlines()
    assert result.code == 1
    assert lines[1].split()[:2] == [str(held), "silent"]
    assert "w1" in lines[1].split()
    assert lines[2].endswith(f"if not, `fencepost jobs retry {row_id}`; if so, leave it")
    found = call("jobs", "stuck", "--json", store=store).json
    assert [(each["id"], each["kind"]) for each in found["jobs"]] == [
        (held, "silent"),
        (row_id, "unknown_outcome"),
    ]
    assert found["jobs"][0]["last_heartbeat"] is not None
    assert not found["is_capped"]
    write(db, claim_jobs(db), DONE)
    assert call("jobs", "retry", "--all", "--yes", store=store).code == 0
    call("jobs", "cancel", "--all", "--yes", store=store)
    add_jobs(db, 2)
    db.execute("UPDATE outbox_job SET available_at = now() - interval '2 min' WHERE status = 'queued'")
    assert call("jobs", "stuck", store=store).code == 0
    capped = call("jobs", "stuck", "--waiting", "1m", "--limit", "1", store=store)
    assert capped.err == "there are more of a kind: see --limit\n"


# --- changing ----------------------------------------------------------------------------------------------


def test_retry_cancel_and_fail_of_some(call: Call, store: str, db: Any) -> None:
    dead = failed(db, 2)
    queued = add_jobs(db, 3)
    result = call("jobs", "retry", str(dead[0]), "--reason", "mended", "--actor", "ann", store=store)
    assert result == Result(0, "1 job is queued again\n", "")
    result = call("jobs", "cancel", str(queued[0]), str(dead[1]), "99999", store=store)
    assert result == Result(
        1,
        "1 job is cancelled\n",
        f"job {dead[1]}: it is failed (permanent): nothing was changed\n"
        "job 99999: it is not there: nothing was changed\n",
    )
    result = call("jobs", "fail", str(queued[1]), str(queued[2]), "--reason", "no", "--json", store=store)
    assert (result.code, result.json) == (0, {"changed": queued[1:], "unchanged": []})
    me = getpass.getuser()
    assert audit(db) == [
        (dead[0], "retry", "ann", "mended"),
        (queued[0], "cancel", me, None),
        (queued[1], "fail", me, "no"),
        (queued[2], "fail", me, "no"),
    ]


def test_all_with_filters_in_steps(call: Call, store: str, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.cli.job_changes.PAGE", 2)
    monkeypatch.setattr("fencepost.cli.progress.PROGRESS_SECONDS", 0.0)
    dead = failed(db, 5)
    (exhausted,) = failed(db, outcome=Outcome.EXHAUSTED)
    result = call("jobs", "retry", "--all", "--outcome", "permanent", "--yes", store=store)
    assert result == Result(0, "5 jobs are queued again\n", "".join(f"retry: {n} of 5\n" for n in (2, 4, 5)))
    assert statuses(db) == dict.fromkeys(dead, "queued") | {exhausted: "exhausted"}
    claim_jobs(db, 2)
    (other,) = add_jobs(db, queue="mail")
    assert call("jobs", "cancel", "--all", "--queue", "default", "--yes", store=store).code == 0
    assert statuses(db) == dict.fromkeys(dead, "cancelled") | {exhausted: "exhausted", other: "queued"}
    assert len(set(db.execute("SELECT xmin::text FROM outbox_job_audit WHERE action = 'retry'").fetchall())) == 3


def test_all_of_nothing_and_wrong_usage(call: Call, store: str) -> None:
    assert call("jobs", "retry", "--all", "--yes", store=store).out == "0 jobs are queued again\n"
    for arguments, says in (
        (("retry",), "say which jobs to retry: their ids, or --all"),
        (("cancel", "1", "--all"), "say which jobs to cancel: their ids, or --all"),
        (("cancel", "1", "--task", "x"), "go with --all, not with ids"),
        (("cancel", "1", "x1"), "'x1' is no id: give the number that `list` and `show` print"),
        (("cancel", "0"), "'0' is no id"),
        (("cancel", "9" * 25), "is no id"),
        (("fail", "1"), "Missing option '--reason'"),
        (("cancel", "--all"), "standard input is no terminal to ask on: pass --yes"),
        (("cancel", "--outcome", "failed"), "No such option"),
    ):
        result = call("jobs", *arguments, store=store)
        assert (result.code, says in result.err) == (2, True), result.err


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_it_asks_before_it_changes_all(
    call: Call, store: str, db: Any, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    failed(db, 2)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked: list[str] = []

    def confirm(text: str, **_: Any) -> bool:
        asked.append(text)
        return answer == "y"

    monkeypatch.setattr("click.confirm", confirm)
    assert call("jobs", "retry", "--all", "--task", "plain", store=store).code == code
    assert asked == ["Retry 2 failed jobs of task plain?"]
    assert set(statuses(db).values()) == ({"queued"} if code == 0 else {"permanent"})


def test_a_unique_key_that_somebody_takes_in_the_same_instant(configured: Program, store: str, db: Any) -> None:
    """The retry waits for the other's commit; then the index refuses it, and it looks again."""
    (row_id,) = failed(db, unique_key="k")
    with psycopg.connect(store) as other:
        taken = JOBS.enqueue(other, "plain", {"n": 9}, unique_key="k").id
        process = configured.start("jobs", "retry", str(row_id), "--json")
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        while not db.execute(waiting).fetchall():
            assert process.poll() is None
        other.commit()
    result = finish(process)
    assert (result.code, result.json) == (
        1,
        {
            "changed": [],
            "unchanged": [{"id": row_id, "reason": f"its unique key 'k' belongs to job {taken}, which is open"}],
        },
    )


def test_purge(call: Call, store: str, db: Any) -> None:
    add_jobs(db, 5)
    write(db, claim_jobs(db), DONE)
    failed(db)
    assert call("jobs", "purge", "--older-than", "1h", store=store).out == "deleted 0 done jobs\n"
    assert call("jobs", "purge", "--older-than", "0s", "--step", "2", store=store).out == "deleted 5 done jobs\n"
    assert call("jobs", "purge", "--older-than", "0s", "--json", store=store).json == {"deleted": 0}
    assert list(statuses(db).values()) == ["permanent"]


def test_tables_of_another_name(call: Call, store: str) -> None:
    jobs = Jobs(table="events")
    assert call("jobs", "stats", "--table", "events", store=store).code == 4
    assert call("migrate", "--table", "events", store=store).code == 0
    jobs.declare("t")
    with psycopg.connect(store) as connection:
        jobs.enqueue(connection, "t")
    found = call("jobs", "list", "--table", "events", "--json", store=store).json["jobs"]
    assert [each["task"] for each in found] == ["t"]
    assert call("jobs", "list", "--json", store=store).json["jobs"] == []


def test_a_reader_that_goes_away(configured: Program, db: Any) -> None:
    failed(db, 300)
    process = configured.start("jobs", "list", "--limit", "300")
    read_until(process.stdout, "last_error")
    assert finish(process).code in (0, 141)
