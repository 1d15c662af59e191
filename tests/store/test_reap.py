"""Reaping: what becomes of expired messages that nobody may take over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import ConfigError, Outbox
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, claim_one, expire, row


def test_claimed_three_times_without_a_finalize_it_is_dead_after_exactly_three(db: Connection) -> None:
    (row_id,) = add(db)
    outbox, claims = Outbox(), 0
    for _ in range(10):
        claims += len(claim(db, outbox=outbox, owner=f"w{claims}", max_attempts=3))
        assert OUTBOX.reap(db, max_attempts=3) == 0
        expire(db)
        if claims == 3:
            break
    assert claim(db, outbox=outbox, max_attempts=3) == []
    assert claims == 3
    before = row(db, row_id)
    assert OUTBOX.reap(db, max_attempts=3) == 1
    seen = row(db, row_id)
    assert (seen.status, seen.outcome, seen.attempts) == ("dead", "crashed", 3)
    assert seen.token == before.token + 1
    assert seen.lease_left is None
    assert seen.last_error is not None
    assert "w2" in seen.last_error
    assert "crash" in seen.last_error
    for limit in (3, 100):
        assert claim(db, outbox=outbox, max_attempts=limit) == []
        assert OUTBOX.reap(db, max_attempts=limit) == 0


def test_recovery_by_hand_leaves_an_unknown_outcome_to_a_person(db: Connection) -> None:
    manual, auto = *add(db, recovery="manual"), *add(db)
    held = claim(db)
    assert [str(each.recovery) for each in held] == ["manual", "auto"]
    expire(db)
    outbox = Outbox()
    assert [each.id for each in [*claim(db, outbox=outbox), *claim(db, outbox=outbox)]] == [auto]
    assert OUTBOX.reap(db) == 1
    seen = row(db, manual)
    assert (seen.status, seen.outcome, seen.attempts, seen.token) == ("dead", "unknown_outcome", 1, 2)
    assert row(db, auto).status == "processing"


def test_what_is_to_be_verified_is_taken_over_and_left_to_a_person_at_the_limit(db: Connection) -> None:
    (row_id,) = add(db, recovery="verify")
    first = claim_one(db, max_attempts=2)
    expire(db)
    assert OUTBOX.reap(db, max_attempts=2) == 0
    second = claim_one(db, outbox=Outbox(), max_attempts=2)
    assert (first.is_to_verify, second.is_to_verify) == (False, True)
    expire(db)
    assert claim(db, outbox=Outbox(), max_attempts=2) == []
    assert OUTBOX.reap(db, max_attempts=2) == 1
    seen = row(db, row_id)
    assert (seen.status, seen.outcome, seen.attempts) == ("dead", "unknown_outcome", 2)
    assert OUTBOX.retry_dead(db, [row_id], actor="ann") == [row_id]
    assert not claim_one(db).is_to_verify  # a person has decided


def test_a_plain_insert_may_ask_for_any_policy_and_for_no_other(db: Connection) -> None:
    for policy in ("auto", "manual", "verify"):
        db.execute("INSERT INTO outbox (event_type, payload, recovery_policy) VALUES ('e', '1', %s)", [policy])
    assert [str(each.recovery) for each in claim(db)] == ["auto", "manual", "verify"]
    with pytest.raises(psycopg.errors.CheckViolation, match="shape"):
        db.execute("INSERT INTO outbox (event_type, payload, recovery_policy) VALUES ('e', '1', 'maybe')")


def test_a_manual_message_whose_worker_answered_is_like_any_other(db: Connection) -> None:
    add(db, recovery="manual")
    OUTBOX.reschedule(db, claim_one(db), delay=timedelta(0), error="refused, surely not delivered")
    assert OUTBOX.mark_done(db, claim_one(db)) == []


def test_the_worker_that_was_reaped_cannot_write_any_more(db: Connection) -> None:
    add(db, 2)
    held = claim(db)
    expire(db)
    assert OUTBOX.reap(db, max_attempts=1) == 2
    before = all_rows(db)
    assert OUTBOX.mark_done(db, held) == held
    # Not even the same target may pass for its own work: the token was raised.
    assert OUTBOX.mark_dead(db, held, error="x", outcome="crashed") == held
    assert OUTBOX.heartbeat(db, held) == held
    assert [each.xmin for each in all_rows(db)] == [each.xmin for each in before]


def test_a_live_lease_and_a_row_with_attempts_left_are_not_touched(db: Connection) -> None:
    live, retryable, pending = add(db, 3)
    claim(db, batch=2)
    expire(db, [retryable])
    db.execute("UPDATE outbox SET attempts = 50 WHERE id = ANY (%s)", [[live, pending]])
    before = all_rows(db)
    assert OUTBOX.reap(db, max_attempts=12) == 0
    assert [each.xmin for each in all_rows(db)] == [each.xmin for each in before]


def test_a_queues_own_limit_counts_before_that_of_whoever_reaps(db: Connection) -> None:
    for name in ("strict", "patient", "plain"):
        add(db, queue=name)
    OUTBOX.set_queue(db, "strict", "ann", max_attempts=1)
    OUTBOX.set_queue(db, "patient", "ann", max_attempts=5)
    claim(db)
    expire(db)
    assert OUTBOX.reap(db, max_attempts=1) == 2
    assert [each.status for each in all_rows(db)] == ["dead", "processing", "dead"]


def test_one_step_moves_at_most_its_limit_and_the_next_one_goes_on(db: Connection) -> None:
    for name in ("a", "b"):
        add(db, 5, queue=name)
    claim(db)
    expire(db)
    assert [OUTBOX.reap(db, max_attempts=1, limit=4) for _ in range(4)] == [4, 4, 2, 0]


def test_only_the_named_queues_are_reaped(db: Connection) -> None:
    for name in ("a", "b"):
        add(db, 2, queue=name)
    claim(db)
    expire(db)
    assert OUTBOX.reap(db, max_attempts=1, queues=[]) == 0
    assert OUTBOX.reap(db, max_attempts=1, queues=["b", "nobody"]) == 2
    assert [each.status for each in all_rows(db)] == ["processing"] * 2 + ["dead"] * 2


def test_a_row_that_its_holder_is_finalizing_is_left_alone_without_waiting(
    db: Connection, db2: Connection
) -> None:
    add(db, 2)
    held = claim(db)
    expire(db)
    db2.execute("SET lock_timeout = '2s'; SET statement_timeout = '5s'")
    with db.transaction():
        assert OUTBOX.mark_done(db, held[0]) == []
        assert OUTBOX.reap(db2, max_attempts=1) == 1
    assert [each.status for each in all_rows(db)] == ["done", "dead"]
    assert OUTBOX.reap(db2, max_attempts=1) == 0


def test_the_error_of_an_earlier_attempt_is_kept(db: Connection) -> None:
    (row_id,) = add(db)
    OUTBOX.reschedule(db, claim_one(db), delay=timedelta(0), error="boom " * 5_000)
    claim_one(db, owner="w" * 5_000)
    expire(db)
    assert OUTBOX.reap(db, max_attempts=2) == 1
    error = row(db, row_id).last_error
    assert error is not None
    assert len(error) <= 4_000
    db.execute(
        "UPDATE outbox SET last_error = 'boom', status = 'processing', dead_at = NULL, outcome = NULL,"
        " available_at = now(), lease_owner = 'w', lease_until = now() - interval '1 s'"
    )
    assert OUTBOX.reap(db, max_attempts=2) == 1
    error = row(db, row_id).last_error
    assert error is not None
    assert error.endswith("\nbefore: boom")


@pytest.mark.parametrize("terms", [{"max_attempts": 0}, {"limit": 0}, {"limit": -1}])
def test_terms_that_cannot_work_are_refused(db: Connection, terms: dict[str, Any]) -> None:
    add(db)
    claim(db)
    expire(db)
    with pytest.raises(ConfigError):
        OUTBOX.reap(db, **terms)
    assert all_rows(db)[0].status == "processing"
