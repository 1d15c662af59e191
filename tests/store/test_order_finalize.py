"""Closing ordered messages: in their turn only, behind the fence, and with it the next one comes to its turn."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta

import psycopg
import pytest

from fencepost import Claimed, ConfigError
from fencepost.core.operation import Rows, Statement, run
from fencepost.core.outcome import Action, Dead, Done, Release, Reschedule
from fencepost.core.states import Event, Outcome
from fencepost.drivers import driver_for
from fencepost.store.finalize import Finalized, finalize, needs_transaction
from tests.store.ordered import do, done, drain, ids, now, states, take, take_suspects
from tests.store.rows import OUTBOX, Connection, add, all_rows, expire, row


def test_a_run_is_closed_at_once_or_one_by_one(db: Connection) -> None:
    made = add(db, 6, ordering_key="k")
    held = take(db).claimed
    assert done(db, held[:1]) == []
    assert done(db, reversed(held[1:4])) == []
    for each in held[4:]:
        assert done(db, each) == []
    assert states(db) == ["d"] * 6
    assert ids(held) == made


def test_a_run_of_messages_with_different_tokens(db: Connection) -> None:
    made = add(db, 4, ordering_key="k")
    for _ in range(3):
        assert OUTBOX.release(db, take(db, 2).claimed) == []
    held = take(db).claimed
    assert [(each.id, each.token) for each in held] == list(zip(made, [4, 4, 1, 1], strict=True))
    assert done(db, held) == []


@pytest.mark.parametrize("open_before", ["being published", "given back", "rescheduled", "dead"])
def test_out_of_its_turn_it_is_given_back_and_nothing_else_changes(db: Connection, open_before: str) -> None:
    add(db, 3, ordering_key="k")
    first, second, third = take(db).claimed
    if open_before == "given back":
        OUTBOX.release(db, first)
    elif open_before == "rescheduled":
        OUTBOX.reschedule(db, first, timedelta(hours=1), "later")
    elif open_before == "dead":
        OUTBOX.mark_dead(db, first, "never")
    before = all_rows(db)
    assert done(db, [second]) == [second]
    after = all_rows(db)
    assert [each.xmin for each in after][::2] == [each.xmin for each in before][::2]
    # It was published, so its attempt counts; its token is as it was.
    assert (after[1].status, after[1].attempts, after[1].token) == ("pending", 1, 1)
    assert done(db, [second, third]) == [second, third]
    assert {each.status for each in all_rows(db)[1:]} == {"pending"}


def test_two_messages_behind_one_that_was_lost(db: Connection) -> None:
    add(db, 3, ordering_key="k")
    held = take(db).claimed
    expire(db, [held[0].id])
    (taken_over,) = take_suspects(db)
    before = row(db, taken_over.id).xmin
    assert done(db, held) == held
    assert row(db, taken_over.id).xmin == before
    assert states(db) == ["P", "p", "p"]
    assert done(db, taken_over) == []
    assert drain(db) == ids(held[1:])


def test_a_key_that_stands_still_holds_up_no_other_of_the_batch(db: Connection) -> None:
    add(db, 2, ordering_key="a")
    add(db, 2, ordering_key="b")
    add(db, 2)
    held = take(db).claimed
    OUTBOX.release(db, held[0])
    assert done(db, held[1:]) == [held[1]]
    assert states(db) == ["p", "p", "d", "d", "d", "d"]


def test_repeated_as_its_answer_was_lost_it_is_no_lost_lease_and_changes_nothing(db: Connection) -> None:
    add(db, 3, ordering_key="k")
    held = take(db, 2).claimed
    take(db)
    assert done(db, held) == []
    before = [each.xmin for each in all_rows(db)]
    assert done(db, held) == []
    assert done(db, held[1:]) == []
    assert [each.xmin for each in all_rows(db)] == before


def test_half_of_it_was_written_when_the_answer_was_lost(db: Connection) -> None:
    add(db, 4, ordering_key="k")
    held = take(db).claimed
    assert done(db, held[:2]) == []
    assert done(db, held) == []
    assert states(db) == ["d"] * 4


def test_a_stale_token_changes_nothing(db: Connection) -> None:
    add(db, 2, ordering_key="k")
    stale = take(db).claimed
    OUTBOX.release(db, stale)
    held = take(db).claimed
    before = [each.xmin for each in all_rows(db)]
    assert done(db, stale) == stale
    assert [each.xmin for each in all_rows(db)] == before
    assert done(db, held) == []


def test_a_close_promotes_the_next_one_and_says_so(db: Connection) -> None:
    made = add(db, 3, ordering_key="k") + add(db, 2, ordering_key="other")
    held = take(db, 1).claimed
    other = take(db).claimed
    assert states(db) == ["P", "b", "b", "P", "P"]
    assert do(db, finalize(OUTBOX.catalog, [(each, Done()) for each in held + other])) == Finalized(
        frozenset(), promoted=1
    )
    assert states(db) == ["d", "p", "b", "d", "d"]
    assert ids(take(db).claimed) == made[1:3]


def test_a_close_whose_promotion_fails_is_not_written_either(db: Connection) -> None:
    """As a dispatcher writes it: in a transaction where the batch asks for one, else on its own."""
    add(db, 2, ordering_key="k")
    held = take(db, 1).claimed
    take(db)
    assert states(db) == ["P", "b"]
    decided: list[tuple[Claimed, Action]] = [(each, Done()) for each in held]

    def execute(statement: Statement) -> Rows:
        if statement.name == "promote":
            raise ConnectionResetError
        return driver_for(db).execute(statement)

    with pytest.raises(ConnectionResetError), db.transaction() if needs_transaction(decided) else nullcontext():
        run(finalize(OUTBOX.catalog, decided), execute)
    assert states(db) == ["P", "b"]
    assert done(db, held) == []
    assert states(db) == ["d", "p"]


def test_what_closes_nothing_promotes_nothing(db: Connection) -> None:
    add(db, 3, ordering_key="k")
    held = take(db, 1).claimed
    take(db)
    for write in (OUTBOX.release, lambda db, held: OUTBOX.reschedule(db, held, timedelta(0), "x")):
        assert write(db, held) == []
        assert states(db) == ["p", "b", "b"]
        held = take(db, 1).claimed
    assert OUTBOX.mark_dead(db, held, "x") == []
    assert states(db) == ["D", "b", "b"]
    assert OUTBOX.retry_dead(db, ids(held), actor="ann") == ids(held)
    assert states(db) == ["p", "b", "b"]


def test_everything_in_one_mixed_batch(db: Connection) -> None:
    add(db, 2)
    for key in ("done", "half", "retried", "dead", "given back", "lost"):
        add(db, 3, ordering_key=key)
    held = take(db).claimed
    by_key: dict[str | None, list[Claimed]] = {}
    for each in held:
        by_key.setdefault(each.message.ordering_key, []).append(each)
    expire(db, [by_key["lost"][0].id])
    (taken_over,) = take_suspects(db)
    retry = Reschedule(Event.RETRY, timedelta(0), "again", refund_attempt=False)
    bury = Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "never")
    actions: dict[str | None, list[Action]] = {
        None: [Done(), retry],
        "done": [Done(), Done(), Done()],
        "half": [Done(), retry, Release()],
        "retried": [retry, Release(), Release()],
        "dead": [Done(), bury, Release()],
        "given back": [Release(), Release(), Release()],
        "lost": [Done(), Done(), Done()],
    }
    decided = [pair for key in reversed(by_key) for pair in zip(by_key[key], actions[key], strict=True)]
    lost, *out_of_turn = ids(by_key["lost"])
    expected = Finalized(frozenset([lost]), frozenset(out_of_turn))
    assert do(db, finalize(OUTBOX.catalog, decided)) == expected
    assert states(db) == ["d", "p", *"ddd", *"dpp", *"ppp", *"dDp", *"ppp", *"Ppp"]
    assert [each.attempts for each in all_rows(db)] == [
        1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 2, 1, 1,
    ]  # fmt: skip
    assert done(db, taken_over) == []
    (dead,) = [each.message.id for each in OUTBOX.list_dead(db)]
    now(db, [each.id for each in all_rows(db) if each.status == "pending"])
    drain(db)
    with db.transaction():
        assert OUTBOX.skip_dead(db, [dead], actor="ann") == [dead]
    drain(db)
    assert states(db) == ["d"] * 20


# --- operators -------------------------------------------------------------------------------------------


def test_a_skip_frees_what_waits(db: Connection) -> None:
    made = add(db, 3, ordering_key="k")
    OUTBOX.mark_dead(db, take(db, 1).claimed, "never")
    assert take(db).parked == 2
    with db.transaction():
        assert OUTBOX.skip_dead(db, made[:1], actor="ann") == made[:1]
    assert states(db) == ["d", "p", "b"]
    assert drain(db) == made[1:]


def test_a_skip_in_the_middle_frees_nobody_before_the_head_is_closed(db: Connection) -> None:
    made = add(db, 4, ordering_key="k")
    held = take(db, 2).claimed
    OUTBOX.mark_dead(db, held[1], "never")
    assert take(db).parked == 2
    with db.transaction():
        OUTBOX.skip_dead(db, [held[1].id], actor="ann")
    assert states(db) == ["P", "d", "b", "b"]
    assert done(db, held[0]) == []
    assert states(db) == ["d", "d", "p", "b"]
    assert drain(db) == made[2:]


def test_the_dead_one_in_the_middle_comes_to_its_turn_as_a_dead_one(db: Connection) -> None:
    made = add(db, 3, ordering_key="k")
    held = take(db, 2).claimed
    OUTBOX.mark_dead(db, held[1], "never")
    take(db)
    assert done(db, held[0]) == []
    assert states(db) == ["d", "D", "b"]
    assert take(db).claimed == []
    OUTBOX.retry_dead(db, made[1:2], actor="ann")
    assert drain(db) == made[1:]


def test_several_dead_ones_of_one_key_and_of_others_skipped_at_once(db: Connection) -> None:
    for key in ("a", "b", None):
        add(db, 3, ordering_key=key)
    held = take(db).claimed
    dead = [each for each in held if each.id not in {held[2].id, held[5].id}]
    OUTBOX.mark_dead(db, dead, "never")
    OUTBOX.release(db, [held[2], held[5]])
    assert take(db).parked == 2
    with db.transaction():
        assert OUTBOX.skip_dead(db, [*ids(dead), 10**12], actor="ann") == sorted(ids(dead))
    assert drain(db) == [held[2].id, held[5].id]


# --- transactions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_transaction_that_keeps_its_snapshot_is_refused_before_it_changes_anything(
    db: Connection, url: str, level: psycopg.IsolationLevel
) -> None:
    """It would not see what was parked since, and leave it asleep."""
    add(db, 3, ordering_key="k")
    add(db)
    held = take(db, 2).claimed
    with psycopg.connect(url) as connection:
        connection.isolation_level = level
        connection.execute("SELECT count(*) FROM outbox")
        assert take(db, 1).parked == 1
        before = [each.xmin for each in all_rows(db)]
        with pytest.raises(ConfigError, match=f"{level.name.lower().replace('_', ' ')}.*READ COMMITTED"):
            OUTBOX.mark_done(connection, held)
        connection.rollback()
        OUTBOX.mark_dead(db, held[0], "x")
        with pytest.raises(ConfigError, match="READ COMMITTED"):
            OUTBOX.skip_dead(connection, [held[0].id], actor="ann")
        connection.rollback()
    assert [each.xmin for each in all_rows(db)][1:] == before[1:]
