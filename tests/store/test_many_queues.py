"""Thousands of queues: every step asks a bounded number of them, and none is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Outbox
from fencepost.core.operation import Operation, Rows, Statement, run
from fencepost.drivers import driver_for
from fencepost.store import outbox as store
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, expire
from tests.store.test_plans import explained

QUEUES = 5_000
FILL = """
INSERT INTO outbox (queue, event_type, payload, available_at)
SELECT 'q' || lpad(n::text, 5, '0'), 'e', '1', statement_timestamp() + {} FROM generate_series(1, {}) AS n
"""
TERMS = store.ClaimTerms("w", timedelta(seconds=60), 12)


def fill(db: Connection, due_in: str, count: int = QUEUES) -> None:
    db.execute(FILL.format(f"interval '{due_in}'", count).encode())
    db.execute("ANALYZE outbox")


def counted(db: Connection, operation: Operation[Any]) -> tuple[Any, int]:
    """Run an operation; return its result and how many statements it sent."""
    sent = 0

    def execute(statement: Statement) -> Rows:
        nonlocal sent
        sent += 1
        return driver_for(db).execute(statement)

    return run(operation, execute), sent


def test_queues_with_nothing_due_cost_one_bounded_statement(db: Connection) -> None:
    fill(db, "1 hour")
    add(db, 1, queue="q02500-due")
    add(db, 1, queue="dead")
    OUTBOX.mark_dead(db, claim(db, queues=["dead"]), "no")
    assert counted(db, store.open_queues(OUTBOX.catalog)) == (["q02500-due"], 1)
    claimed, sent = counted(db, store.claim(OUTBOX.catalog, TERMS, queues=None, batch=100))
    assert (len(claimed.claimed), sent) == (1, 2)
    # What is leased stands here for as long as it is.
    assert counted(db, store.open_queues(OUTBOX.catalog)) == (["q02500-due"], 1)
    statement = OUTBOX.catalog.statement("queues", {"after": "", "limit": 1_000})
    for mode in ("custom", "generic"):
        plan = explained(db, statement.sql, statement.params, mode)
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 10 * 1_000


def test_a_look_at_a_few_queues_goes_on_where_the_last_one_ended(db: Connection) -> None:
    fill(db, "1 hour", 10)
    add(db, 1, queue="q00003")
    add(db, 1, queue="q00008")
    rotation = store.Rotation()

    def look() -> list[str]:
        names: list[str] = run(
            store.open_queues(OUTBOX.catalog, rotation=rotation, limit=4), driver_for(db).execute
        )
        return names

    assert [look() for _ in range(4)] == [["q00003"], ["q00008"], ["q00003"], ["q00008"]]
    db.execute("DELETE FROM outbox")
    assert [look() for _ in range(2)] == [[], []]


@pytest.mark.parametrize(
    "step",
    [
        lambda names: store.claim(OUTBOX.catalog, TERMS, queues=names, batch=1_000),
        lambda names: store.claim_suspects(OUTBOX.catalog, TERMS, queues=names),
        lambda names: store.reap(OUTBOX.catalog, queues=names, max_attempts=12, limit=1_000),
    ],
    ids=["claim", "claim_suspects", "reap"],
)
@pytest.mark.parametrize("listed", [True, False])
def test_a_step_asks_a_bounded_number_of_queues(
    db: Connection, step: Callable[[list[str] | None], Operation[Any]], listed: bool
) -> None:
    fill(db, "-1 hour")
    names = [f"q{n:05}" for n in range(1, QUEUES + 1)] if listed else None
    _, sent = counted(db, step(names))
    assert sent <= store.QUEUES_PER_STEP + 1


def test_the_first_of_many_is_always_asked(db: Connection) -> None:
    add(db, 1, queue="there")
    names = ["there", *(f"q{n}" for n in range(QUEUES))]
    found, _ = counted(db, store.claim(OUTBOX.catalog, TERMS, queues=names, batch=10))
    assert len(found.claimed) == 1


def test_everything_in_five_thousand_queues_is_claimed_and_what_expired_as_well(db: Connection) -> None:
    fill(db, "-1 hour")
    outbox = Outbox()
    count = 0
    while held := claim(db, outbox=outbox, batch=1_000):
        count += len(held)
        assert outbox.mark_done(db, held) == []
    assert count == QUEUES

    db.execute("DELETE FROM outbox")
    add(db, 3, queue="somewhere")
    claim(db)
    expire(db)
    fill(db, "1 hour")
    # One call looks at the first thousands, the next one goes on.
    assert sum(outbox.reap(db, max_attempts=1) for _ in range(2)) == 3
    assert {each.status for each in all_rows(db)} == {"dead", "pending"}
