"""The rules that keep a parked message from sleeping for ever, each shown to hold and to be needed.

Every scenario runs twice: with the statements as they are shipped, and with one rule taken out of them. In the
second run the fault must show, or the scenario proves nothing. Where sessions have to meet, a lock is what brings
them together: one is seen to wait before the other goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import psycopg
import pytest

from fencepost.core.operation import Operation, Rows, Statement, run
from fencepost.core.states import Recovery
from fencepost.drivers import driver_for
from fencepost.store import fenced, operators
from fencepost.store import outbox as store
from tests.store.ordered import CATALOG, beside, do, done, drain, ids, states, take, take_suspects, until_it_waits
from tests.store.rows import LEASE, OUTBOX, Connection, add, expire

T = TypeVar("T")
Doctor = Callable[[Statement], Statement]

TERMS = store.ClaimTerms("w", LEASE, 12)


def as_shipped(statement: Statement) -> Statement:
    return statement


def without(name: str, rule: str, instead: str = "") -> Doctor:
    """Take a rule out of the statement of that name."""

    def doctor(statement: Statement) -> Statement:
        if statement.name != name:
            return statement
        text = " ".join(statement.sql.split())
        assert text.count(rule) == 1, f"{name}.sql reads otherwise now: this test has to follow"
        return replace(statement, sql=text.replace(rule, instead))

    return doctor


def no_lock(statement: Statement) -> Statement:
    """Leave the key's lock out."""
    return replace(statement, sql="SELECT NULL, 'read committed'", params={}) if is_lock(statement) else statement


def is_lock(statement: Statement) -> bool:
    return statement.name == "lock_keys"


def one_snapshot(statement: Statement) -> Statement:
    """Take the lock, and believe that the transaction sees what others commit."""
    if not is_lock(statement):
        return statement
    assert "current_setting('transaction_isolation'::text)" in statement.sql
    return replace(
        statement, sql=statement.sql.replace("current_setting('transaction_isolation'::text)", "'read committed'")
    )


def perform(connection: Connection, operation: Operation[T], doctor: Doctor) -> T:
    """Run an operation with doctored statements; the transaction stays the caller's."""
    driver = driver_for(connection)

    def execute(statement: Statement) -> Rows:
        return driver.execute(doctor(statement))

    return run(operation, execute)


def claim(connection: Connection, doctor: Doctor, batch: int = 100) -> store.ClaimResult:
    return perform(connection, store.claim(CATALOG, TERMS, queues=["default"], batch=batch), doctor)


def sleeps(db: Connection) -> bool:
    """Whether something is left that no claim will ever come to."""
    drain(db)
    expire(db)
    drain(db)
    return "b" in states(db)


both = pytest.mark.parametrize("shipped", [True, False], ids=["as shipped", "without the rule"])


# --- only a claim parks, and only while it holds the head's row ---------------------------------------------

OBSTACLE = "OR %(park_behind_leased)s::boolean) ORDER BY id FOR UPDATE SKIP LOCKED"


@both
def test_parking_without_the_heads_lock(db: Connection, url: str, shipped: bool) -> None:
    """The head is just being closed, by someone who has looked for parked messages already."""
    add(db, 2, ordering_key="k")
    held = take(db, 1).claimed
    doctor = as_shipped if shipped else without("claim", OBSTACLE, OBSTACLE.replace("FOR UPDATE SKIP LOCKED", ""))
    with psycopg.connect(url) as finalizer:
        assert OUTBOX.mark_done(finalizer, held) == []
        result = claim(db, doctor)
        finalizer.commit()
    assert (result.parked, result.waiting) == ((0, 1) if shipped else (1, 0))
    assert sleeps(db) is not shipped


@both
def test_parking_behind_a_head_that_was_closed_while_the_claim_went_on(
    db: Connection, url: str, shipped: bool
) -> None:
    """It was open when the claim began, and is done when the claim has its lock."""
    add(db, 2, ordering_key="k")
    held = take(db, 1).claimed
    rule, waits = "AND status <> 'done'", "AND (SELECT pg_advisory_xact_lock(42)::text) IS NOT NULL"
    doctor = without("claim", rule, f"{waits} {rule if shipped else ''}")
    with beside(url) as claimer:
        with psycopg.connect(url) as gate:
            gate.execute("SELECT pg_advisory_xact_lock(42)")
            claimed = claimer.begin(lambda connection: claim(connection, doctor))
            until_it_waits(db, claimer)
            assert done(db, held) == []
        result = claimed.result(timeout=20)
        claimer.connection.commit()
    assert result.parked == (0 if shipped else 1)
    assert sleeps(db) is not shipped


@both
def test_a_follower_given_back_as_a_parked_one(db: Connection, shipped: bool) -> None:
    """The head was closed meanwhile."""
    add(db, 2, ordering_key="k")
    head, follower = take(db).claimed
    assert done(db, head) == []
    doctor = without(
        "release", "SET status = 'pending',", "SET status = 'blocked', available_at = '9999-12-31 0:0+0',"
    )
    perform(db, fenced.release(CATALOG, [follower]), as_shipped if shipped else doctor)
    assert sleeps(db) is not shipped


# --- two closings of one key never run at once, and look for parked ones in a statement of their own ---------


@both
def test_two_closings_of_one_key_at_once(db: Connection, url: str, shipped: bool) -> None:
    """One closes the head, the other skips the dead one behind it: each sees the other's as still open."""
    made = add(db, 3, ordering_key="k")
    held = take(db, 2).claimed
    OUTBOX.mark_dead(db, held[1], "never")
    assert take(db).parked == 1
    doctor = as_shipped if shipped else no_lock
    with psycopg.connect(url) as finalizer, beside(url) as operator:
        assert perform(finalizer, fenced.mark_done(CATALOG, held[:1]), doctor) == frozenset()
        skip = operators.skip_dead(CATALOG, [made[1]], actor="ann", reason=None, notify=False)
        future = operator.begin(lambda connection: perform(connection, skip, doctor))
        if shipped:
            until_it_waits(db, operator)
            finalizer.commit()
        future.result(timeout=20)
        finalizer.commit()
        operator.connection.commit()
    assert states(db) == ["d", "d", "p" if shipped else "b"]
    assert sleeps(db) is not shipped


@both
def test_a_closing_that_looks_for_parked_ones_in_the_snapshot_of_its_update(
    db: Connection, url: str, shipped: bool
) -> None:
    """It has begun when a claim that holds the head parks the follower, and waits for it.

    The claim has not changed the head, so that no serialization failure warns of it.
    """
    add(db, 2, ordering_key="k")
    held = take(db, 1).claimed
    with psycopg.connect(url) as claimer, beside(url) as finalizer:
        if not shipped:
            finalizer.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert claim(claimer, as_shipped).parked == 1
        closing = fenced.mark_done(CATALOG, held)
        doctor = as_shipped if shipped else one_snapshot
        future = finalizer.begin(lambda connection: perform(connection, closing, doctor))
        until_it_waits(db, finalizer)
        claimer.commit()
        assert future.result(timeout=20) == frozenset()
        finalizer.connection.commit()
    assert states(db) == ["d", "p" if shipped else "b"]
    assert sleeps(db) is not shipped


@both
def test_a_skip_that_locks_the_keys_of_what_is_dead_already(db: Connection, url: str, shipped: bool) -> None:
    """The message dies, and its follower is parked, between the look for keys and the skip."""
    made = add(db, 2, ordering_key="k")
    held = take(db, 1).claimed
    doctor = as_shipped if shipped else without("dead_keys", "WHERE", "WHERE status = 'dead' AND")
    skip = operators.skip_dead(CATALOG, made[:1], actor="ann", reason=None, notify=False)

    def execute(statement: Statement) -> Rows:
        rows = driver_for(operator).execute(doctor(statement))
        if statement.name == "dead_keys":
            OUTBOX.mark_dead(db, held, "never")
            assert take(db).parked == 1
        return rows

    with psycopg.connect(url) as operator:
        assert run(skip, execute) == made[:1]
        operator.commit()
    assert sleeps(db) is not shipped


# --- a run has no gap, and is closed in order ----------------------------------------------------------------


@both
def test_a_run_that_passes_over_a_locked_row(db: Connection, url: str, shipped: bool) -> None:
    made = add(db, 4, ordering_key="k")
    doctor = as_shipped if shipped else without("claim", "WHERE nth = place AND", "WHERE")
    with psycopg.connect(url) as psql:
        psql.execute("SELECT id FROM outbox WHERE id = %s FOR UPDATE", [made[1]])
        assert ids(claim(db, doctor).claimed) == (made[:1] if shipped else [made[0], *made[2:]])


@both
def test_a_run_that_is_closed_while_its_head_is_taken_over(db: Connection, url: str, shipped: bool) -> None:
    """Its lease has ended, somebody takes the head over, and the closing waits for that row."""
    add(db, 3, ordering_key="k")
    held = take(db).claimed
    expire(db)
    doctor = as_shipped if shipped else without("mark_done_ordered", "ORDER BY id FOR UPDATE")
    with psycopg.connect(url) as rescuer, beside(url) as finalizer:
        taken = do_not_commit(rescuer)
        assert [(each.id, each.recovery) for each in taken.claimed] == [(held[0].id, Recovery.AUTO)]
        closing = fenced.mark_done(CATALOG, held)
        future = finalizer.begin(lambda connection: perform(connection, closing, doctor))
        until_it_waits(db, finalizer)
        rescuer.commit()
        lost = future.result(timeout=20)
        finalizer.connection.commit()
    assert states(db) == (["P", "p", "p"] if shipped else ["P", "d", "d"])
    assert lost == (frozenset(ids(held)) if shipped else frozenset(ids(held[:1])))
    assert done(db, taken.claimed) == []
    assert not sleeps(db)


def do_not_commit(connection: Connection) -> store.ClaimResult:
    return perform(connection, store.claim_suspects(CATALOG, TERMS, queues=["default"]), as_shipped)


# --- two claimers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_claimers_of_one_key(db: Connection, url: str, end: str) -> None:
    made = add(db, 4, ordering_key="k")
    with psycopg.connect(url) as first:
        assert ids(claim(first, as_shipped, 2).claimed) == made[:2]
        result = take(db)
        # The head is in other hands: what waits behind it is left alone.
        assert (result.claimed, result.parked, result.waiting) == ([], 0, 2)
        getattr(first, end)()
    result = take(db)
    if end == "commit":
        assert (result.claimed, result.parked) == ([], 2)
    else:
        assert ids(result.claimed) == made


def test_a_head_that_is_given_back_while_a_claim_runs(db: Connection, url: str) -> None:
    """The claim began before, and parks nothing behind a head that it could not lock."""
    made = add(db, 3, ordering_key="k")
    held = take(db, 1).claimed
    with psycopg.connect(url) as worker:
        assert OUTBOX.release(worker, held) == []
        assert take(db).waiting == 2
        worker.commit()
    assert ids(take(db).claimed) == made


def test_a_suspect_head_in_other_hands_is_left_alone(db: Connection, url: str) -> None:
    add(db, 3, ordering_key="k")
    take(db, 1)
    expire(db)
    with psycopg.connect(url) as rescuer:
        (held,) = do_not_commit(rescuer).claimed
        assert take_suspects(db) == []
        assert take(db).waiting == 2
        rescuer.commit()
    assert done(db, held) == []
    assert do(db, store.claim_suspects(CATALOG, TERMS, queues=["default"])).claimed == []
    assert not sleeps(db)
