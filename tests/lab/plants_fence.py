"""Violations of leases, tokens, attempts, order and states: the state table, I2 to I5, I7, I9, I10, I12."""

from __future__ import annotations

from datetime import timedelta

from tests.lab.case import Case, later, planted
from tests.lab.small_run import OUTBOX

AUDITED = """
    WITH changed AS (UPDATE outbox SET {} WHERE id = %s RETURNING id, message_id)
    INSERT INTO outbox_audit (actor, action, outbox_id, message_id, before)
    SELECT 'ann', '{}', id, message_id, '{{}}' FROM changed
"""
RETRIED = (
    "status = 'pending', outcome = NULL, dead_at = NULL, available_at = statement_timestamp(), attempts = 0,"
    " reclaim_count = 0"
)
BURIED = "status = 'dead', dead_at = statement_timestamp(), lease_until = NULL, available_at = '9999-12-31T00:00Z'"


@planted("table")
def one_that_is_left_to_a_person_is_taken_over(case: Case) -> None:
    (row_id,) = case.run.enqueue("x", recovery="manual")
    case.run.until_expired(case.run.claim("x"))
    case.take(row_id, reclaims=1)


@planted("table")
def one_is_released_to_blocked(case: Case) -> None:
    (row_id,) = case.run.enqueue("x", key="x")
    case.run.enqueue("x", key="x")
    held = case.run.claim("x")
    case.sql(
        "UPDATE outbox SET status = 'blocked', lease_until = NULL, available_at = '9999-12-31T00:00Z'"
        " WHERE id = %s",
        held[1].id,
    )
    case.give_back(row_id)


@planted("table")
def one_is_inserted_in_the_middle_of_its_life(case: Case) -> None:
    case.sql(
        "INSERT INTO outbox (queue, event_type, payload, status, attempts, lease_version, lease_owner,"
        " lease_until) VALUES ('x', 'order.created', '{}', 'processing', 1, 1, 'w1',"
        " clock_timestamp() + interval '0.2 s')"
    )


@planted("table")
def a_takeover_is_not_counted(case: Case) -> None:
    (row_id,) = case.run.enqueue("x")
    case.run.until_expired(case.run.claim("x"))
    case.take(row_id, reclaims=0)


@planted("I2")
def a_stale_write_touches_its_row(case: Case) -> None:
    (stale,) = case.find("stale")
    case.change([stale], after=stale["after"] | {"xmin": "1"})


@planted("I2")
def a_stale_holder_is_told_that_all_is_well(case: Case) -> None:
    case.change(case.find("stale"), reported="held")


@planted("I2")
def one_that_was_given_back_is_finished_by_its_token_alone(case: Case) -> None:
    (row_id,) = case.run.enqueue("x")
    held = case.run.claim("x")
    case.run.publish(held)
    case.give_back(row_id)
    case.finish(row_id)


@planted("I2")
def a_stale_worker_finishes_for_its_successor(case: Case) -> None:
    (row_id,) = case.run.enqueue("x")
    with case.run.fault("sigstop", "w1"):
        held = case.run.claim("x")
        case.run.publish(held)
        case.run.until_expired(held)
        case.run.publish(case.run.claim("x", "w2"), "w2", result=None)
    case.finish(row_id)


@planted("I2")
def a_stale_worker_gives_back_what_its_successor_publishes(case: Case) -> None:
    (row_id,) = case.run.enqueue("x")
    with case.run.fault("sigstop", "w1"):
        held = case.run.claim("x")
        case.run.publish(held, result="retryable", arrives=False)
        case.run.until_expired(held)
        held = case.run.claim("x", "w2")
        case.run.publish(held, "w2", result="retryable", arrives=False)
    case.give_back(row_id)
    # As if w2 had gone on for a while: its end comes 100 ms after the write, its start 100 ms before.
    case.move(case.played("publish_start")[-1], -0.1)
    case.move(case.played("publish_end")[-1], 0.1)


@planted("I3", "I7")
def attempts_are_not_counted(case: Case) -> None:
    (row_id,) = case.run.enqueue("x")
    (held,) = case.run.claim("x")
    for token in range(1, 5):
        case.run.publish([held._replace(token=token)], result="retryable", arrives=False)
        case.give_back(row_id)
        case.take(row_id, charge=0, owner="w1")


@planted("I3", "I9", "I15")
def one_claim_is_published_over_and_over(case: Case) -> None:
    started = case.find("publish_start", message_id=case.of("late"))
    for _ in range(3):
        case.again(started)


@planted("I4")
def a_key_arrives_out_of_order(case: Case) -> None:
    first, second = (case.find("accepted", message_id=case.of("ordered", nth))[0] for nth in (0, 1))
    case.change([first], at=second.at + 1)


@planted("I4")
def a_key_is_finalized_out_of_order(case: Case) -> None:
    case.run.enqueue("x", 2, key="x")
    held = case.run.claim("x")
    case.run.publish(held)
    for each in reversed(held):
        case.finish(each.id)


@planted("I4")
def one_is_claimed_while_its_predecessor_is_published(case: Case) -> None:
    case.run.enqueue("x", 2, key="x")
    (held,) = case.run.claim("x", batch=1)
    case.take(held.id + 1)


@planted("I4")
def one_is_claimed_past_a_dead_head(case: Case) -> None:
    case.take(case.marks["stuck"][1])


@planted("I4")
def ids_are_not_in_the_order_of_commits(case: Case) -> None:
    first, second = case.of("ordered", 0), case.of("ordered", 1)
    case.sql("UPDATE lab.business SET number = 3 - number WHERE message_id IN (%s, %s)", first, second)


@planted("I5")
def one_is_blocked_by_nothing(case: Case) -> None:
    (row_id,) = case.run.enqueue("x", key="x")
    _park_and_promote(case, row_id)


@planted("I5")
def a_dead_head_blocks_the_same_key_of_another_queue(case: Case) -> None:
    (row_id,) = case.run.enqueue("x", key="stuck")
    _park_and_promote(case, row_id)


@planted("I7")
def a_claim_is_not_charged(case: Case) -> None:
    case.run.enqueue("x")
    held = case.run.claim("x")
    OUTBOX.reschedule(case.db, held, timedelta(0), "failed")
    case.take(held[0].id, charge=0)


@planted("I7")
def an_attempt_is_given_back_twice(case: Case) -> None:
    case.run.enqueue("x")
    for _ in range(2):
        held = case.run.claim("x")
        OUTBOX.reschedule(case.db, held, timedelta(0), "failed")
    held = case.run.claim("x")
    case.give_back(held[0].id, refund=2)


@planted("I7")
def one_is_claimed_past_its_limit(case: Case) -> None:
    (row_id,) = case.run.enqueue("x")
    for _ in range(3):
        OUTBOX.reschedule(case.db, case.run.claim("x"), timedelta(0), "failed")
    case.take(row_id)


@planted("I7")
def one_is_exhausted_before_its_limit(case: Case) -> None:
    (row_id,) = case.run.enqueue("x", bad="failing")
    case.sql(f"UPDATE outbox SET {BURIED}, outcome = 'exhausted', lease_version = 1 WHERE id = %s", row_id)


@planted("I7")
def one_is_called_exhausted_after_its_first_attempt(case: Case) -> None:
    case.run.enqueue("x", bad="failing")
    case.run.publish(case.run.claim("x"), result="retryable", arrives=False)
    case.sql(f"UPDATE outbox SET {BURIED}, outcome = 'exhausted' WHERE queue = 'x'")


@planted("I7")
def one_is_reaped_after_its_first_attempt(case: Case) -> None:
    case.run.enqueue("x", bad="failing")
    held = case.run.claim("x")
    case.run.publish(held, result=None)
    case.run.until_expired(held)
    case.sql(f"UPDATE outbox SET {BURIED}, outcome = 'crashed', lease_version = 2 WHERE queue = 'x'")


@planted("I9", "I1", "I15")
def one_is_published_for_another_queue(case: Case) -> None:
    case.change(case.find("publish_start", message_id=case.of("late")), queue="elsewhere")


@planted("I9")
def one_is_published_as_another_attempt(case: Case) -> None:
    case.change(case.find("publish_start", message_id=case.of("late")), attempt=2)


@planted("I9")
def a_process_that_has_ended_publishes(case: Case) -> None:
    (start,) = case.find("publish_start", message_id=case.of("killed"), token=1)
    case.change(case.find("exit", of="killed"), at=start.at - 1)


@planted("I9")
def one_is_published_before_it_is_claimed(case: Case) -> None:
    (start,) = case.find("publish_start", message_id=case.of("late"))
    case.change([start], at=start.at - 3_000_000_000)
    (intent,) = case.find("enqueue", message_id=case.of("late"))
    case.change([intent], at=intent.at - 3_000_000_000)


@planted("I9")
def a_claim_keeps_the_token(case: Case) -> None:
    (row_id,) = case.run.enqueue("x")
    OUTBOX.reschedule(case.db, case.run.claim("x"), timedelta(0), "failed")
    case.take(row_id, token=0)


@planted("I9")
def a_live_lease_is_taken(case: Case) -> None:
    (row_id,) = case.run.enqueue("x")
    case.run.claim("x", lease=1.0)
    case.take(row_id, reclaims=1)


@planted("I9", "I7")
def a_live_lease_is_reaped(case: Case) -> None:
    (row_id,) = case.run.enqueue("x", bad="slow")
    case.run.claim("x", lease=1.0)
    case.sql(f"UPDATE outbox SET {BURIED}, outcome = 'crashed', lease_version = 2 WHERE id = %s", row_id)


@planted("I9", "I7")
def a_reaper_keeps_the_token(case: Case) -> None:
    (row_id,) = case.run.enqueue("x", bad="slow")
    case.run.until_expired(case.run.claim("x"))
    case.sql(f"UPDATE outbox SET {BURIED}, outcome = 'crashed' WHERE id = %s", row_id)


@planted("I9")
def an_operators_retry_keeps_the_token(case: Case) -> None:
    case.sql(AUDITED.format(RETRIED, "retry"), case.marks["poison"][0])


@planted("I9", "I15")
def two_publish_under_one_token(case: Case) -> None:
    case.again(case.find("publish_start", message_id=case.of("late")), process="w2")


@planted("I9")
def one_publishes_what_another_one_claimed(case: Case) -> None:
    case.change(case.find("publish_start", message_id=case.of("late")), owner="w2")


@planted("I9", "I15")
def one_publishes_under_a_token_that_nobody_was_given(case: Case) -> None:
    for kind in ("publish_start", "publish_end", "accepted"):
        case.change(case.find(kind, message_id=case.of("failing"), token=1), token=0)


@planted("I10")
def a_takeover_comes_late(case: Case) -> None:
    # As if the lease had ended three seconds earlier than it did, and w2 had stood idle all the while.
    for column in ("old", "new"):
        case.sql(
            f"UPDATE lab.message_history SET {column} = jsonb_set({column}, '{{lease_until}}',"
            f" to_jsonb(({column}->>'lease_until')::bigint - 3000000))"
            f" WHERE id = %s AND {column}->>'token' = '1' AND {column}->>'lease_until' IS NOT NULL",
            case.marks["killed"][0],
        )
    case.drop(line for line in case.lines if line.kind == "ready" and line.process == "w1")
    (ready,) = case.find("ready", process="w2")
    case.change([ready], at=ready.at - 10_000_000_000)


@planted("I10", "I1")
def nobody_takes_it_over(case: Case) -> None:
    case.run.enqueue("x")
    case.run.claim("x")
    case.drained_in = case.ends_in = 10.0


@planted("I10")
def a_lease_is_longer_than_was_said(case: Case) -> None:
    case.run.enqueue("x")
    OUTBOX.claim(case.db, "w1", queues=["x"], lease=timedelta(seconds=30), max_attempts=3)


@planted("I10")
def a_lease_is_renewed_for_a_dead_worker(case: Case) -> None:
    case.add("conductor", "start", at=later(-4), of="gone", pid=1, role="worker", owner="gone")
    case.add("gone", "ready", at=later(-4))
    case.add("conductor", "fault", at=later(-3), fault_id=99, fault="sigkill", target="gone")
    case.run.enqueue("x")
    case.run.claim("x", "gone")


@planted("I12")
def a_done_one_is_put_back_by_hand(case: Case) -> None:
    case.drained_in = None  # it would count as left lying, since it has been due for long
    case.sql(
        "UPDATE outbox SET status = 'pending', outcome = NULL, done_at = NULL WHERE id = %s", case.marks["late"][0]
    )


@planted("I12")
def the_outcome_of_a_done_one_changes(case: Case) -> None:
    case.sql("UPDATE outbox SET outcome = 'skipped' WHERE id = %s", case.marks["late"][0])


@planted("I12")
def a_dead_one_is_retried_by_hand(case: Case) -> None:
    case.sql(
        f"UPDATE outbox SET {RETRIED}, lease_version = lease_version + 1 WHERE id = %s", case.marks["poison"][0]
    )


@planted("I12")
def a_dead_one_is_skipped_by_hand(case: Case) -> None:
    case.sql(
        "UPDATE outbox SET status = 'done', outcome = 'skipped', done_at = statement_timestamp(),"
        " lease_version = lease_version + 1 WHERE id = %s",
        case.marks["poison"][0],
    )


@planted("I12")
def an_audit_is_gone(case: Case) -> None:
    case.sql("DELETE FROM outbox_audit WHERE action = 'retry'")


def _park_and_promote(case: Case, row_id: int) -> None:
    case.sql("UPDATE outbox SET status = 'blocked', available_at = '9999-12-31T00:00Z' WHERE id = %s", row_id)
    case.sql("UPDATE outbox SET status = 'pending', available_at = created_at WHERE id = %s", row_id)
