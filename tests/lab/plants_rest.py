"""Violations of transactions and duplicates, I14 and I15, and of the rules of jobs."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import psycopg

from tests.lab.case import Case, planted
from tests.lab.small_run import OUTBOX


@planted("I14")
def a_message_is_published_within_its_claims_transaction(case: Case) -> None:
    case.run.enqueue("x")
    with case.db.transaction():
        held = case.run.claim("x")
        case.run.publish(held)
    case.run.done(held)


@planted("I14")
def a_result_is_written_before_it_is_known(case: Case) -> None:
    case.run.enqueue("x")
    held = case.run.claim("x")
    with case.db.transaction():
        OUTBOX.mark_done(case.db, held)
        case.run.publish(held)


@planted("I14")
def a_row_is_locked_while_it_is_published(case: Case) -> None:
    case.run.enqueue("x")
    held = case.run.claim("x")
    with psycopg.connect(case.url) as other:
        other.execute("SELECT FROM outbox WHERE queue = 'x' FOR SHARE")
        case.run.publish(held, samples=3)
    case.run.done(held)


@planted("I14")
def a_transaction_stands_idle(case: Case) -> None:
    row = {"pid": 1, "application": "fencepost claim", "state": "idle in transaction", "xid": None}
    case.add("sampler", "sample", asked=time.monotonic_ns(), open=[row | {"open_for": 9.0, "in_state_for": 9.0}])


@planted("I15")
def a_worker_lost_its_lease_for_no_reason(case: Case) -> None:
    case.drop(case.find("fault", fault="sigkill"))


@planted("I15")
def a_worker_publishes_long_after_its_lease(case: Case) -> None:
    case.run.enqueue("x")
    held = case.run.claim("x")
    case.run.until_expired(held)
    case.run.deliver("x", "w2")
    case.run.one("SELECT pg_sleep(0.05)")
    case.run.publish(held)


@planted("I15")
def a_failure_arrived_for_no_reason(case: Case) -> None:
    case.change(case.find("accepted", acknowledged=False), acknowledged=True)


@planted("I15")
def one_attempt_arrives_twice(case: Case) -> None:
    case.again(case.find("accepted", message_id=case.of("late")))


@planted("I15")
def one_arrives_under_a_token_that_nobody_published(case: Case) -> None:
    case.again(case.find("accepted", message_id=case.of("late")), token=9)


@planted("I15")
def a_delivered_one_is_given_back(case: Case) -> None:
    case.run.enqueue("x")
    held = case.run.claim("x")
    case.run.publish(held)
    OUTBOX.reschedule(case.db, held, timedelta(0), "forgotten")
    case.run.deliver("x")


@planted("I15")
def one_is_cancelled_for_no_reason(case: Case) -> None:
    case.run.enqueue("x")
    held = case.run.claim("x")
    case.run.publish(held, result="cancelled")
    OUTBOX.reschedule(case.db, held, timedelta(0), "cancelled")
    case.run.deliver("x")


@planted("ledger")
def the_ledger_tells_of_an_attempt_that_never_was(case: Case) -> None:
    case.sql("UPDATE outbox_attempt SET token = '7' WHERE row_id = %s", case.marks["plain"][0])


@planted("ledger")
def the_ledger_calls_a_lost_attempt_delivered(case: Case) -> None:
    case.sql(
        "INSERT INTO outbox_attempt (kind, row_id, token, queue, attempt, worker, ended_at, result)"
        " VALUES ('message', %s, '1', 'killed', 1, 'killed', now(), 'delivered')",
        case.marks["killed"][0],
    )


@planted("ledger")
def the_ledger_calls_a_delivered_attempt_failed(case: Case) -> None:
    case.sql("UPDATE outbox_attempt SET result = 'failed' WHERE row_id = %s", case.marks["plain"][0])


# --- jobs ------------------------------------------------------------------------------------------------------

EXPIRED = "lease_expires_at = NULL, reserved_at = NULL"


@planted("J1")
def a_job_is_gone(case: Case) -> None:
    case.sql(
        "ALTER TABLE outbox_job DISABLE TRIGGER USER; DELETE FROM outbox_job WHERE id = {};"
        "ALTER TABLE outbox_job ENABLE TRIGGER USER".format(case.marks["job waiting"][0])
    )


@planted("J1")
def a_job_came_behind_everybody(case: Case) -> None:
    case.sql(
        "ALTER TABLE outbox_job DISABLE TRIGGER USER; INSERT INTO outbox_job (task) VALUES ('plain');"
        "ALTER TABLE outbox_job ENABLE TRIGGER USER"
    )


@planted("J1")
def a_job_is_started_before_it_is_enqueued(case: Case) -> None:
    (start, *_) = case.find("job_start", id=case.marks["job plain"][0])
    case.change(case.find("job_enqueue", job_id=start["job_id"]), at=start.at + 1)


@planted("J1", "J3", "J4")
def a_rolled_back_job_runs(case: Case) -> None:
    (line,) = case.find("job_rollback")
    about: dict[str, Any] = {"job_id": line["job_ids"][0], "id": 9999, "fence": 1, "attempt": 1}
    case.add("w1", "job_start", **about, owner="w1", task="plain")


@planted("J2")
def a_job_is_done_without_a_claim(case: Case) -> None:
    case.sql(
        "UPDATE outbox_job SET status = 'done', outcome = 'completed', finished_at = now() WHERE id = %s",
        case.marks["job waiting"][0],
    )


def _claim_job(case: Case, row_id: int, charge: int = 1, is_new: bool = True) -> None:
    token = "gen_random_uuid()" if is_new else "attempt_token"
    case.sql(
        f"UPDATE outbox_job SET status = 'processing', attempts = attempts + {charge}, fence = fence + 1,"
        f" attempt_token = {token}, reserved_by = 'w1', reserved_at = now(), heartbeat_at = now(),"
        " lease_expires_at = clock_timestamp() + interval '0.8 s' WHERE id = %s",
        row_id,
    )


@planted("J3")
def a_job_is_not_charged(case: Case) -> None:
    row_id = case.marks["job waiting"][0]
    _claim_job(case, row_id)
    case.sql(f"UPDATE outbox_job SET status = 'queued', {EXPIRED} WHERE id = %s", row_id)
    _claim_job(case, row_id, charge=0)


@planted("J4")
def a_job_is_claimed_under_its_old_token(case: Case) -> None:
    row_id = case.marks["job waiting"][0]
    _claim_job(case, row_id)
    case.sql(f"UPDATE outbox_job SET status = 'queued', {EXPIRED} WHERE id = %s", row_id)
    _claim_job(case, row_id, is_new=False)


@planted("J4")
def a_live_job_is_taken_back(case: Case) -> None:
    row_id = case.marks["job waiting"][0]
    _claim_job(case, row_id)
    case.sql(
        f"UPDATE outbox_job SET status = 'queued', {EXPIRED}, attempt_token = gen_random_uuid(),"
        " reclaim_count = reclaim_count + 1 WHERE id = %s",
        row_id,
    )


@planted("J4")
def a_job_runs_twice_under_one_fence(case: Case) -> None:
    case.again(case.find("job_start", id=case.marks["job lost"][0], fence=2))


@planted("J4")
def a_job_runs_under_a_fence_that_no_claim_gave(case: Case) -> None:
    case.change(case.find("job_start", id=case.marks["job lost"][0], fence=1), fence=7)


@planted("J5")
def a_lane_is_overfull(case: Case) -> None:
    waiting = case.sql("SELECT id FROM outbox_job WHERE task = 'keyed' AND status = 'queued'")
    case.sql(
        "INSERT INTO outbox_job (task, lane, args) SELECT task, lane, args FROM outbox_job WHERE id = %s", waiting
    )
    for row_id in (waiting, case.sql("SELECT max(id) FROM outbox_job")):
        _claim_job(case, row_id)


@planted("J6")
def a_manual_job_is_put_back(case: Case) -> None:
    row_id = case.sql("INSERT INTO outbox_job (task, recovery_policy) VALUES ('manual', 'manual') RETURNING id")
    _claim_job(case, row_id)
    while case.sql("SELECT lease_expires_at > clock_timestamp() FROM outbox_job WHERE id = %s", row_id):
        case.sql("SELECT pg_sleep(0.01)")
    case.sql(
        f"UPDATE outbox_job SET status = 'queued', {EXPIRED}, attempt_token = gen_random_uuid(),"
        " reclaim_count = reclaim_count + 1 WHERE id = %s",
        row_id,
    )


@planted("J7")
def a_done_job_is_put_back_by_hand(case: Case) -> None:
    case.sql(
        "UPDATE outbox_job SET status = 'queued', outcome = NULL, finished_at = NULL WHERE id = %s",
        case.marks["job plain"][0],
    )


@planted("J7")
def a_failed_job_is_retried_by_hand(case: Case) -> None:
    case.sql(
        "UPDATE outbox_job SET status = 'queued', outcome = NULL, finished_at = NULL, attempts = 0,"
        " attempt_token = gen_random_uuid() WHERE id = %s",
        case.marks["job cancelled"][0],
    )


@planted("J8")
def a_job_is_done_whose_handler_never_returned(case: Case) -> None:
    case.drop(case.find("job_end", id=case.marks["job plain"][0], result="completed"))
