"""Jobs in the database: enqueue, claims, the fence, lanes, and how they come back from workers that are lost."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from fencepost import AutocommitRefused, ConfigError, DedupeConflict, InvalidMessage, Jobs
from fencepost.core.job import ClaimedJob
from fencepost.core.job_states import JOB_TRANSITIONS, JobState
from fencepost.core.operation import run
from fencepost.core.outcome import DONE, Dead, Release
from fencepost.core.states import Event, Outcome, attempts_after
from fencepost.core.suspects import SPARE_ATTEMPTS
from fencepost.drivers import driver_for
from fencepost.store import job_fenced
from fencepost.store import jobs as store
from fencepost.store.job_fenced import Finished
from fencepost.store.jobs import LaneWalk, TaskTerms
from tests.store.job_rows import (
    ACTIONS,
    CATALOG,
    JOBS,
    TERMS,
    WRITES,
    Write,
    add_jobs,
    all_jobs,
    claim_in_lanes,
    claim_jobs,
    claim_one_job,
    claim_suspects,
    do,
    expire_jobs,
    finish,
    job_row,
    terms,
)
from tests.store.rows import Connection, value

each_write = pytest.mark.parametrize("write", list(WRITES.values()), ids=list(WRITES))


# --- enqueue ---------------------------------------------------------------------------------------------


def test_a_job_is_there_with_its_transaction_and_gone_with_it(db: Connection, url: str) -> None:
    with psycopg.connect(url) as own:
        JOBS.enqueue(own, "plain", {"n": 1})
        own.rollback()
        kept = JOBS.enqueue(own, "plain", {"n": 2})
        own.commit()
    (row,) = all_jobs(db)
    assert (row.id, row.status, row.attempts, row.token) == (kept.id, "queued", 0, None)


def test_outside_a_transaction_it_is_refused(db: Connection) -> None:
    jobs = Jobs()
    jobs.declare("plain")
    with pytest.raises(AutocommitRefused, match="Jobs"):
        jobs.enqueue(db, "plain")
    assert all_jobs(db) == []


@pytest.mark.parametrize(
    ("args", "options", "error"),
    [
        ({"a": float("nan")}, {}, "args"),
        ({"a": "\x00"}, {}, "NUL"),
        ({"a": "\ud800"}, {}, "surrogate"),
        (object(), {}, "args cannot be written as JSON"),
        ({"a": "x" * 1_100_000}, {}, "more than the limit of 1048576"),
        ({}, {"queue": "a b"}, "queue"),
        ({}, {"queue": ""}, "queue"),
        ({}, {"recovery": ""}, "recovery"),
        ({}, {"unique_key": ""}, "unique_key must not be empty"),
        ({}, {"unique_key": "x" * 1025}, "unique_key has 1025 bytes"),
        ({}, {"max_attempts": 0}, "max_attempts"),
        ({}, {"max_attempts": True}, "max_attempts"),
        ({}, {"recovery": "maybe"}, "recovery"),
        ({}, {"delay": -timedelta(seconds=1)}, "delay"),
        ({}, {"delay": timedelta(1), "available_at": datetime.now(UTC)}, "not both"),
        ({}, {"available_at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - the naive one is the point
        ({}, {"job_id": "x"}, "job_id"),
        ({}, {"headers": {"a": 1}}, "headers|header"),
        ({}, {"key": "x"}, "max_running_per_key"),
        ({}, {"colour": "red"}, "colour"),
    ],
)
def test_bad_input_is_refused_before_any_database_work(url: str, args: Any, options: Any, error: str) -> None:
    with psycopg.connect(url) as own:
        own.execute("SELECT 1")
        with pytest.raises(InvalidMessage, match=error):
            JOBS.enqueue(own, "plain", args, **options)
        assert value(own, "SELECT count(*) FROM outbox_job") == 0  # the transaction stays usable


def test_a_task_that_nobody_declared_is_refused(url: str) -> None:
    with psycopg.connect(url) as own, pytest.raises(ConfigError, match=r"no task 'pliant' .*declare"):
        JOBS.enqueue(own, "pliant")


def test_a_keyed_task_needs_its_key(url: str) -> None:
    with psycopg.connect(url) as own, pytest.raises(InvalidMessage, match="key="):
        JOBS.enqueue(own, "keyed", {})


def test_a_unique_key_finds_the_open_job_and_is_free_once_it_is_finished(db: Connection) -> None:
    first = JOBS.enqueue(db, "plain", {"a": 1}, unique_key="k")
    again = JOBS.enqueue(db, "plain", {"a": 1}, unique_key="k")
    assert (again.id, again.job_id, again.created) == (first.id, first.job_id, False)
    other_task = JOBS.enqueue(db, "manual", {"a": 1}, unique_key="k")
    assert other_task.created
    with db.transaction():
        with pytest.raises(DedupeConflict, match="other arguments"):
            JOBS.enqueue(db, "plain", {"a": 2}, unique_key="k")
        assert value(db, "SELECT 1") == 1
    held = claim_jobs(db)
    assert not JOBS.enqueue(db, "plain", {"a": 1}, unique_key="k").created  # it runs
    finish(db, held, DONE)
    third = JOBS.enqueue(db, "plain", {"a": 1}, unique_key="k")
    assert third.created
    # The finished one of the same key is older, and is not the one that is found.
    assert JOBS.enqueue(db, "plain", {"a": 1}, unique_key="k").id == third.id


def test_many_at_once_with_one_unique_key_make_one_job(url: str, db: Connection, way: str) -> None:
    many = 2 if "pooled" in way else 20
    start = threading.Barrier(many)
    created: list[bool] = []

    def one() -> None:
        with psycopg.connect(url) as own:
            start.wait(timeout=20)
            created.append(JOBS.enqueue(own, "plain", {}, unique_key="k").created)
            own.commit()

    threads = [threading.Thread(target=one) for _ in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(created) == [False] * (many - 1) + [True]
    assert len(all_jobs(db)) == 1


# --- claims ----------------------------------------------------------------------------------------------


def test_what_is_due_is_claimed_in_its_turn_and_nothing_else(db: Connection) -> None:
    later, first = add_jobs(db, delay=timedelta(hours=1)), add_jobs(db, 3)
    other = add_jobs(db, queue="other")
    assert [each.id for each in claim_jobs(db, batch=2)] == first[:2]
    assert [each.id for each in claim_jobs(db)] == first[2:]
    assert [each.id for each in claim_jobs(db, queue="other")] == other
    assert job_row(db, later[0]).status == "queued"


def test_a_claim_charges_an_attempt_and_gives_a_new_token_and_the_tasks_lease(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    short = terms("w7", plain=TaskTerms(timedelta(seconds=9)))
    first = claim_one_job(db, short)
    seen = job_row(db, row_id)
    assert (seen.status, seen.attempts, seen.fence, seen.token, seen.reserved_by) == (
        "processing",
        1,
        1,
        first.token,
        "w7",
    )
    assert seen.lease_left is not None
    assert 7 < seen.lease_left <= 9
    assert not first.may_be_repeat
    finish(db, [first], Release())
    second = claim_one_job(db)
    assert second.token != first.token
    assert (second.fence, second.attempt, second.may_be_repeat) == (2, 1, True)


def test_over_the_limit_it_fails_and_is_never_left_lying(db: Connection) -> None:
    ids = add_jobs(db, 3)
    db.execute("UPDATE outbox_job SET attempts = 12 WHERE id = %s", [ids[0]])
    assert [each.id for each in claim_jobs(db)] == ids[1:]
    assert (job_row(db, ids[0]).status, job_row(db, ids[0]).outcome) == ("failed", "exhausted")


def test_two_claims_at_once_share_nothing_and_wait_for_nobody(db: Connection, db2: Connection) -> None:
    ids = add_jobs(db, 10)
    with db.transaction():
        store_claim = store.claim(CATALOG, TERMS, "default", 4)
        first = run(store_claim, driver_for(db).execute).claimed
        second = claim_jobs(db2, batch=100)
    assert [each.id for each in first] == ids[:4]
    assert [each.id for each in second] == ids[4:]


def test_a_look_tells_what_each_queue_has(db: Connection) -> None:
    add_jobs(db, queue="b")
    add_jobs(db, queue="c", delay=timedelta(hours=1))
    add_jobs(db, task="few", queue="a")
    found = do(db, store.look(CATALOG, None))
    assert [(each.queue, each.is_due, each.has_lanes) for each in found] == [
        ("a", False, True),
        ("b", True, False),
        ("c", False, False),
    ]
    named = do(db, store.look(CATALOG, ["c", "b", "none"]))
    assert [each.queue for each in named] == ["c", "b", "none"]


# --- the fence -------------------------------------------------------------------------------------------


@each_write
def test_a_stale_token_changes_nothing(db: Connection, write: Write) -> None:
    (row_id,) = add_jobs(db)
    old = claim_one_job(db)
    expire_jobs(db)
    do(db, store.reclaim(CATALOG, limit=10))
    (new,) = claim_suspects(db)
    before = job_row(db, row_id)
    assert write(db, [old]) == {row_id}
    assert job_row(db, row_id).xmin == before.xmin
    assert write(db, [new]) == frozenset()


@each_write
def test_a_given_back_job_is_not_its_old_holders_any_more(db: Connection, write: Write) -> None:
    (row_id,) = add_jobs(db)
    held = claim_one_job(db)
    finish(db, [held], Release())
    xmin = job_row(db, row_id).xmin
    lost = write(db, [held])
    assert job_row(db, row_id).xmin == xmin
    # Whoever wants it in the very state in which it stands under his token repeats his own write.
    repeats = [WRITES[name] for name in ("release", "retry", "defer", "cut off")]
    assert lost == (frozenset() if write in repeats else {row_id})


@pytest.mark.parametrize("action", list(ACTIONS.values()), ids=list(ACTIONS))
def test_a_repeated_finalize_is_a_success_and_changes_nothing_more(db: Connection, action: Any) -> None:
    (row_id,) = add_jobs(db)
    held = claim_one_job(db)
    assert finish(db, [held], action) == frozenset()
    xmin = job_row(db, row_id).xmin
    assert finish(db, [held], action) == frozenset()
    assert job_row(db, row_id).xmin == xmin


def test_failed_for_another_reason_is_not_the_same_target(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    held = claim_one_job(db)
    assert finish(db, [held], ACTIONS["fail"]) == frozenset()
    assert finish(db, [held], Dead(Event.EXHAUST, Outcome.EXHAUSTED, "dead")) == {row_id}
    assert job_row(db, row_id).outcome == "permanent"


def test_an_expired_lease_that_nobody_took_over_still_finalizes(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    held = claim_one_job(db)
    expire_jobs(db)
    assert finish(db, [held], DONE, '{"sum": 3}') == frozenset()
    assert (job_row(db, row_id).status, job_row(db, row_id).result) == ("done", {"sum": 3})


def test_a_batch_of_many_tokens_is_written_at_once(db: Connection) -> None:
    add_jobs(db, 6)
    held = [claim_jobs(db, batch=1)[0] for _ in range(6)]
    expire_jobs(db, [held[2].id])
    do(db, store.reclaim(CATALOG, limit=10))
    assert finish(db, list(reversed(held)), DONE) == {held[2].id}
    assert [each.status for each in all_jobs(db)] == ["done", "done", "queued", "done", "done", "done"]


def test_each_job_of_a_batch_gets_what_is_its_own(db: Connection) -> None:
    add_jobs(db, 4)
    one, two, three, four = claim_jobs(db)
    gone = Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "gone")
    tired = Dead(Event.EXHAUST, Outcome.EXHAUSTED, "tired")
    results = [
        Finished(four, tired, None),
        Finished(one, DONE, '"first"'),
        Finished(three, gone, None),
        Finished(two, DONE, '"second"'),
    ]
    assert do(db, job_fenced.finalize(CATALOG, results)) == frozenset()
    assert [(each.outcome, each.result, each.last_error) for each in all_jobs(db)] == [
        ("completed", "first", None),
        ("completed", "second", None),
        ("permanent", None, "gone"),
        ("exhausted", None, "tired"),
    ]


def test_a_heartbeat_extends_the_lease_and_takes_progress_along(db: Connection) -> None:
    ids = add_jobs(db, 2)
    held = claim_jobs(db)
    expire_jobs(db)
    assert do(db, job_fenced.heartbeat(CATALOG, held, timedelta(seconds=30), {ids[1]: '{"at": 7}'})) == frozenset()
    rows = all_jobs(db)
    assert all(each.lease_left is not None and each.lease_left > 25 for each in rows)
    assert [each.progress for each in rows] == [None, {"at": 7}]
    assert do(db, job_fenced.heartbeat(CATALOG, held, timedelta(seconds=30))) == frozenset()
    assert [each.progress for each in all_jobs(db)] == [None, {"at": 7}]  # a beat without news wipes nothing out


def test_a_heartbeat_does_not_wait_for_a_row_that_is_being_finalized(
    db: Connection, db2: Connection, url: str
) -> None:
    add_jobs(db)
    held = claim_jobs(db)
    db2.execute("BEGIN")
    db2.execute("SELECT 1 FROM outbox_job FOR UPDATE")
    db.execute("SET lock_timeout = '2s'")
    assert WRITES["heartbeat"](db, held) == frozenset()
    db2.execute("ROLLBACK")
    db.execute("RESET lock_timeout")


# --- reclaim ---------------------------------------------------------------------------------------------


def _after_a_crash(db: Connection, task: str, attempts: int = 1) -> Any:
    (row_id,) = add_jobs(db, task=task, max_attempts=3)
    claim_one_job(db)
    db.execute("UPDATE outbox_job SET attempts = %s WHERE id = %s", [attempts, row_id])
    expire_jobs(db)
    (found,) = do(db, store.reclaim(CATALOG, limit=10))
    assert found.id == row_id
    return job_row(db, row_id)


@pytest.mark.parametrize(
    ("task", "attempts", "status", "outcome"),
    [
        ("plain", 1, "queued", None),
        ("plain", 3, "failed", "crashed"),
        ("manual", 1, "failed", "unknown_outcome"),
        ("verify", 1, "queued", None),
        ("verify", 3, "failed", "unknown_outcome"),
    ],
)
def test_a_lost_job_comes_back_or_fails_by_its_policy(
    db: Connection, task: str, attempts: int, status: str, outcome: str | None
) -> None:
    seen = _after_a_crash(db, task, attempts)
    assert (seen.status, seen.outcome, seen.attempts, seen.reclaim_count) == (status, outcome, attempts, 1)
    assert "the lease of worker w1 expired on attempt" in seen.last_error


def test_a_job_that_beats_is_never_touched_however_long_it_runs(db: Connection) -> None:
    add_jobs(db)
    claim_one_job(db)
    db.execute("UPDATE outbox_job SET reserved_at = reserved_at - interval '30 days'")
    assert do(db, store.reclaim(CATALOG, limit=10)) == []


def test_ten_expired_ones_behind_two_thousand_long_leases_come_back_in_two_passes(db: Connection) -> None:
    add_jobs(db, 2010)
    held = claim_jobs(db, batch=10_000)
    assert len(held) == 2010
    expire_jobs(db, [each.id for each in held[-10:]])
    passes = [do(db, store.reclaim(CATALOG, limit=5)) for _ in range(2)]
    assert sorted(each.id for step in passes for each in step) == [each.id for each in held[-10:]]


def test_whoever_reclaims_waits_for_nobody_and_leaves_nothing_if_it_dies(db: Connection, db2: Connection) -> None:
    ids = add_jobs(db, 4)
    claim_jobs(db)
    expire_jobs(db)
    with db2.transaction(force_rollback=True):
        first = run(store.reclaim(CATALOG, limit=2), driver_for(db2).execute)
        second = do(db, store.reclaim(CATALOG, limit=10))
    assert sorted(each.id for each in [*first, *second]) == ids
    assert sorted(each.id for each in do(db, store.reclaim(CATALOG, limit=10))) == [each.id for each in first]


def test_what_crashed_is_claimed_apart_and_alone(db: Connection) -> None:
    crashed = add_jobs(db, 3)
    claim_jobs(db)
    expire_jobs(db)
    do(db, store.reclaim(CATALOG, limit=10))
    healthy = add_jobs(db, 2)
    assert [each.id for each in claim_jobs(db)] == healthy
    assert [each.id for each in claim_suspects(db)] == crashed[:1]
    assert [each.id for each in claim_suspects(db, batch=10, max_reclaims=1)] == crashed[1:]


def test_what_would_have_too_few_attempts_left_is_not_claimed_beside_others(db: Connection) -> None:
    plenty, enough, worn, over = add_jobs(db, 4)
    attempts = {plenty: 1, enough: 11 - SPARE_ATTEMPTS, worn: 12 - SPARE_ATTEMPTS, over: 12}
    db.execute("UPDATE outbox_job SET reclaim_count = 1, fence = 1, max_attempts = 12")
    for row_id, count in attempts.items():
        db.execute("UPDATE outbox_job SET attempts = %s WHERE id = %s", [count, row_id])
    assert [each.id for each in claim_suspects(db, batch=10, spare_attempts=SPARE_ATTEMPTS)] == [plenty, enough]
    assert claim_suspects(db, batch=10, spare_attempts=SPARE_ATTEMPTS) == []
    # One by one it is claimed all the same, and what has no attempt left comes to its end.
    assert [each.id for each in claim_suspects(db, batch=10)] == [worn]
    assert job_row(db, over).status == "failed"


# --- lanes -----------------------------------------------------------------------------------------------


def test_a_task_runs_no_more_than_its_limit(db: Connection) -> None:
    ids = add_jobs(db, 5, "few")
    assert claim_jobs(db) == []
    first = claim_in_lanes(db)
    assert [each.id for each in first] == ids[:2]
    assert claim_in_lanes(db) == []
    finish(db, first[:1], DONE)
    assert [each.id for each in claim_in_lanes(db)] == ids[2:3]


def test_each_key_has_a_lane_of_its_own(db: Connection) -> None:
    a, b = add_jobs(db, 3, "keyed", key="a"), add_jobs(db, 1, "keyed", key="b")
    assert sorted(each.id for each in claim_in_lanes(db)) == [a[0], b[0]]
    assert claim_in_lanes(db) == []


def test_both_limits_hold_together(db: Connection) -> None:
    for key in "abc":
        add_jobs(db, 4, "both", key=key)
    held = claim_in_lanes(db)
    assert len(held) == 3
    per_key = [each.job.key for each in held]
    assert all(per_key.count(key) <= 2 for key in "abc")


def test_keys_are_compared_byte_for_byte(db: Connection) -> None:
    for key in ("A", "a", "a ", "\N{LATIN SMALL LETTER E WITH ACUTE}", "e\N{COMBINING ACUTE ACCENT}"):
        add_jobs(db, 1, "keyed", key=key)
    assert len(claim_in_lanes(db)) == 5


def test_a_crashed_holder_keeps_its_slot_until_it_is_reclaimed_and_not_longer(db: Connection) -> None:
    ids = add_jobs(db, 3, "keyed", key="k")
    (held,) = claim_in_lanes(db)
    expire_jobs(db)
    assert claim_in_lanes(db) == []  # it may still be at it
    do(db, store.reclaim(CATALOG, limit=10))
    assert [each.id for each in claim_in_lanes(db)] == ids[1:2]
    assert claim_suspects(db) == []  # the crashed one has to wait for the slot as well
    assert finish(db, [held], DONE) == {held.id}


def test_jobs_of_a_lane_that_crashed_one_after_the_other_come_back_within_its_limits(db: Connection) -> None:
    for _ in range(3):  # each time another one crashes, as the lane is free while a suspect waits
        add_jobs(db, task="keyed", key="a")
        add_jobs(db, task="few")
        claim_in_lanes(db)
        expire_jobs(db)
        do(db, store.reclaim(CATALOG, limit=10))
    add_jobs(db)
    claim_jobs(db)
    expire_jobs(db)
    do(db, store.reclaim(CATALOG, limit=10))
    assert sorted(each.job.task for each in claim_suspects(db, batch=100)) == ["few", "few", "keyed", "plain"]
    assert claim_suspects(db, batch=100) == []


def test_jobs_of_several_lanes_that_crashed_come_back_within_the_limit_of_their_task(db: Connection) -> None:
    ids = [add_jobs(db, 1, "both", key=key)[0] for key in "abcde"]
    crashed = 0
    while crashed < len(ids):  # each time others crash, as suspects that wait use up nothing of the limit
        crashed += len(claim_in_lanes(db))
        expire_jobs(db)
        do(db, store.reclaim(CATALOG, limit=10))
    assert sorted(each.id for each in claim_suspects(db, batch=100)) == ids[:3]
    assert claim_suspects(db, batch=100) == []


def test_a_suspect_of_a_full_lane_stands_in_nobodys_way(db: Connection) -> None:
    add_jobs(db, task="keyed", key="a")
    claim_in_lanes(db)
    expire_jobs(db)
    do(db, store.reclaim(CATALOG, limit=10))
    add_jobs(db, task="keyed", key="a")
    claim_in_lanes(db)  # the lane is full again, and its suspect first in line
    add_jobs(db)
    held = claim_jobs(db)
    expire_jobs(db, [held[0].id])
    do(db, store.reclaim(CATALOG, limit=10))
    assert [each.job.task for each in claim_suspects(db, batch=1)] == ["plain"]


def test_a_full_lane_stands_in_nobodys_way(db: Connection) -> None:
    add_jobs(db, 300, "keyed", key="hot")
    claim_in_lanes(db)
    others = [add_jobs(db, 1, "keyed", key=f"key {n}")[0] for n in range(5)]
    assert sorted(each.id for each in claim_in_lanes(db, batch=10)) == others


def test_the_walk_through_the_lanes_goes_on_where_it_was_cut(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LANES_PER_LOOK", 4)
    for n in range(10):
        add_jobs(db, 2, "keyed", key=f"{n}")
    walk = LaneWalk()
    steps = [sorted(each.job.key or "" for each in claim_in_lanes(db, walk=walk)) for _ in range(3)]
    assert steps == [list("0123"), list("4567"), list("89")]
    assert walk.is_at_its_start


def test_two_workers_at_once_never_exceed_a_limit(url: str, db: Connection, way: str) -> None:
    add_jobs(db, 40, "few")
    workers = 2 if "pooled" in way else 6
    most: list[int] = []
    taken: list[int] = []
    stop = threading.Event()

    def work() -> None:
        with psycopg.connect(url, autocommit=True) as own:
            while not stop.is_set() and len(taken) < 40:
                found = do(own, store.claim_lanes(CATALOG, TERMS, "default", 5, LaneWalk()))
                if found.claimed:
                    most.append(value(own, "SELECT count(*) FROM outbox_job WHERE status = 'processing'"))
                    taken.extend(each.id for each in found.claimed)
                    finish(own, found.claimed, DONE)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    stop.set()
    assert sorted(taken) == sorted(set(taken))
    assert len(taken) == 40
    assert max(most) <= 2


# --- the table of transitions ----------------------------------------------------------------------------


def _hold(db: Connection, task: str = "plain", max_attempts: int = 12) -> ClaimedJob:
    add_jobs(db, task=task, max_attempts=max_attempts)
    return claim_one_job(db)


def _reclaim(db: Connection, _: ClaimedJob) -> None:
    expire_jobs(db)
    do(db, store.reclaim(CATALOG, limit=10))


def _over_the_limit(db: Connection, _: ClaimedJob) -> None:
    db.execute("UPDATE outbox_job SET max_attempts = attempts")
    claim_jobs(db)


_HELD: dict[Event, Any] = {
    Event.DELIVERED: lambda db, held: finish(db, [held], DONE),
    Event.RETRY: lambda db, held: finish(db, [held], ACTIONS["retry"]),
    Event.DEFER: lambda db, held: finish(db, [held], ACTIONS["defer"]),
    Event.RELEASE: lambda db, held: finish(db, [held], Release()),
    Event.CANCELLED: lambda db, held: finish(db, [held], ACTIONS["cut off"]),
    Event.PERMANENT_FAILURE: lambda db, held: finish(db, [held], ACTIONS["fail"]),
    Event.RECLAIM: _reclaim,
}


@pytest.mark.parametrize("event", list(_HELD))
def test_what_happens_to_a_held_job_is_what_the_table_says(db: Connection, event: Event) -> None:
    held = _hold(db)
    before = job_row(db, held.id)
    _HELD[event](db, held)
    _compare(db, before, JobState.PROCESSING, event)


@pytest.mark.parametrize(("task", "event"), [("plain", Event.REAP_CRASHED), ("manual", Event.REAP_UNKNOWN)])
def test_what_happens_to_a_lost_job_is_what_the_table_says(db: Connection, task: str, event: Event) -> None:
    held = _hold(db, task, max_attempts=1)
    before = job_row(db, held.id)
    _reclaim(db, held)
    _compare(db, before, JobState.PROCESSING, event)


def test_what_happens_to_a_queued_job_is_what_the_table_says(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    before = job_row(db, row_id)
    held = claim_one_job(db)
    _compare(db, before, JobState.QUEUED, Event.CLAIM)
    finish(db, [held], ACTIONS["release"])
    db.execute("UPDATE outbox_job SET attempts = 12")
    before = job_row(db, row_id)
    claim_jobs(db)
    _compare(db, before, JobState.QUEUED, Event.CLAIM_OVER_LIMIT)


def _compare(db: Connection, before: Any, state: JobState, event: Event) -> None:
    rule = JOB_TRANSITIONS[state, event]
    after = job_row(db, before.id)
    assert after.status == rule.to
    assert after.outcome == rule.outcome
    assert after.attempts == attempts_after(before.attempts, rule.attempts)
    assert (after.token != before.token) == rule.raises_token


# --- clean-up --------------------------------------------------------------------------------------------


def test_only_what_is_done_and_old_is_purged_in_bounded_steps(db: Connection) -> None:
    add_jobs(db, 8)
    held = claim_jobs(db)
    finish(db, held[:5], DONE)
    finish(db, held[5:6], ACTIONS["fail"])
    db.execute("UPDATE outbox_job SET finished_at = finished_at - interval '2 days' WHERE finished_at IS NOT NULL")
    finish(db, held[6:7], DONE)
    assert [JOBS.purge(db, timedelta(days=1), limit=3) for _ in range(3)] == [3, 2, 0]
    assert [each.status for each in all_jobs(db)] == ["failed", "done", "processing"]


def test_a_job_id_of_ones_own_is_kept(db: Connection) -> None:
    chosen = uuid4()
    JOBS.enqueue(db, "plain", {"a": [1, "x"]}, job_id=chosen, headers={"h": "v"})
    held = claim_one_job(db)
    assert (held.job.job_id, held.job.args, dict(held.job.headers)) == (chosen, {"a": [1, "x"]}, {"h": "v"})


# --- the ledger ------------------------------------------------------------------------------------------


def test_a_task_that_keeps_a_ledger_has_every_attempt_written_down_with_its_cause(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    kept = terms("w7", plain=TaskTerms(timedelta(seconds=60), ledger=True))
    assert kept.needs_transaction
    assert not TERMS.needs_transaction
    first = claim_one_job(db, kept)
    assert [(each.result, each.worker, each.token) for each in JOBS.attempts(db, row_id)] == [(None, "w7", "1")]
    expire_jobs(db)
    do(db, store.reclaim(CATALOG, limit=1))
    assert [each.result for each in JOBS.attempts(db, row_id)] == ["lost"]
    (second,) = do(db, store.claim_suspects(CATALOG, kept, "default")).claimed
    assert finish(db, [first], DONE) == {row_id}  # late: it had finished all the same
    assert finish(db, [second], DONE) == frozenset()
    assert finish(db, [second], DONE) == frozenset()  # its answer was lost
    late, good = JOBS.attempts(db, row_id)
    assert (late.result, late.lease_lost, late.cause) == ("completed", True, None)
    assert (good.result, good.lease_lost, good.cause, good.is_repeat) == ("completed", False, "lease_lost", True)


def test_a_claim_that_is_rolled_back_leaves_no_attempt(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    kept = terms("w7", plain=TaskTerms(timedelta(seconds=60), ledger=True))
    with db.transaction(force_rollback=True):
        run(store.claim(CATALOG, kept, "default", 1), driver_for(db).execute)
    assert JOBS.attempts(db, row_id) == []


def test_an_operator_and_a_holder_of_the_same_jobs_do_not_deadlock(db: Connection, db2: Connection) -> None:
    """A result of several kinds is several statements in one transaction, each over jobs of its own."""
    first, second = add_jobs(db, 2)
    held = claim_jobs(db, terms=terms(plain=TaskTerms(timedelta(seconds=60), ledger=True)))
    by_id = {each.id: each for each in held}
    finished = [Finished(by_id[second], DONE), Finished(by_id[first], Release())]
    execute = driver_for(db).execute

    def cancel() -> None:
        with db2.transaction():
            JOBS.cancel(db2, [first, second], actor="me")

    operator = threading.Thread(target=cancel)

    def interrupted(statement: Any) -> Any:
        rows = execute(statement)
        if operator.ident is None:
            operator.start()
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while operator.is_alive() and not value(db, waiting):
                pass
        return rows

    with db.transaction():
        lost = run(job_fenced.finalize(CATALOG, finished), interrupted)
    operator.join()
    assert lost == frozenset()
    assert [(row.status, row.outcome) for row in all_jobs(db)] == [("failed", "cancelled"), ("done", "completed")]


def test_each_claim_is_an_attempt_and_what_was_lost_too_often_is_left(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    claim_one_job(db)
    for attempt in (2, 3):
        expire_jobs(db)
        do(db, store.reclaim(CATALOG, limit=10))
        assert claim_suspects(db, max_reclaims=attempt - 2) == []
        (held,) = claim_suspects(db, max_reclaims=attempt - 1)
        assert (held.attempt, job_row(db, row_id).attempts) == (attempt, attempt)


def test_what_is_given_back_unstarted_keeps_the_error_of_its_last_attempt(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    finish(db, [claim_one_job(db)], ACTIONS["retry"])
    db.execute("UPDATE outbox_job SET available_at = now()")
    finish(db, [claim_one_job(db)], ACTIONS["release"])
    assert job_row(db, row_id).last_error == "retry"


def test_a_retry_comes_after_its_delay(db: Connection) -> None:
    (row_id,) = add_jobs(db)
    finish(db, [claim_one_job(db)], ACTIONS["retry"])
    assert 3 < job_row(db, row_id).due_in <= 5


def test_a_purge_keeps_what_is_not_old_enough(db: Connection) -> None:
    add_jobs(db, 2)
    finish(db, claim_jobs(db), DONE)
    first = value(db, "SELECT min(id) FROM outbox_job")
    db.execute("UPDATE outbox_job SET finished_at = now() - interval '90 min'")
    db.execute("UPDATE outbox_job SET finished_at = now() - interval '150 min' WHERE id = %s", [first])
    assert do(db, store.purge(CATALOG, older_than=timedelta(hours=2), limit=10)) == 1
    assert [each.id for each in all_jobs(db)] == [first + 1]
