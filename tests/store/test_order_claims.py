"""Claims of ordered messages: runs without a gap, heads that are not free, what is parked and what comes next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from fencepost import Claimed
from fencepost.store import outbox as store
from tests.store.ordered import CATALOG, do, done, drain, ids, later, now, states, take, take_suspects
from tests.store.rows import LEASE, OUTBOX, Connection, add, all_rows, expire, row, value

# --- runs ------------------------------------------------------------------------------------------------


def test_a_run_is_the_first_open_messages_of_a_key(db: Connection) -> None:
    made = add(db, 5, ordering_key="k")
    assert ids(take(db, 3).claimed) == made[:3]
    result = take(db)
    assert (result.claimed, result.parked) == ([], 2)
    assert states(db) == ["P", "P", "P", "b", "b"]


def test_several_keys_and_unordered_messages_share_a_batch(db: Connection) -> None:
    made = {key: add(db, 4, ordering_key=key) for key in ("a", "b", None, "c")}
    held = take(db, 13).claimed
    taken = {key: [each.id for each in held if each.message.ordering_key == key] for key in made}
    # Unordered messages give up a quarter of their share, here to the second one of c.
    shares = {"a": 4, "b": 4, None: 3, "c": 2}
    assert taken == {key: of_key[: shares[key]] for key, of_key in made.items()}
    assert done(db, held) == []
    assert drain(db, batch=10) == [made[None][3], *made["c"][2:]]


@pytest.mark.parametrize("batch", [1, 2, 7, 12, 13])
def test_a_batch_is_exact(db: Connection, batch: int) -> None:
    for _ in range(4):
        for key in ("a", "b", None):
            add(db, ordering_key=key)
    assert len(take(db, batch).claimed) == min(batch, 12)
    assert states(db).count("P") == min(batch, 12)


def test_the_longest_run_is_kept_to(db: Connection) -> None:
    a, b = (add(db, 5, ordering_key=key) for key in ("a", "b"))
    assert ids(take(db, longest_run=2).claimed) == a[:2] + b[:2]


def test_what_waits_is_counted_over_all_queues_of_a_claim(db: Connection) -> None:
    for queue in ("first", "second"):
        add(db, 3, queue=queue, ordering_key="k")
        take(db, 1, queue=queue)
    terms = store.ClaimTerms("w", LEASE, 12)
    scan = store.Scan(park_behind_leased=False)
    for queues, waiting in ((["first"], 2), (["first", "second"], 4), (["first", "second", "third"], 4)):
        result = do(db, store.claim(CATALOG, terms, queues=queues, batch=10, scan=scan))
        assert (result.claimed, result.waiting) == ([], waiting)


@pytest.mark.parametrize("plan", ["force_generic_plan", "force_custom_plan"])
def test_what_is_behind_a_run_is_not_locked_with_it(db: Connection, db2: Connection, plan: str) -> None:
    # Statistics of a table of four rows, by which it costs nothing to look behind every key first.
    for n in (1, 2):
        add(db, 2, queue=f"q{n}", ordering_key=f"k{n}")
    db.execute("ANALYZE outbox")
    db.execute("TRUNCATE outbox")
    made = add(db, 5, ordering_key="k")
    with db.transaction():
        db.execute(f"SET LOCAL plan_cache_mode = {plan}")
        for scan in ("seqscan", "bitmapscan"):
            db.execute(f"SET LOCAL enable_{scan} = off")  # as dispatchers have it
        assert ids(take(db, 2).claimed) == made[:2]
        free = db2.execute("SELECT id FROM outbox ORDER BY id FOR UPDATE SKIP LOCKED").fetchall()
    assert [row_id for (row_id,) in free] == made[2:]


def locked(db: Connection, row_id: int) -> None:
    """By a psql session; see the test."""


def leased(db: Connection, row_id: int) -> None:
    db.execute(
        "UPDATE outbox SET status = 'processing', lease_until = now() + interval '1 min', lease_owner = 'o',"
        " lease_version = 1, attempts = 1 WHERE id = %s",
        [row_id],
    )


def expired(db: Connection, row_id: int) -> None:
    leased(db, row_id)
    expire(db, [row_id])


def dead(db: Connection, row_id: int) -> None:
    db.execute(
        "UPDATE outbox SET status = 'dead', outcome = 'permanent', dead_at = now(),"
        " available_at = '9999-12-31 00:00:00+00' WHERE id = %s",
        [row_id],
    )


def delayed(db: Connection, row_id: int) -> None:
    later(db, [row_id])


def suspect(db: Connection, row_id: int) -> None:
    db.execute("UPDATE outbox SET reclaim_count = 1 WHERE id = %s", [row_id])


NOT_FREE: dict[str, Callable[[Connection, int], None]] = {
    each.__name__: each for each in (leased, expired, dead, delayed, suspect, locked)
}


@pytest.mark.parametrize("how", NOT_FREE)
def test_a_run_ends_before_what_is_not_free(db: Connection, url: str, how: str) -> None:
    """The third trap: a gap would let the fourth overtake the third."""
    made = add(db, 5, ordering_key="k")
    NOT_FREE[how](db, made[2])
    with psycopg.connect(url) as psql:
        if how == "locked":
            psql.execute("SELECT id FROM outbox WHERE id = %s FOR UPDATE", [made[2]])
        held = take(db).claimed
        assert ids(held) == made[:2]
        assert done(db, held) == []
        assert take(db).claimed == []


@pytest.mark.parametrize("how", NOT_FREE)
def test_a_head_that_is_not_free_blocks_its_key_and_no_other(db: Connection, url: str, how: str) -> None:
    """C15, C13."""
    head, *_ = made = add(db, 3, ordering_key="k")
    others = add(db, 2, ordering_key="other") + add(db, 2)
    NOT_FREE[how](db, head)
    with psycopg.connect(url) as psql:
        if how == "locked":
            psql.execute("SELECT id FROM outbox WHERE id = %s FOR UPDATE", [head])
        result = take(db)
        assert ids(result.claimed) == others
        assert done(db, result.claimed) == []
        # Nobody parks who cannot lock the head.
        assert (result.parked, result.waiting) == ((0, 2) if how == "locked" else (2, 0))
    assert {each.status for each in all_rows(db)[1:3]} == {"pending" if how == "locked" else "blocked"}
    expire(db)
    now(db, [each.id for each in all_rows(db) if each.status == "pending"])
    if how == "dead":
        assert OUTBOX.retry_dead(db, [head], actor="ann") == [head]
    assert drain(db) == made


# --- heads that come back --------------------------------------------------------------------------------

FAILURES: dict[str, Callable[[Connection, Claimed], list[Claimed]]] = {
    "backoff": lambda db, held: OUTBOX.reschedule(db, held, timedelta(seconds=30), "again"),
    "deferred": lambda db, held: OUTBOX.reschedule(db, held, timedelta(hours=1), "later", refund_attempt=True),
    "dead": lambda db, held: OUTBOX.mark_dead(db, held, "never"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_head_keeps_its_followers_back_and_other_keys_go_on(db: Connection, failure: str) -> None:
    made = add(db, 4, ordering_key="k")
    head, *released = take(db).claimed
    assert FAILURES[failure](db, head) == []
    assert OUTBOX.release(db, released) == []
    others = add(db, 2, ordering_key="other")
    result = take(db)
    assert ids(result.claimed) == others
    assert result.parked == 3
    assert states(db) == ["D" if failure == "dead" else "p", "b", "b", "b", "P", "P"]
    assert add(db, ordering_key="k")
    assert take(db).claimed == []
    if failure == "dead":
        assert OUTBOX.retry_dead(db, [head.id], actor="ann") == [head.id]
    else:
        now(db, [head.id])
    # It takes those that are parked behind it along.
    run = take(db).claimed
    assert ids(run)[:4] == made
    assert [each.message.json()["n"] for each in run[:4]] == [0, 1, 2, 3]


def test_a_parked_message_keeps_its_place_in_time_when_it_is_claimed(db: Connection) -> None:
    """It is not at the far end any more: released, it is due at once, and a floor knows of it."""
    made = add(db, 3, ordering_key="k")
    take(db, 1)
    assert take(db).parked == 2
    expire(db)
    assert done(db, take_suspects(db)) == []
    result = take(db)
    assert ids(result.claimed) == made[1:]
    first = value(
        db, "SELECT (extract(epoch FROM created_at) * 1000000)::bigint FROM outbox WHERE id = %s", made[1:2]
    )
    assert result.lowest == first
    assert OUTBOX.release(db, result.claimed) == []
    assert [each.due_in <= 0 for each in all_rows(db)[1:]] == [True, True]


def test_a_parked_message_created_in_the_future_is_due_when_its_turn_comes(db: Connection) -> None:
    """As where a clock was set back, or a producer wrote what it liked."""
    made = add(db, 3, ordering_key="k")
    db.execute("UPDATE outbox SET created_at = now() + interval '1 day' WHERE id <> %s", [made[0]])
    held = take(db, 1).claimed
    assert take(db).parked == 2
    assert done(db, held) == []
    held = take(db).claimed
    assert ids(held) == made[1:]
    assert OUTBOX.release(db, held) == []
    assert ids(take(db).claimed) == made[1:]


def test_a_follower_that_is_given_back_is_pending_until_a_claim_parks_it(db: Connection) -> None:
    """The first trap: only who holds the head's lock may park."""
    add(db, 3, ordering_key="k")
    held = take(db).claimed
    assert OUTBOX.release(db, held[1:]) == []
    assert states(db) == ["P", "p", "p"]
    assert take(db).parked == 2
    assert states(db) == ["P", "b", "b"]


@pytest.mark.parametrize("park", [True, False])
def test_behind_a_head_that_is_being_published_it_parks_or_leaves_alone_as_told(
    db: Connection, park: bool
) -> None:
    made = add(db, 3, ordering_key="k")
    held = take(db, 1).claimed
    result = take(db, park_behind_leased=park)
    assert (result.claimed, result.parked, result.waiting) == ([], 2 if park else 0, 0 if park else 2)
    # An expired lease is nobody's publish.
    expire(db)
    assert take(db, park_behind_leased=False).parked == (0 if park else 2)
    assert done(db, held) == []
    assert ids(take(db).claimed) == made[1:]


def test_one_claim_gets_a_long_key_out_of_the_way(db: Connection) -> None:
    """Its own candidates and a thousand more at each look, so that a few claims come to what is behind."""
    add(db, 3_000, ordering_key="k")
    (behind,) = add(db, ordering_key="other")
    take(db, 1)
    result = take(db, 10)
    assert ids(result.claimed) == [behind]
    assert result.parked == 2_999
    assert take(db, 10).parked == 0


# --- limits, suspects, pauses ----------------------------------------------------------------------------


def test_a_message_over_a_lowered_limit_dies_at_its_turn_and_blocks_its_key(db: Connection) -> None:
    made = add(db, 4, ordering_key="k")
    other = add(db, 2)
    db.execute("UPDATE outbox SET attempts = 5 WHERE id = %s", [made[1]])
    result = take(db, max_attempts=5)
    assert ids(result.claimed) == made[:1] + other
    assert result.exhausted == 1
    assert states(db)[:2] == ["P", "D"]
    assert "P" not in states(db)[2:4]
    assert row(db, made[1]).outcome == "exhausted"
    assert done(db, result.claimed) == []
    assert take(db, max_attempts=5).claimed == []
    with db.transaction():
        assert OUTBOX.skip_dead(db, [made[1]], actor="ann") == [made[1]]
    assert drain(db, max_attempts=5) == made[2:]


def test_a_parked_message_over_the_limit_dies_at_its_turn(db: Connection) -> None:
    made = add(db, 3, ordering_key="k")
    held = take(db, 1).claimed
    assert take(db).parked == 2
    db.execute("UPDATE outbox SET attempts = 5 WHERE id = %s", [made[1]])
    assert done(db, held) == []
    result = take(db, max_attempts=5)
    assert (result.claimed, result.exhausted) == ([], 1)
    assert states(db) == ["d", "D", "b"]
    with db.transaction():
        OUTBOX.skip_dead(db, made[1:2], actor="ann")
    assert ids(take(db, max_attempts=5).claimed) == made[2:]


def test_suspects_of_a_key_come_one_by_one_in_their_turn(db: Connection) -> None:
    made = add(db, 3, ordering_key="k")
    other = add(db, ordering_key="other")
    take(db)
    expire(db)
    first = take_suspects(db, batch=9)
    assert sorted(ids(first)) == [made[0], *other]
    assert take_suspects(db, batch=9) == []
    assert done(db, first) == []
    for row_id in made[1:]:
        assert take(db).claimed == []
        (held,) = take_suspects(db, batch=9)
        assert held.id == row_id
        assert done(db, held) == []


def test_a_suspect_that_was_given_back_keeps_its_turn(db: Connection) -> None:
    made = add(db, 3, ordering_key="k")
    take(db, 1)
    expire(db)
    assert OUTBOX.release(db, take_suspects(db)) == []
    result = take(db)
    assert (result.claimed, result.parked) == ([], 2)
    assert drain(db) == made


@pytest.mark.parametrize("key", [None, "k"])
def test_a_paused_queue_hands_out_nothing(db: Connection, key: str | None) -> None:
    made = add(db, 2, ordering_key=key, queue="q")
    suspects = add(db, 1, queue="q")
    db.execute("UPDATE outbox SET reclaim_count = 1 WHERE id = ANY (%s)", [suspects])
    db.execute("INSERT INTO outbox_queue (queue, paused) VALUES ('q', true)")
    result = take(db, queue="q")
    assert (result.claimed, result.parked, result.waiting) == ([], 0, 0)
    assert OUTBOX.claim(db, "w") == []
    assert states(db) == ["p"] * 3
    db.execute("UPDATE outbox_queue SET paused = false")
    assert ids(take(db, queue="q").claimed) == made


# --- who waits for whom ----------------------------------------------------------------------------------


def test_a_long_key_does_not_keep_an_unordered_message_waiting(db: Connection) -> None:
    (first,) = add(db)
    add(db, 300, ordering_key="hot")
    held = take(db, 100).claimed
    assert first in ids(held)
    assert len(held) == 100


def test_many_unordered_messages_leave_a_quarter_of_their_share_to_what_is_parked(db: Connection) -> None:
    made = add(db, 60, ordering_key="k")
    held = take(db, 1).claimed
    assert take(db).parked == 59
    add(db, 400)
    assert done(db, held) == []
    held = take(db, 100).claimed
    of_key = [each.id for each in held if each.message.ordering_key]
    assert of_key == made[1:26]
    assert len(held) == 100


def test_a_deep_key_leaves_room_to_the_heads_of_others(db: Connection) -> None:
    add(db, 300, ordering_key="hot")
    others = [row_id for n in range(20) for row_id in add(db, ordering_key=f"cold{n}")]
    held = take(db, 100).claimed
    assert len(held) == 100
    assert done(db, held) == []
    assert set(others) <= {*ids(held), *ids(take(db, 100).claimed), *ids(take(db, 100).claimed)}
