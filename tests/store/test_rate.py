"""The rate of a queue holds for all who claim from it together, by the clock of the database."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fencepost.store import outbox as store
from fencepost.store.rate import claim_within_rate
from tests.store.databases import Migrated
from tests.store.ordered import CATALOG, do, take
from tests.store.rows import LEASE, OUTBOX, Connection, add, value

TERMS = store.ClaimTerms("w", LEASE, 12)


def claimed(db: Connection, wanted: int) -> tuple[int, bool]:
    found, is_held = do(
        db,
        claim_within_rate(
            CATALOG, "default", wanted, lambda many: store.claim(CATALOG, TERMS, queues=["default"], batch=many)
        ),
    )
    return len(found.claimed), is_held


def set_rate(db: Connection, rate: float | None) -> None:
    OUTBOX.set_queue(db, "default", "ann", rate=rate)


def set_back(db: Connection, seconds: float) -> None:
    """Let time pass."""
    db.execute("UPDATE outbox_queue SET rate_spent_until = rate_spent_until - %s * interval '1 second'", [seconds])


def test_at_first_a_second_of_it_then_what_time_brings(db: Connection) -> None:
    add(db, 100)
    set_rate(db, 20)
    assert claimed(db, 50) == (20, True)
    assert claimed(db, 50)[0] <= 5  # what the machine's own slowness brought
    set_back(db, 0.5)
    many, is_held = claimed(db, 50)
    assert 9 <= many <= 15
    assert is_held
    set_back(db, 3_600)
    assert claimed(db, 50) == (20, True)


def test_the_rate_holds_nothing_back_where_less_was_there_than_it_left(db: Connection) -> None:
    set_rate(db, 20)
    assert claimed(db, 50) == (0, False)
    add(db, 3)
    assert claimed(db, 50) == (3, False)
    add(db, 100)
    assert claimed(db, 50)[1]


def test_what_was_not_there_to_claim_is_not_charged(db: Connection) -> None:
    add(db, 2)
    set_rate(db, 10)
    for _ in range(5):
        claimed(db, 1)
    add(db, 20)
    assert claimed(db, 8)[0] == 8


def test_less_than_one_a_second(db: Connection) -> None:
    add(db, 3)
    set_rate(db, 0.1)
    assert claimed(db, 3) == (1, True)
    assert claimed(db, 3) == (0, True)
    set_back(db, 9)
    assert claimed(db, 3) == (0, True)
    set_back(db, 1)
    assert claimed(db, 3) == (1, True)


def test_many_at_once_never_take_more_together(db: Connection, migrated: Migrated) -> None:
    add(db, 500)
    set_rate(db, 40)
    began = time.monotonic()

    def take_some(_: int) -> int:
        with psycopg.connect(migrated.url) as conn:
            return sum(claimed(conn, 7)[0] for _ in range(5))

    with ThreadPoolExecutor(6) as pool:
        total = sum(pool.map(take_some, range(6)))
    total += claimed(db, 40)[0]  # who finds the row locked takes nothing
    most = 40 + 40 * (time.monotonic() - began)
    assert 40 <= total <= most


def test_nobody_waits_for_an_operators_open_transaction(db: Connection, migrated: Migrated) -> None:
    add(db, 5)
    set_rate(db, 100)
    with psycopg.connect(migrated.url) as operator:
        OUTBOX.set_queue(operator, "default", "ann", weight=2)
        db.execute("SET lock_timeout = '1s'")
        assert claimed(db, 5) == (0, True)
        operator.commit()
    assert claimed(db, 5) == (5, False)


def test_a_rate_that_was_taken_away_holds_nothing_back(db: Connection) -> None:
    add(db, 50)
    set_rate(db, 1)
    assert claimed(db, 50) == (1, True)
    set_rate(db, None)
    assert claimed(db, 49) == (49, False)


@pytest.mark.parametrize("rate", [0.001, 1_000_000.0])
def test_the_ends_of_the_range(db: Connection, rate: float) -> None:
    add(db, 10)
    set_rate(db, rate)
    assert claimed(db, 10)[0] == min(10, max(1, int(rate)))
    assert value(db, "SELECT rate_spent_until IS NOT NULL FROM outbox_queue")


def test_a_claim_by_hand_is_not_held_back(db: Connection) -> None:
    """The rate is the dispatchers' agreement; a program that claims by itself keeps its own."""
    add(db, 5)
    set_rate(db, 1)
    assert len(take(db).claimed) == 5
