"""Claims: who gets what, what it costs a row, and what becomes of rows over the limit."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import ConfigError, Outbox
from fencepost.core.operation import run
from fencepost.core.states import Recovery
from fencepost.core.suspects import SPARE_ATTEMPTS
from fencepost.drivers import driver_for
from fencepost.store import outbox as store
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, claim_one, expire, row, value


def test_a_claim_takes_the_lease_raises_the_token_and_charges_the_attempt(db: Connection) -> None:
    (row_id,) = add(db)
    before = row(db, row_id)
    assert (before.status, before.attempts, before.token, before.lease_owner) == ("pending", 0, 0, None)

    claimed = claim_one(db, owner="ann", lease=timedelta(seconds=30), max_attempts=7)

    after = row(db, row_id)
    assert (after.status, after.attempts, after.token, after.lease_owner) == ("processing", 1, 1, "ann")
    assert after.lease_left is not None
    assert 25 < after.lease_left <= 30
    assert (claimed.id, claimed.token, claimed.attempt, claimed.max_attempts) == (row_id, 1, 1, 7)
    assert (claimed.owner, claimed.lease, claimed.recovery) == ("ann", timedelta(seconds=30), Recovery.AUTO)
    assert claimed.reclaim_count == 0
    assert timedelta(0) <= claimed.age < timedelta(seconds=20)


def test_four_workers_claim_two_hundred_messages_seven_at_a_time_and_no_message_twice(
    db: Connection, url: str
) -> None:
    ids = add(db, 200)
    start = threading.Barrier(4)
    taken: dict[str, list[int]] = {f"w{n}": [] for n in range(4)}
    failures: list[BaseException] = []

    def work(owner: str) -> None:
        try:
            outbox = Outbox()
            with psycopg.connect(url, autocommit=True) as connection:
                start.wait(timeout=20)
                while batch := claim(connection, outbox=outbox, owner=owner, batch=7):
                    assert len(batch) <= 7
                    assert {(each.token, each.attempt) for each in batch} == {(1, 1)}
                    taken[owner] += [each.id for each in batch]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[owner]) for owner in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not failures
    claimed = [row_id for each in taken.values() for row_id in each]
    assert len(claimed) == 200
    assert set(claimed) == set(ids)
    held = all_rows(db)
    assert {(each.status, each.token, each.attempts) for each in held} == {("processing", 1, 1)}
    assert Counter(each.lease_owner for each in held) == {owner: len(ids) for owner, ids in taken.items() if ids}


def test_what_another_transaction_is_claiming_is_passed_over_without_waiting(
    db: Connection, db2: Connection
) -> None:
    ids = add(db, 6)
    db2.execute("SET lock_timeout = '2s'")
    with db.transaction():
        first = OUTBOX.claim(db, owner="open", batch=4)
        second = claim(db2, owner="other")
    assert sorted(each.id for each in [*first, *second]) == ids
    assert len(first) == 4


def test_a_claim_that_rolls_back_costs_nothing(db: Connection) -> None:
    (row_id,) = add(db)
    before = row(db, row_id)
    with db.transaction(force_rollback=True):
        assert OUTBOX.claim(db, owner="w")
    after = row(db, row_id)
    assert (after.status, after.attempts, after.token) == ("pending", 0, 0)
    assert after.xmin == before.xmin
    assert claim_one(db).attempt == 1


def test_only_what_is_due_is_claimed_oldest_due_first(db: Connection) -> None:
    (late,) = add(db, delay=timedelta(hours=1))
    (third,) = add(db)
    db.execute("UPDATE outbox SET available_at = available_at - interval '1 minute' WHERE id = %s", [third])
    (second,) = add(db)
    db.execute("UPDATE outbox SET available_at = available_at - interval '2 minutes' WHERE id = %s", [second])
    (first,) = add(db)
    db.execute("UPDATE outbox SET available_at = available_at - interval '3 minutes' WHERE id = %s", [first])
    assert [claim_one(db, batch=1).id for _ in range(3)] == [first, second, third]
    assert claim(db) == []
    assert row(db, late).status == "pending"
    db.execute("UPDATE outbox SET available_at = statement_timestamp() WHERE id = %s", [late])
    assert claim_one(db).id == late


def test_claimed_messages_come_in_id_order(db: Connection) -> None:
    ids = add(db, 20)
    db.execute("UPDATE outbox SET available_at = available_at - id * interval '1 second'")
    assert [each.id for each in claim(db)] == ids


def test_queues_are_chosen_by_name_and_none_means_all(db: Connection) -> None:
    queues = {name: add(db, 3, queue=name) for name in ("billing", "mail", "a.b:c_d-e")}
    assert claim(db, queues=[]) == []
    assert claim(db, queues=["nobody"]) == []
    assert [each.id for each in claim(db, queues=["mail"])] == queues["mail"]
    assert claim(db, queues=["mail"]) == []
    rest = claim(db)
    assert sorted(each.id for each in rest) == sorted(queues["billing"] + queues["a.b:c_d-e"])
    assert {each.message.queue for each in rest} == {"billing", "a.b:c_d-e"}


def test_a_batch_is_filled_from_several_queues_and_never_exceeded(db: Connection) -> None:
    for name in ("q1", "q2", "q3"):
        add(db, 4, queue=name)
    sizes = [len(claim(db, batch=5)) for _ in range(4)]
    assert sizes == [5, 5, 2, 0]


def test_no_queue_always_stands_in_front_of_another(db: Connection) -> None:
    for name in ("a", "b", "c"):
        add(db, 60, queue=name)
    first = {claim_one(db, batch=1).message.queue for _ in range(60)}
    # 60 draws of one of three queues: that one never comes first has a chance of 3 * (2/3)**60 < 1e-9.
    assert first == {"a", "b", "c"}


def test_the_queues_that_hold_open_messages_are_found(db: Connection) -> None:
    add(db, 3, queue="b")
    add(db, 2, queue="a")
    add(db, 1, queue="done")
    OUTBOX.mark_done(db, claim(db, queues=["done"]))
    add(db, 1, queue="Z")
    names = run(store.open_queues(OUTBOX.catalog), driver_for(db).execute)
    assert names == ["Z", "a", "b"]


def test_a_lowered_limit_makes_dead_at_the_next_claim_while_a_hundred_others_are_claimed(db: Connection) -> None:
    old = add(db, 3)
    for _ in range(5):
        OUTBOX.reschedule(db, claim(db), delay=timedelta(0), error="try again")
    others = add(db, 100)

    claimed = claim(db, batch=200, max_attempts=5)

    assert [each.id for each in claimed] == others
    for row_id in old:
        dead = row(db, row_id)
        assert (dead.status, dead.outcome, dead.attempts) == ("dead", "exhausted", 5)
        assert dead.token == 6
        assert (dead.lease_left, dead.last_error) == (None, "try again")
    assert claim(db, max_attempts=100) == []


def test_rows_over_the_limit_never_hide_the_ones_behind_them(db: Connection) -> None:
    over = add(db, 30)
    db.execute("UPDATE outbox SET attempts = 12")
    good = add(db, 5)
    # A batch of ten meets nothing but spent rows at first, and still finds work.
    assert [each.id for each in claim(db, batch=10)] == good
    assert {row(db, row_id).outcome for row_id in over} == {"exhausted"}


@pytest.mark.parametrize("attempts", [3, 10**9])
def test_attempts_set_to_the_limit_or_beyond_by_hand_stop_nothing(db: Connection, attempts: int) -> None:
    pending, expired, good = add(db, 3)
    claim(db, batch=2)
    expire(db)
    db.execute("UPDATE outbox SET attempts = %s WHERE id = %s", [attempts, expired])
    db.execute(
        "UPDATE outbox SET attempts = %s, status = 'pending', lease_until = NULL WHERE id = %s",
        [attempts, pending],
    )
    outbox = Outbox()
    assert [each.id for each in claim(db, outbox=outbox, max_attempts=3)] == [good]
    assert claim(db, outbox=outbox, max_attempts=3) == []
    assert OUTBOX.reap(db, max_attempts=3) == 1
    seen = {each.id: (each.status, each.outcome, each.attempts) for each in all_rows(db)}
    assert seen[pending] == ("dead", "exhausted", attempts)
    assert seen[expired] == ("dead", "crashed", attempts)


def test_two_workers_of_one_name_are_still_two_workers(db: Connection, db2: Connection) -> None:
    (row_id,) = add(db)
    first = claim_one(db, owner="same")
    assert claim(db2, owner="same") == []
    expire(db)
    second = claim_one(db2, owner="same")
    before = row(db, row_id)
    assert OUTBOX.heartbeat(db, first) == [first]
    assert OUTBOX.mark_done(db, first) == [first]
    assert row(db, row_id) == before or row(db, row_id).xmin == before.xmin
    assert OUTBOX.mark_done(db2, second) == []


@pytest.mark.parametrize("owner", ["", "\x00", "\ud800", "x" * 100_000, 'ann\'s "box"\\ 🐘'])
def test_whatever_a_worker_is_called_its_messages_come_back(db: Connection, owner: str) -> None:
    (row_id,) = add(db)
    if not owner:
        with pytest.raises(ConfigError, match="owner"):
            claim(db, owner=owner)
        return
    claim_one(db, owner=owner)
    assert row(db, row_id).lease_owner
    expire(db)
    assert claim_one(db).token == 2
    expire(db)
    assert OUTBOX.reap(db, max_attempts=2) == 1


@pytest.mark.parametrize(
    "terms",
    [{"batch": 0}, {"batch": -1}, {"lease": timedelta(0)}, {"lease": timedelta(seconds=-1)}, {"max_attempts": 0}],
)
def test_terms_that_cannot_work_are_refused_before_any_database_work(
    db: Connection, terms: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        claim(db, **terms)


def test_the_longest_lease_and_the_largest_batch_are_clamped_not_an_error(db: Connection) -> None:
    ids = add(db, 3)
    held = claim(db, lease=timedelta.max, batch=2**31 - 1, max_attempts=2**31 - 1)
    assert [each.id for each in held] == ids
    assert OUTBOX.heartbeat(db, held, lease=timedelta.max) == []
    assert OUTBOX.reschedule(db, held, delay=timedelta.max, error="much later") == []
    assert {each.status for each in all_rows(db)} == {"pending"}


# --- messages that may have crashed their worker ---------------------------------------------------------


def test_reclaimed_messages_come_alone_in_turn_with_normal_batches_least_reclaimed_first(db: Connection) -> None:
    crashed = add(db, 3)
    claim(db)
    expire(db)
    often, once, never = crashed[0], crashed[1], crashed[2]
    db.execute("UPDATE outbox SET reclaim_count = 2 WHERE id = %s", [often])
    db.execute("UPDATE outbox SET reclaim_count = 1 WHERE id = %s", [once])
    fresh = add(db, 6)
    outbox = Outbox()
    batches = [[each.id for each in claim(db, outbox=outbox, batch=2)] for _ in range(7)]
    assert batches == [[never], fresh[0:2], [once], fresh[2:4], [often], fresh[4:6], []]


def test_a_message_that_was_taken_over_stays_alone_also_after_a_retry(db: Connection) -> None:
    (suspect,) = add(db)
    claim_one(db)
    expire(db)
    OUTBOX.reschedule(db, claim_one(db), delay=timedelta(0), error="failed this time")
    assert row(db, suspect).reclaim_count == 1
    fresh = add(db, 3)
    outbox = Outbox()
    batches = [[each.id for each in claim(db, outbox=outbox)] for _ in range(3)]
    assert batches == [[suspect], fresh, []]
    assert row(db, suspect).reclaim_count == 1


def test_a_reclaim_raises_the_token_and_counts(db: Connection) -> None:
    (row_id,) = add(db)
    for n in range(1, 4):
        claimed = claim_one(db, owner=f"w{n}")
        assert (claimed.token, claimed.attempt, claimed.reclaim_count) == (n, n, n - 1)
        seen = row(db, row_id)
        assert (seen.token, seen.attempts, seen.reclaim_count, seen.lease_owner) == (n, n, n - 1, f"w{n}")
        expire(db)


def test_a_message_that_kills_its_worker_does_not_take_its_neighbours_along(db: Connection) -> None:
    """C05: poison first in a batch of fifty; whoever publishes it is gone before anything is finalized."""
    poison, *neighbours = add(db, 50)
    outbox, crashes = Outbox(), 0
    for _ in range(200):
        batch = claim(db, outbox=outbox, batch=50, max_attempts=3)
        if not batch:
            OUTBOX.reap(db, max_attempts=3)
            if row(db, poison).status == "dead":
                break
        if poison in [each.id for each in batch]:
            crashes += 1
            expire(db)
        else:
            OUTBOX.mark_done(db, batch)
    seen = {each.id: each for each in all_rows(db)}
    assert crashes == 3
    assert (seen[poison].status, seen[poison].outcome, seen[poison].attempts) == ("dead", "crashed", 3)
    assert {seen[row_id].status for row_id in neighbours} == {"done"}
    assert max(seen[row_id].attempts for row_id in neighbours) == 2


def test_expired_rows_are_found_behind_the_leases_of_others(db: Connection, db2: Connection) -> None:
    add(db, 500)
    claim(db, owner="busy", batch=300)
    lost = [each.id for each in claim(db, owner="crashed", batch=10)]
    expire(db, lost)
    outbox = Outbox()
    found = []
    for _ in range(20):
        found += [each.id for each in claim(db2, outbox=outbox, batch=1) if each.reclaim_count]
    assert sorted(found) == lost


def test_store_claims_of_suspects_take_several_where_the_caller_says_so(db: Connection) -> None:
    ids = add(db, 10)
    claim(db)
    expire(db)
    db.execute("UPDATE outbox SET reclaim_count = 3 WHERE id > %s", [ids[5]])
    db.execute("UPDATE outbox SET reclaim_count = 1 WHERE id = %s", [ids[6]])
    db.execute("UPDATE outbox SET attempts = %s WHERE id = %s", [12 - SPARE_ATTEMPTS, ids[0]])
    terms = store.ClaimTerms("w", timedelta(seconds=60), 12)

    def first_timers(batch: int) -> list[int]:
        operation = store.claim_suspects(
            OUTBOX.catalog, terms, queues=None, batch=batch, max_reclaims=0, spare_attempts=SPARE_ATTEMPTS
        )
        return [each.id for each in run(operation, driver_for(db).execute).claimed]

    # Not ids[0], which has too few attempts left, and not those that were taken over before.
    assert first_timers(4) == ids[1:5]
    assert first_timers(100) == ids[5:6]
    assert first_timers(100) == []
    found = run(store.claim_suspects(OUTBOX.catalog, terms, queues=["default"], batch=100), driver_for(db).execute)
    assert [each.id for each in found.claimed] == [ids[0], *ids[6:]]
    assert found.exhausted == 0


def test_a_claim_of_suspects_passes_by_what_others_hold(db: Connection, url: str) -> None:
    ids = add(db, 2)
    claim(db)
    expire(db)
    terms = store.ClaimTerms("w", timedelta(seconds=60), 12)
    operation = store.claim_suspects(OUTBOX.catalog, terms, queues=["default"], batch=2)
    with psycopg.connect(url) as other, db.transaction():
        other.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE", [ids[0]])
        db.execute("SET LOCAL lock_timeout = '2s'")
        assert [each.id for each in run(operation, driver_for(db).execute).claimed] == ids[1:]


def test_a_suspect_over_the_limit_is_reported_as_exhausted(db: Connection) -> None:
    (row_id,) = add(db)
    db.execute("UPDATE outbox SET attempts = 5, reclaim_count = 1 WHERE id = %s", [row_id])
    terms = store.ClaimTerms("w", timedelta(seconds=60), 5)
    found = run(store.claim_suspects(OUTBOX.catalog, terms, queues=None), driver_for(db).execute)
    assert (found.claimed, found.exhausted) == ([], 1)
    assert row(db, row_id).outcome == "exhausted"


def test_a_lease_is_taken_over_only_after_its_end(db: Connection) -> None:
    (row_id,) = add(db)
    claim_one(db, lease=timedelta(milliseconds=100))
    ends_at = value(db, "SELECT lease_until FROM outbox")
    while not claim(db, lease=timedelta(seconds=60)):
        pass
    taken_at = value(db, "SELECT lease_until - interval '60 s' FROM outbox")
    assert taken_at > ends_at
    assert row(db, row_id).token == 2
