"""The ledger: what stands in it of each attempt, whoever dies in between, and why there was another one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from fencepost import Outbox
from fencepost.core.ledger import AttemptResult, Begun, Cause, Ended, Kind
from fencepost.core.operation import run
from fencepost.core.outcome import Dead, Done, Expand, Release, Reschedule
from fencepost.core.states import Event, Outcome
from fencepost.drivers import driver_for
from fencepost.store import ledger
from fencepost.store.finalize import Decided, finalize, needs_transaction
from fencepost.store.upkeep import Purged
from tests.store.rows import (
    FINALIZES,
    OUTBOX,
    Connection,
    Write,
    add,
    claim,
    claim_one,
    expire,
    row,
    value,
)
from tests.store.test_plans import explained, nodes

DELIVERED, LOST, UNKNOWN = AttemptResult.DELIVERED, AttemptResult.LOST, AttemptResult.UNKNOWN
DAY = timedelta(days=1)

RESULTS = {
    "mark_done": DELIVERED,
    "retry": AttemptResult.FAILED,
    "defer": AttemptResult.DEFERRED,
    "mark_dead": AttemptResult.REFUSED,
    "release": AttemptResult.RELEASED,
    "release, attempt kept": UNKNOWN,
}


@pytest.fixture
def db(db: Connection) -> Connection:
    """A database whose queue ``default`` keeps a ledger."""
    OUTBOX.set_queue(db, "default", "ann", ledger=True)
    return db


def told(db: Connection, row_id: int) -> list[tuple[AttemptResult | None, bool, Cause | None]]:
    """Result, whether the lease was lost, and cause of each attempt at a row."""
    return [(each.result, each.lease_lost, each.cause) for each in OUTBOX.attempts(db, row_id)]


def rows(db: Connection) -> int:
    return int(value(db, "SELECT count(*) FROM outbox_attempt"))


def test_a_queue_without_one_writes_nothing(db: Connection) -> None:
    add(db, 3, queue="other")
    held = claim(db, queues=["other"])
    assert not any(each.ledger for each in held)
    OUTBOX.mark_done(db, held)
    assert rows(db) == 0


def test_an_attempt_is_under_way_until_its_end_is_written(db: Connection) -> None:
    (row_id,) = add(db)
    held = claim_one(db, owner="w1")
    (found,) = OUTBOX.attempts(db, row_id)
    assert (found.kind, found.row_id, found.token, found.queue) == (Kind.MESSAGE, row_id, "1", "default")
    assert (found.attempt, found.worker, found.result, found.ended_at, found.cause) == (1, "w1", None, None, None)
    OUTBOX.mark_done(db, held)
    (after,) = OUTBOX.attempts(db, held.message.message_id)
    assert (after.result, after.lease_lost, after.error) == (DELIVERED, False, None)
    assert after.ended_at is not None
    assert found.started_at == after.started_at <= after.ended_at


@pytest.mark.parametrize("name", RESULTS)
def test_the_end_says_what_the_holder_wrote(db: Connection, name: str) -> None:
    (row_id,) = add(db)
    held = claim(db)
    assert FINALIZES[name](db, held) == []
    assert told(db, row_id) == [(RESULTS[name], False, None)]
    before = value(db, "SELECT xmin::text FROM outbox_attempt")
    assert FINALIZES[name](db, held) == []  # as its answer was lost
    assert value(db, "SELECT xmin::text FROM outbox_attempt") == before


@pytest.mark.parametrize("write", list(FINALIZES.values()), ids=list(FINALIZES))
def test_the_end_stands_or_falls_with_the_result(db: Connection, write: Write) -> None:
    (row_id,) = add(db)
    held = claim(db)
    with db.transaction(force_rollback=True):
        write(db, held)
        assert told(db, row_id)[0][0] is not None
    assert told(db, row_id) == [(None, False, None)]


def test_a_claim_that_is_rolled_back_leaves_nothing(db: Connection) -> None:
    add(db)
    with db.transaction(force_rollback=True):
        assert OUTBOX.claim(db, "w1")
        assert rows(db) == 1
    assert rows(db) == 0


def test_a_worker_that_lost_its_lease_still_writes_its_own_end_and_nothing_else(db: Connection) -> None:
    (row_id,) = add(db)
    old = claim_one(db, owner="old")
    expire(db)
    new = claim_one(db, outbox=Outbox(), owner="new")
    assert told(db, row_id) == [(LOST, False, None), (None, False, Cause.WORKER_LOST)]
    before = row(db, row_id).xmin
    assert OUTBOX.mark_done(db, old) == [old]
    assert row(db, row_id).xmin == before
    assert OUTBOX.mark_done(db, new) == []
    assert told(db, row_id) == [(DELIVERED, True, None), (DELIVERED, False, Cause.LEASE_LOST)]
    assert [each.is_repeat for each in OUTBOX.attempts(db, row_id)] == [False, True]


def test_a_worker_that_is_gone_is_lost_whether_it_is_taken_over_or_buried(db: Connection) -> None:
    taken, buried = add(db, 2)
    claim(db)
    expire(db, [buried])
    OUTBOX.reap(db, max_attempts=1)
    expire(db, [taken])
    again = claim_one(db, outbox=Outbox(), owner="w2")
    OUTBOX.mark_done(db, again)
    assert told(db, buried) == [(LOST, False, None)]
    assert told(db, taken) == [(LOST, False, None), (DELIVERED, False, Cause.WORKER_LOST)]


def test_delivered_but_dead_is_told(db: Connection) -> None:
    (row_id,) = add(db)
    held = claim_one(db)
    expire(db)
    OUTBOX.reap(db, max_attempts=1)
    assert OUTBOX.mark_done(db, held) == [held]
    assert row(db, row_id).status == "dead"
    assert told(db, row_id) == [(DELIVERED, True, None)]


def test_an_operators_retry_is_a_cause_of_its_own(db: Connection) -> None:
    (row_id,) = add(db)
    OUTBOX.mark_dead(db, claim_one(db), error="no answer", outcome="unknown_outcome")
    assert OUTBOX.retry_dead(db, [row_id], actor="ann") == [row_id]
    OUTBOX.mark_done(db, claim_one(db))
    assert told(db, row_id) == [(UNKNOWN, False, None), (DELIVERED, False, Cause.OPERATOR_RETRY)]


def test_a_skip_is_no_retry_also_where_the_clock_was_stepped_back_before_it(db: Connection) -> None:
    (row_id,) = add(db)
    OUTBOX.reschedule(db, claim_one(db), delay=timedelta(0), error="no")
    OUTBOX.mark_dead(db, claim_one(db), error="never")
    assert OUTBOX.skip_dead(db, [row_id], actor="ann") == [row_id]
    db.execute("UPDATE outbox_audit SET at = (SELECT max(started_at) FROM outbox_attempt)")
    assert [cause for _, _, cause in told(db, row_id)] == [None, Cause.FAILED]


def test_what_was_given_back_in_between_explains_no_duplicate(db: Connection) -> None:
    (row_id,) = add(db)
    claim_one(db)
    expire(db)
    outbox = Outbox()
    OUTBOX.release(db, claim_one(db, outbox=outbox))
    OUTBOX.mark_done(db, claim_one(db, outbox=outbox))
    assert told(db, row_id) == [
        (LOST, False, None),
        (AttemptResult.RELEASED, False, Cause.WORKER_LOST),
        (DELIVERED, False, Cause.WORKER_LOST),
    ]


def test_out_of_turn_is_told(db: Connection) -> None:
    first, second = add(db, 2, ordering_key="k")
    one, two = claim(db)
    expire(db, [first])
    with db.transaction():
        claim_one(db, outbox=Outbox(), owner="other")
        assert OUTBOX.mark_done(db, [one, two]) == [one, two]
    assert told(db, first)[0] == (DELIVERED, True, None)
    assert told(db, second) == [(AttemptResult.OUT_OF_TURN, False, None)]


def test_a_mixed_batch_ends_as_it_was_decided(db: Connection) -> None:
    ids = add(db, 9)
    held = claim(db)
    expire(db, [ids[8]])
    claim_one(db, outbox=Outbox(), owner="other")
    decided: list[Decided] = [
        (held[0], Done()),
        (held[1], Done(verified=True)),
        (held[2], Reschedule(Event.RETRY, timedelta(0), "timed out", False, is_unknown=True)),
        (held[3], Reschedule(Event.RETRY, timedelta(0), "a\x00b", refund_attempt=False)),
        (held[4], Dead(Event.EXHAUST, Outcome.EXHAUSTED, "x" * 9_999)),
        (held[5], Dead(Event.UNKNOWN_OUTCOME, Outcome.UNKNOWN_OUTCOME, "who knows")),
        (held[6], Release()),
        (held[7], Expand(("a", "b"))),
        (held[8], Done()),
    ]
    assert needs_transaction(decided[:1])
    with db.transaction():
        found = run(finalize(OUTBOX.catalog, decided), driver_for(db).execute)
    assert found.lost == {ids[8]}
    assert [told(db, row_id)[0][0] for row_id in ids] == [
        "delivered",
        "verified",
        "unknown",
        "failed",
        "failed",
        "unclear",
        "released",
        "expanded",
        "delivered",
    ]
    assert OUTBOX.attempts(db, ids[3])[0].error == "a\\x00b"
    assert len(OUTBOX.attempts(db, ids[4])[0].error or "") < 1_100
    assert told(db, ids[8])[0] == (DELIVERED, True, None)


def test_an_expansion_that_has_to_wait_is_told_as_deferred(db: Connection, db2: Connection) -> None:
    (row_id,) = add(db, ordering_key="k")
    held = claim_one(db)
    with db2.transaction():
        OUTBOX.enqueue(db2, "e", 1, queue="kafka", ordering_key="k")
        with db.transaction():
            found = run(finalize(OUTBOX.catalog, [(held, Expand(("kafka",)))]), driver_for(db).execute)
    assert found.busy == {row_id}
    assert told(db, row_id) == [(AttemptResult.DEFERRED, False, None)]


def test_turned_off_what_is_held_still_gets_its_end(db: Connection) -> None:
    (row_id,) = add(db)
    held = claim_one(db)
    OUTBOX.set_queue(db, "default", "ann", ledger=False)
    OUTBOX.mark_done(db, held)
    assert told(db, row_id) == [(DELIVERED, False, None)]


def test_a_message_that_is_purged_leaves_its_attempts(db: Connection) -> None:
    (row_id,) = add(db)
    OUTBOX.mark_done(db, claim_one(db))
    assert OUTBOX.purge(db, timedelta(0)) == 1
    assert told(db, row_id) == [(DELIVERED, False, None)]
    add(db)
    held = claim_one(db)
    db.execute("DELETE FROM outbox")
    assert told(db, held.id) == [(LOST, False, None)]


def test_suspects_and_probes_are_written_down_too(db: Connection) -> None:
    (row_id,) = add(db)
    for n in range(3):
        claim_one(db, outbox=Outbox(), owner=f"w{n}")
        expire(db)
    assert [each.worker for each in OUTBOX.attempts(db, row_id)] == ["w0", "w1", "w2"]
    assert [each.attempt for each in OUTBOX.attempts(db, row_id)] == [1, 2, 3]


def test_attempts_at_jobs_go_by_the_same_operations(db: Connection) -> None:
    """Their token there is the job's fence, and a job with the id of a message is another row."""
    token = "1"  # noqa: S105 - a fencing token is a number, not a secret
    job = value(
        db,
        "INSERT INTO outbox_job (task, status, attempts, attempt_token, fence, reserved_by, reserved_at,"
        " heartbeat_at, lease_expires_at)"
        " VALUES ('t', 'processing', 1, %s, 1, 'w', now(), now(), now()) RETURNING id",
        [uuid4()],
    )
    execute = driver_for(db).execute
    run(ledger.open_attempts(OUTBOX.catalog, Kind.JOB, [Begun(job, token, "default", 1, "w")]), execute)

    def found() -> list[tuple[str, AttemptResult | None]]:
        listed = run(ledger.attempts(OUTBOX.catalog, Kind.JOB, [job]), execute)
        return [(each.token, each.result) for each in listed]

    assert found() == [(token, None)]
    assert OUTBOX.attempts(db, job) == []
    db.execute("UPDATE outbox_job SET attempt_token = %s, fence = 2", [uuid4()])
    assert found() == [(token, LOST)]
    # A failover that lost commits handed out the same job and fence again: this one is of before.
    stale = Ended(job, token, "lost", AttemptResult.FAILED, lease_lost=True)
    run(ledger.close_attempts(OUTBOX.catalog, Kind.JOB, [stale]), execute)
    assert found() == [(token, LOST)]
    ended = Ended(job, token, "w", AttemptResult.COMPLETED, lease_lost=True)
    for _ in range(2):
        run(ledger.close_attempts(OUTBOX.catalog, Kind.JOB, [ended]), execute)
    assert found() == [(token, AttemptResult.COMPLETED)]


# --- purge -----------------------------------------------------------------------------------------------


def test_a_purge_goes_in_bounded_steps_from_the_oldest_on_and_ends(db: Connection) -> None:
    add(db, 10)
    claim(db)
    db.execute(
        "UPDATE outbox_attempt SET started_at = started_at -"
        " CASE WHEN row_id % 5 <> 0 THEN interval '31 days' ELSE interval '29 days' END"
    )
    old = value(db, "SELECT count(*) FROM outbox_attempt WHERE started_at < now() - interval '30 days'")
    execute, steps = driver_for(db).execute, list[int]()
    step = Purged(0, 0)
    while step.after is not None:
        step = run(ledger.purge(OUTBOX.catalog, older_than=30 * DAY, limit=3, after=step.after), execute)
        steps.append(step.deleted)
        assert step.deleted <= 3
    assert sum(steps) == old == 8
    assert rows(db) == 2


def test_a_purge_passes_by_what_somebody_is_at(db: Connection, db2: Connection) -> None:
    add(db, 4)
    held = claim(db)
    db.execute("UPDATE outbox_attempt SET started_at = started_at - interval '31 days'")
    with db2.transaction():
        OUTBOX.mark_done(db2, held[:1])
        step = run(ledger.purge(OUTBOX.catalog, older_than=30 * DAY, limit=10), driver_for(db).execute)
        assert step.deleted == 3
    assert told(db, held[0].id) == [(DELIVERED, False, None)]


# --- at depth --------------------------------------------------------------------------------------------

DEPTH = 30_000
IDS = list(range(DEPTH // 2, DEPTH // 2 + 20))
"""Few enough that looking each up costs clearly less than these few pages, also by the statistics of an empty
table, which an autovacuum may have counted just before. (For 200 the planner may well read all of them once.)"""
STATEMENTS: dict[str, dict[str, Any]] = {
    "ledger_close": {
        "ids": IDS,
        "tokens": ["1"] * len(IDS),
        "workers": ["w"] * len(IDS),
        "results": ["delivered"] * len(IDS),
        "errors": [None] * len(IDS),
        "lost": [False] * len(IDS),
    },
    "ledger_list": {"ids": IDS[:3], "limit": 100},
    "ledger_purge": {"older_than": 60.0, "after": 0, "limit": 200},
}


@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_what_is_asked_of_it_does_not_grow_with_it(db: Connection, mode: str) -> None:
    db.execute("ALTER TABLE outbox_attempt SET (autovacuum_enabled = off)")  # it would count rows in mid-insert
    db.execute(
        "INSERT INTO outbox_attempt (kind, row_id, token, queue, attempt, worker, started_at)"
        " SELECT 'message', n, '1', 'default', 1, 'w', now() - interval '1 hour'"
        f" FROM generate_series(1, {DEPTH}) n"
    )
    for analyzed in (False, True):
        if analyzed:
            db.execute("ANALYZE outbox_attempt")
        for name, params in STATEMENTS.items():
            sql = OUTBOX.catalog.statement(name).sql
            plan = explained(db, sql, {"kind": "message", **params}, mode)
            shown = f"{name}, analyzed {analyzed}: {plan}"
            scans = [node for node in nodes(plan) if node.get("Relation Name") == "outbox_attempt"]
            assert scans, shown
            assert not [node for node in scans if node["Node Type"] == "Seq Scan"], shown
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 6_000, shown
