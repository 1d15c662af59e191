"""Ordering keys that do not move: which they are, what they wait for, and how stranded ones go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost.core.operation import run
from fencepost.core.records import BlockedKey, BlockedKeys, BlockReason, Freed
from fencepost.drivers import driver_for
from fencepost.store import keys
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, expire, row

Key = tuple[str, str]


def ordered(db: Connection, key: str, count: int = 3, **options: Any) -> list[int]:
    return add(db, count, ordering_key=key, **options)


def head_of(db: Connection, ids: list[int]) -> Any:
    (held,) = claim(db, batch=1)
    assert held.id == ids[0]
    return held


def reason(db: Connection, **options: Any) -> BlockReason | None:
    found = OUTBOX.blocked_keys(db, **options).keys
    return found[0].reason if found else None


def only(db: Connection, **options: Any) -> BlockedKey:
    page = OUTBOX.blocked_keys(db, **options)
    assert page.after is None
    (found,) = page.keys
    return found


def promote(db: Connection, after: Key | None = None, limit: int = 100) -> tuple[int, Key | None]:
    with db.transaction():
        return run(keys.promote_stranded(OUTBOX.catalog, after=after, limit=limit), driver_for(db).execute)


# --- what blocks a key -----------------------------------------------------------------------------------


def test_what_moves_is_not_blocked(db: Connection) -> None:
    add(db, 3)
    ordered(db, "k")
    assert OUTBOX.blocked_keys(db) == BlockedKeys((), None)
    OUTBOX.mark_done(db, claim(db))
    assert reason(db) is None


def test_a_dead_head_blocks_with_everything_that_one_needs_to_know(db: Connection) -> None:
    ids = ordered(db, "k", queue="mail")
    OUTBOX.mark_dead(db, head_of(db, ids), error="no such customer\nreally", outcome="exhausted")
    found = only(db)
    assert (found.queue, found.ordering_key, found.head_id, found.reason) == ("mail", "k", ids[0], "dead")
    assert (found.outcome, found.last_error) == ("exhausted", "no such customer\nreally")
    assert (found.followers, found.followers_are_capped) == (2, False)
    assert timedelta(0) <= found.age < timedelta(minutes=1)
    assert (found.due_in, found.lease_left) == (None, None)


def test_a_dead_head_is_told_also_where_nothing_waits_yet(db: Connection) -> None:
    ids = ordered(db, "k", 1)
    OUTBOX.mark_dead(db, head_of(db, ids), error="x")
    assert (only(db).reason, only(db).followers) == ("dead", 0)


def test_a_head_in_its_backoff(db: Connection) -> None:
    ids = ordered(db, "k")
    OUTBOX.reschedule(db, head_of(db, ids), delay=timedelta(minutes=5), error="not now")
    found = only(db)
    assert (found.reason, found.last_error) == (BlockReason.BACKOFF, "not now")
    assert found.due_in is not None
    assert timedelta(minutes=4) < found.due_in <= timedelta(minutes=5)


def test_a_deferred_head(db: Connection) -> None:
    ids = ordered(db, "k")
    held = head_of(db, ids)
    OUTBOX.reschedule(db, held, delay=timedelta(minutes=5), error="no invoice yet", refund_attempt=True)
    assert reason(db) is BlockReason.DEFERRED


def test_a_delayed_head(db: Connection) -> None:
    ordered(db, "k", 1, delay=timedelta(hours=1))
    assert reason(db) is None  # nothing waits behind it
    ordered(db, "k")
    assert claim(db) == []
    found = only(db)
    assert (found.reason, found.followers) == (BlockReason.DELAYED, 3)


def test_a_leased_head_is_told_where_asked_for(db: Connection) -> None:
    ids = ordered(db, "k")
    head_of(db, ids)
    assert reason(db) is None
    found = only(db, include_leased=True)
    assert (found.reason, found.lease_owner, found.followers) == (BlockReason.LEASED, "w1", 2)
    assert found.lease_left is not None
    assert timedelta(seconds=50) < found.lease_left <= timedelta(seconds=60)


def test_a_head_whose_worker_may_have_crashed(db: Connection) -> None:
    ids = ordered(db, "k")
    held = head_of(db, ids)
    expire(db)
    found = only(db)
    assert found.reason is BlockReason.EXPIRED
    assert found.lease_left is not None
    assert found.lease_left < timedelta(0)
    (again,) = claim(db)
    assert (again.id, again.reclaim_count) == (held.id, 1)
    OUTBOX.release(db, again)
    assert reason(db) is BlockReason.SUSPECT


def test_a_stranded_head(db: Connection) -> None:
    strand(db, "k")
    found = only(db)
    assert (found.reason, found.followers) == (BlockReason.STRANDED, 1)


def strand(db: Connection, key: str, **options: Any) -> list[int]:
    """Three messages, two of them parked, and the one before them deleted by hand."""
    ids = ordered(db, key, 3, **options)
    db.execute("UPDATE outbox SET available_at = now() + interval '1 h' WHERE id = %s", [ids[0]])
    assert [each.id for each in claim(db) if each.id in ids] == []
    assert [row(db, each).status for each in ids] == ["pending", "blocked", "blocked"]
    db.execute("DELETE FROM outbox WHERE id = %s", [ids[0]])
    return ids[1:]


def test_keys_of_one_name_in_two_queues_are_two(db: Connection) -> None:
    for queue in ("a", "b"):
        strand(db, "k", queue=queue)
    assert [(each.queue, each.ordering_key) for each in OUTBOX.blocked_keys(db).keys] == [("a", "k"), ("b", "k")]
    assert only(db, queue="b").queue == "b"
    assert OUTBOX.blocked_keys(db, queue="aa").keys == ()


# --- page by page ----------------------------------------------------------------------------------------


def test_pages_meet_each_key_once_in_order(db: Connection) -> None:
    names = sorted(f"{n:02}" for n in range(23))
    for name in names:
        ordered(db, name, 1, delay=timedelta(hours=1))
        ordered(db, name, 1)
        ordered(db, f"{name} moves", 1)
    found: list[str] = []
    page = OUTBOX.blocked_keys(db, limit=5)
    while page.keys:
        assert len(page.keys) <= 5
        found += [each.ordering_key for each in page.keys]
        page = OUTBOX.blocked_keys(db, limit=5, after=page.after) if page.after else BlockedKeys((), None)
    assert found == names


@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_a_page_looks_at_a_bounded_number_of_keys_and_says_where_it_ended(
    db: Connection, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(keys, "KEYS_PER_LOOK", window)
    monkeypatch.setattr(keys, "LOOKS", 2)
    for n in range(10):
        ordered(db, f"moves {n}", 1, queue="a")
    strand(db, "k", queue="a")
    strand(db, "k", queue="b")
    for queue, expected in ((None, ["a", "b"]), ("a", ["a"]), ("b", ["b"])):
        found, after, pages = [], None, 0
        while pages == 0 or after is not None:
            page = OUTBOX.blocked_keys(db, queue=queue, limit=5, after=after)
            found += [each.queue for each in page.keys]
            after, pages = page.after, pages + 1
        assert found == expected
        assert pages <= 1 + 12 // window


def test_followers_are_counted_up_to_a_cap(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "FOLLOWER_CAP", 3)
    for count in (4, 5):
        ids = ordered(db, f"k{count}", count)
        OUTBOX.mark_dead(db, head_of(db, ids), error="x")
    assert [(each.followers, each.followers_are_capped) for each in OUTBOX.blocked_keys(db).keys] == [
        (3, False),
        (3, True),
    ]


MANY = """
INSERT INTO outbox (event_type, payload, queue, ordering_key, available_at, status)
SELECT 'e', '1'::json, 'many', 'one', timestamptz '9999-12-31 00:00:00+00', 'blocked'
FROM generate_series(1, 100000)
UNION ALL
SELECT 'e', '1'::json, 'many', 'key ' || n % 10000,
       now() + CASE WHEN n <= 10000 THEN interval '1 h' ELSE interval '0' END, 'pending'
FROM generate_series(1, 20000) AS n
"""
HISTORY = """
INSERT INTO outbox (event_type, payload, queue, ordering_key, status, outcome, attempts, lease_version, done_at)
SELECT 'e', '1'::json, 'many', CASE WHEN n % 2 = 0 THEN 'one' ELSE 'key ' || n % 10000 END, 'done', 'delivered',
       1, 1, now()
FROM generate_series(1, 100000) AS n
"""


def test_it_stays_fast_with_many_followers_and_many_keys(db: Connection) -> None:
    db.execute(HISTORY)
    db.execute(MANY)
    for statistics in ("SELECT 1", "ANALYZE outbox"):
        db.execute(statistics.encode())
        began = time.monotonic()
        page = OUTBOX.blocked_keys(db, limit=10)
        assert [each.followers for each in page.keys] == [1] * 10
        stranded = OUTBOX.blocked_keys(db, after=("many", "key 9999"))
        assert [(each.ordering_key, each.reason) for each in stranded.keys] == [("one", "stranded")]
        assert (stranded.keys[0].followers, stranded.keys[0].followers_are_capped) == (10_000, True)
        everything = OUTBOX.blocked_keys(db, limit=20_000)
        assert len(everything.keys) == 10_000
        head = stranded.keys[0].head_id
        assert freed(db, [head, head + 1]) == Freed(1, 1_000, True)
        assert time.monotonic() - began < 5


# --- stranded heads go on --------------------------------------------------------------------------------


def test_stranded_heads_are_made_due_again(db: Connection) -> None:
    first, second = strand(db, "k")
    assert claim(db) == []
    assert promote(db) == (1, None)
    assert [row(db, each).status for each in (first, second)] == ["pending", "blocked"]
    assert [each.id for each in claim(db)] == [first, second]
    assert promote(db) == (0, None)


def test_a_head_that_waits_by_rule_is_left_alone(db: Connection) -> None:
    ids = ordered(db, "dead")
    OUTBOX.mark_dead(db, head_of(db, ids), error="x")
    ordered(db, "later", 1, delay=timedelta(hours=1))
    ordered(db, "later")
    claim(db)
    before = [each.xmin for each in all_rows(db)]
    assert promote(db) == (0, None)
    assert [each.xmin for each in all_rows(db)] == before


def test_it_walks_over_all_keys_in_bounded_steps(db: Connection) -> None:
    for queue in ("a", "b"):
        for name in ("1", "2", "3"):
            strand(db, name, queue=queue)
    ordered(db, "moves", 1, queue="b")
    after, steps = None, []
    while True:
        promoted, after = promote(db, after, 2)
        steps.append((promoted, after))
        if after is None:
            break
    assert steps == [(2, ("a", "2")), (2, ("b", "1")), (2, ("b", "3")), (0, None)]


def test_what_went_on_since_the_look_is_left_alone(db: Connection, db2: Connection) -> None:
    """Between the look and the locks somebody else may have promoted, or the head may have been published."""
    first, second = strand(db, "k")
    step = keys.promote_stranded(OUTBOX.catalog, after=None, limit=10)
    execute = driver_for(db).execute
    with db.transaction():
        lock = step.send(execute(next(step)))
        assert promote(db2) == (1, None)
        with db2.transaction():
            OUTBOX.mark_done(db2, OUTBOX.claim(db2, "w", batch=1))
        again = step.send(execute(lock))
        with pytest.raises(StopIteration) as ended:
            step.send(execute(again))
    assert ended.value.value == (0, None)
    assert [row(db, each).status for each in (first, second)] == ["done", "pending"]


# --- what an operator's change frees ---------------------------------------------------------------------

Change = Callable[[Connection, list[int]], list[int]]


def freed(db: Connection, ids: list[int]) -> Freed:
    return run(keys.freed(OUTBOX.catalog, ids), driver_for(db).execute)


@pytest.mark.parametrize("verb", ["retry", "skip"])
def test_it_says_which_keys_move_again(db: Connection, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setattr(keys, "FREED_CAP", 3)
    change = OUTBOX.retry_dead if verb == "retry" else OUTBOX.skip_dead
    heads = []
    for key, count in (("one", 1), ("three", 3), ("five", 5)):
        ids = ordered(db, key, count)
        OUTBOX.mark_dead(db, head_of(db, ids), error="x")
        heads.append(ids[0])
    (loner,) = add(db)
    OUTBOX.mark_dead(db, claim(db), error="x")
    for chosen, expected in (
        ([], Freed()),
        ([loner], Freed()),
        ([heads[0]], Freed()),
        ([heads[1]], Freed(1, 2)),
        ([heads[2]], Freed(1, 3, True)),
    ):
        assert change(db, chosen, "ann") == chosen
        assert freed(db, chosen) == expected


def test_a_key_whose_next_message_is_dead_too_is_not_free(db: Connection) -> None:
    ids = ordered(db, "k", 3)
    OUTBOX.mark_dead(db, claim(db, batch=2), error="x")
    OUTBOX.retry_dead(db, [ids[1]], "ann")
    assert freed(db, [ids[1]]) == Freed()  # the dead one before it blocks it as well
    OUTBOX.skip_dead(db, [ids[0]], "ann")
    assert freed(db, [ids[0]]) == Freed(1, 2)


def test_it_needs_no_more_than_a_connection_of_any_isolation(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        assert OUTBOX.blocked_keys(connection).keys == ()
