"""What operators do to dead messages, and the record of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Outbox
from fencepost.core.operation import Rows, Statement, run
from fencepost.core.states import Outcome, State
from fencepost.drivers import driver_for
from fencepost.store import operators
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, claim_one, expire, row


def bury(db: Connection, count: int = 1, outcome: str = "permanent", **options: Any) -> list[int]:
    ids = add(db, count, **options)
    held = [each for each in claim(db, owner="undertaker") if each.id in ids]
    assert OUTBOX.mark_dead(db, held, error=f"because {outcome}", outcome=outcome) == []
    return ids


def audit(db: Connection) -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT outbox_id, action, actor, reason, before, at <= statement_timestamp() FROM outbox_audit"
        " ORDER BY id"
    ).fetchall()


def test_a_retry_puts_back_to_pending_without_attempts_and_says_who_did_it(db: Connection) -> None:
    add(db)
    claim(db)
    expire(db)
    held = claim_one(db)
    OUTBOX.mark_dead(db, held, error="no such customer")
    before = row(db, held.id)
    assert (before.reclaim_count, before.attempts, before.token) == (1, 2, 2)

    assert OUTBOX.retry_dead(db, [held.id], actor="ann@ops", reason="customer exists now") == [held.id]

    after = row(db, held.id)
    assert (after.status, after.outcome, after.attempts, after.reclaim_count, after.token) == (
        "pending",
        None,
        0,
        0,
        3,
    )
    # As if it were new: not in front of what has become due since.
    assert db.execute("SELECT available_at > created_at FROM outbox").fetchone() == (True,)
    assert after.due_in <= 0
    ((row_id, action, actor, reason, state, in_the_past),) = audit(db)
    assert (row_id, action, actor, reason) == (held.id, "retry", "ann@ops", "customer exists now")
    assert in_the_past
    assert {key: state[key] for key in ("status", "outcome", "attempts", "reclaim_count", "lease_version")} == {
        "status": "dead",
        "outcome": "permanent",
        "attempts": 2,
        "reclaim_count": 1,
        "lease_version": 2,
    }
    assert state["last_error"] == "no such customer"
    assert state["dead_at"]
    again = claim_one(db)
    assert (again.token, again.attempt, again.message) == (4, 1, held.message)


def test_a_skip_closes_for_good(db: Connection) -> None:
    (row_id,) = bury(db)
    assert OUTBOX.skip_dead(db, [row_id], actor="ann") == [row_id]
    seen = row(db, row_id)
    assert (seen.status, seen.outcome, seen.attempts, seen.token) == ("done", "skipped", 1, 2)
    assert [(each[1], each[2], each[3]) for each in audit(db)] == [("skip", "ann", None)]
    assert claim(db) == []
    assert OUTBOX.retry_dead(db, [row_id], actor="ann") == []
    assert OUTBOX.purge(db, older_than=timedelta(0)) == 1


def test_only_the_dead_are_moved_and_only_they_are_audited(db: Connection) -> None:
    (done,) = add(db)
    OUTBOX.mark_done(db, claim_one(db))
    (processing,) = add(db)
    claim_one(db)
    (pending,) = add(db, delay=timedelta(hours=1))
    dead = bury(db, 3)
    before = {each.id: each.xmin for each in all_rows(db)}
    others = [done, processing, pending, 10**9, 10**18]
    assert OUTBOX.retry_dead(db, [*others, dead[2], dead[0]], actor="ann") == [dead[0], dead[2]]
    assert OUTBOX.skip_dead(db, [*others, dead[1], dead[0]], actor="ann") == [dead[1]]
    after = {each.id: each.xmin for each in all_rows(db)}
    assert [row_id for row_id in after if after[row_id] != before[row_id]] == dead
    assert [each[0] for each in audit(db)] == [dead[0], dead[2], dead[1]]
    assert OUTBOX.retry_dead(db, [], actor="ann") == []


def test_an_operator_does_not_wait_for_what_is_not_dead(db: Connection, db2: Connection) -> None:
    (dead,) = bury(db)
    (held_up,) = add(db)
    db2.execute("BEGIN")
    db2.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE", [held_up])
    db.execute("SET lock_timeout = '2s'")
    assert OUTBOX.retry_dead(db, [held_up, dead], actor="ann") == [dead]
    db2.execute("ROLLBACK")
    db.execute("RESET lock_timeout")


def test_two_operators_at_once_one_of_them_moves_the_row(db: Connection, url: str) -> None:
    """The second waits for the first and then finds nothing dead."""
    (row_id,) = bury(db)
    with psycopg.connect(url) as second:
        with db.transaction():
            assert OUTBOX.retry_dead(db, [row_id], actor="ann") == [row_id]
            second.execute("SET LOCAL lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                OUTBOX.skip_dead(second, [row_id], actor="bob")
            second.rollback()
        assert OUTBOX.skip_dead(second, [row_id], actor="bob") == []
    assert [each[2] for each in audit(db)] == ["ann"]
    assert row(db, row_id).status == "pending"


def test_an_action_rolls_back_with_its_audit(db: Connection) -> None:
    (row_id,) = bury(db)
    with db.transaction(force_rollback=True):
        OUTBOX.retry_dead(db, [row_id], actor="ann")
    assert row(db, row_id).status == "dead"
    assert audit(db) == []


def test_names_and_reasons_that_no_store_can_keep_stop_nobody(db: Connection) -> None:
    """An operator's name comes from a terminal: it may hold anything."""
    first, second = bury(db, 2)
    assert OUTBOX.retry_dead(db, [first], actor="\udcff\x00", reason="\x00") == [first]
    assert OUTBOX.skip_dead(db, [second], actor="x" * 1_000_000, reason="\ud800") == [second]
    assert len(audit(db)) == 2


def test_the_list_of_the_dead_by_queue_and_reason_page_by_page(db: Connection) -> None:
    permanent = bury(db, 3, queue="a")
    unroutable = bury(db, 2, "unroutable", queue="a")
    other = bury(db, 1, queue="b")
    add(db, 3)
    assert [each.message.id for each in OUTBOX.list_dead(db)] == permanent + unroutable + other
    assert [each.message.id for each in OUTBOX.list_dead(db, queue="a")] == permanent + unroutable
    assert [each.message.id for each in OUTBOX.list_dead(db, queue="a", outcome="unroutable")] == unroutable
    assert OUTBOX.list_dead(db, queue="c") == []
    pages, after = [], 0
    while page := OUTBOX.list_dead(db, after=after, limit=4):
        pages.append([each.message.id for each in page])
        after = page[-1].message.id
    everything = permanent + unroutable + other
    assert pages == [everything[:4], everything[4:]]

    shown = OUTBOX.list_dead(db, outcome="unroutable")[0]
    assert (shown.status, shown.outcome, shown.attempts) == (State.DEAD, Outcome.UNROUTABLE, 1)
    assert (shown.lease_owner, shown.last_error, shown.token) == ("undertaker", "because unroutable", 1)
    assert shown.dead_at is not None
    assert shown.dead_at >= shown.message.created_at
    assert shown.message.payload == b'{"n":0}'


def test_a_retry_wakes_the_dispatchers_and_nothing_else_does(db: Connection, db2: Connection) -> None:
    first, second, third = bury(db, 3)
    db2.execute(f'LISTEN "{OUTBOX.catalog.names.channel}"')
    OUTBOX.skip_dead(db, [first], actor="ann")
    OUTBOX.retry_dead(db, [first], actor="ann")
    Outbox(notify=False).retry_dead(db, [second], actor="ann")
    db.execute("SELECT pg_notify(%s, 'mark')", [OUTBOX.catalog.names.channel])
    OUTBOX.retry_dead(db, [third], actor="ann")
    notices = [notice.payload for notice in db2.notifies(timeout=20, stop_after=2)]
    assert notices == ["mark", ""]


def test_the_message_is_the_same_before_and_after(db: Connection) -> None:
    add(db, headers={"a": "b"}, aggregate=("order", "1"), dedupe_key="k")
    first = claim_one(db)
    OUTBOX.mark_dead(db, first, error="x")
    OUTBOX.retry_dead(db, [first.id], actor="ann")
    assert claim_one(db, outbox=Outbox()).message == first.message


# --- messages in order -----------------------------------------------------------------------------------


def blocked_by_a_dead_head(db: Connection, count: int = 4) -> list[int]:
    ids = add(db, count, ordering_key="k")
    OUTBOX.mark_dead(db, claim_one(db, batch=1), error="no")
    assert claim(db) == []
    assert [row(db, each).status for each in ids] == ["dead", *["blocked"] * (count - 1)]
    return ids


def test_a_skip_frees_what_waits_behind_it(db: Connection) -> None:
    first, second, *others = blocked_by_a_dead_head(db)
    with db.transaction():
        assert OUTBOX.skip_dead(db, [first], actor="ann") == [first]
    assert [row(db, each).status for each in (first, second, *others)] == ["done", "pending", "blocked", "blocked"]
    assert [each.id for each in claim(db)] == [second, *others]


def test_a_retry_frees_what_waits_behind_it_and_goes_first(db: Connection) -> None:
    ids = blocked_by_a_dead_head(db)
    assert OUTBOX.retry_dead(db, ids[:1], actor="ann") == ids[:1]
    held = claim(db)
    assert [each.id for each in held] == ids
    with db.transaction():
        assert OUTBOX.mark_done(db, held) == []


def test_a_skip_that_rolls_back_frees_nothing(db: Connection) -> None:
    first, *others = blocked_by_a_dead_head(db)
    with db.transaction(force_rollback=True):
        OUTBOX.skip_dead(db, [first], actor="ann")
    assert [row(db, each).status for each in (first, *others)] == ["dead", "blocked", "blocked", "blocked"]
    assert claim(db) == []


def test_a_skip_behind_a_dead_head_frees_nothing(db: Connection) -> None:
    """Two dead ones of a key, as where both failed in one run: the second does not stand first."""
    ids = add(db, 4, ordering_key="k")
    OUTBOX.mark_dead(db, claim(db, batch=2), error="no")
    claim(db)
    with db.transaction():
        OUTBOX.skip_dead(db, [ids[1]], actor="ann")
    assert [row(db, each).status for each in ids] == ["dead", "done", "blocked", "blocked"]
    with db.transaction():
        OUTBOX.skip_dead(db, [ids[0]], actor="ann")
    assert [each.id for each in claim(db)] == ids[2:]


def test_two_skips_of_one_key_at_once_free_what_waits_behind_both(db: Connection, url: str) -> None:
    """The second waits for the first and then sees what the first one closed."""
    ids = add(db, 3, ordering_key="k")
    OUTBOX.mark_dead(db, claim(db, batch=2), error="no")
    claim(db)
    with psycopg.connect(url) as second:
        with db.transaction():
            OUTBOX.skip_dead(db, [ids[0]], actor="ann")
            second.execute("SET LOCAL lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                OUTBOX.skip_dead(second, [ids[1]], actor="bob")
            second.rollback()
        OUTBOX.skip_dead(second, [ids[1]], actor="bob")
    assert [each.id for each in claim(db)] == [ids[2]]


def test_a_skip_that_frees_something_wakes_the_dispatchers(db: Connection) -> None:
    first, second, *_ = blocked_by_a_dead_head(db)
    sent: list[str] = []

    def execute(statement: Statement) -> Rows:
        sent.append(statement.name)
        return driver_for(db).execute(statement)

    def skip(row_id: int, *, notify: bool) -> None:
        with db.transaction():
            run(operators.skip_dead(OUTBOX.catalog, [row_id], actor="ann", reason=None, notify=notify), execute)

    skip(first, notify=True)
    assert sent[-2:] == ["promote", "notify"]
    OUTBOX.mark_dead(db, claim_one(db, batch=1), error="no")
    skip(second, notify=False)
    assert sent[-1] == "promote"
