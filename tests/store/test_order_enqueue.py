"""Producers of ordered messages: what a key is, and the lock that makes id order the order of commits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from fencepost import InvalidMessage, NewMessage, Outbox
from fencepost.store.order import lock_for_finalize
from tests.store.ordered import beside, do, done, ids, take, together, until_it_waits
from tests.store.rows import OUTBOX, Connection, all_rows, value

LEVELS = [
    psycopg.IsolationLevel.READ_COMMITTED,
    psycopg.IsolationLevel.REPEATABLE_READ,
    psycopg.IsolationLevel.SERIALIZABLE,
]
PLAIN_SQL = """SELECT pg_advisory_xact_lock(hashtextextended('"public"."outbox" default k', 1))"""
"""The line of the documentation, for producers that insert with plain SQL."""


def enqueue(connection: Connection, **options: Any) -> int:
    return OUTBOX.enqueue(connection, "e", None, **options).id


def keys(connection: Connection) -> list[str | None]:
    return [key for (key,) in connection.execute("SELECT ordering_key FROM outbox ORDER BY id").fetchall()]


# --- keys ------------------------------------------------------------------------------------------------


def test_messages_of_one_aggregate_share_a_key_that_no_other_has(db: Connection) -> None:
    pairs = [("order", "42"), ("invoice", "42"), ("a", "b:c"), ("a:b", "c"), ("order", "42")]
    with db.transaction():
        made = [enqueue(db, aggregate=pair, ordered=True) for pair in pairs]
    assert keys(db) == ['["order","42"]', '["invoice","42"]', '["a","b:c"]', '["a:b","c"]', '["order","42"]']
    first = take(db, longest_run=1)
    assert ids(first.claimed) == made[:4]
    assert (first.parked, first.waiting) == (0, 0)
    assert take(db).claimed == []
    assert done(db, first.claimed[1:]) == []
    assert take(db).claimed == []
    assert done(db, first.claimed[:1]) == []
    assert ids(take(db).claimed) == made[4:]


def test_a_message_without_a_key_waits_for_nothing(db: Connection) -> None:
    with db.transaction():
        made = [enqueue(db, aggregate=("order", "42")) for _ in range(3)]
    for row_id in made:
        assert ids(take(db, 1).claimed) == [row_id]


ALIKE = {
    "case": ("A", "a"),
    "blanks": ("A", "A "),
    "width": ("A", "\uff21"),
    "composed": ("\u00e9", "e\u0301"),
    "emoji": ("\U0001f418", "\U0001f419"),
    "sharp s": ("ß", "ss"),
    "the last of 2,048 bytes": ("x" * 2047 + "y", "x" * 2048),
    "a zero width character": ("a", "a\u200b"),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_keys_are_compared_byte_by_byte(db: Connection, kind: str) -> None:
    """C34: no false blocking."""
    one, other = ALIKE[kind]
    with db.transaction():
        made = [enqueue(db, ordering_key=key) for key in (one, other, one)]
    assert keys(db) == [one, other, one]
    held = take(db, longest_run=1).claimed
    assert ids(held) == made[:2]
    assert take(db).claimed == []
    assert done(db, held) == []
    assert ids(take(db).claimed) == made[2:]


def test_one_key_in_two_queues_is_two(db: Connection) -> None:
    with db.transaction():
        enqueue(db, ordering_key="k", queue="a")
        enqueue(db, ordering_key="k", queue="b")
    for queue in ("a", "b"):
        assert len(take(db, queue=queue).claimed) == 1


def test_what_cannot_be_ordered_is_refused_before_any_work(db: Connection) -> None:
    with psycopg.connect(db.info.dsn, password=db.info.password or None) as connection:
        connection.close()
        for options in ({"ordered": True}, {"ordering_key": ""}, {"ordering_key": "x" * 2049}):
            # On a closed connection: nothing is sent.
            with pytest.raises(InvalidMessage):
                enqueue(connection, **options)
            with pytest.raises(InvalidMessage):
                OUTBOX.enqueue_many(connection, [NewMessage(event_type="e", payload=None, **options)])


# --- the producers' lock ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_second_producer_of_a_key_waits_for_the_first(
    db: Connection, url: str, level: psycopg.IsolationLevel, end: str
) -> None:
    with psycopg.connect(url) as first, beside(url) as second:
        first.isolation_level = second.connection.isolation_level = level
        one = enqueue(first, ordering_key="k")
        future = second.begin(lambda connection: enqueue(connection, ordering_key="k"))
        until_it_waits(db, second)
        # It has not drawn its id yet: others come in between.
        with db.transaction():
            between = enqueue(db, ordering_key="other")
        getattr(first, end)()
        two = future.result(timeout=20)
        assert one < between < two
        second.connection.commit()
    assert [each.id for each in all_rows(db)] == ([one, between, two] if end == "commit" else [between, two])


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_ids_follow_the_order_of_commits(db: Connection, url: str, level: psycopg.IsolationLevel) -> None:
    """By the server's own commit timestamps, from four producers at once."""

    def produces() -> None:
        with psycopg.connect(url) as connection:
            connection.isolation_level = level
            for n in range(25):
                enqueue(connection, ordering_key=f"k{n % 2}")
                if n % 5 == 4:
                    connection.rollback()
                connection.commit()

    together(*[produces] * 4)
    for key in ("k0", "k1"):
        committed = db.execute(
            "SELECT pg_xact_commit_timestamp(xmin) FROM outbox WHERE ordering_key = %s ORDER BY id", [key]
        ).fetchall()
        assert len(committed) > 30
        assert all(one <= two for (one,), (two,) in pairwise(committed))


def test_other_keys_and_unordered_messages_do_not_wait(db: Connection, url: str) -> None:
    with psycopg.connect(url) as first:
        enqueue(first, ordering_key="k")
        with db.transaction():
            db.execute("SET LOCAL lock_timeout = '2s'")
            for options in ({}, {"ordering_key": "K"}, {"ordering_key": "k", "queue": "q"}):
                enqueue(db, **options)


def test_a_batch_takes_all_its_locks_before_its_first_id(db: Connection, url: str) -> None:
    with psycopg.connect(url) as first, beside(url) as second:
        held = enqueue(first, ordering_key="z")
        batch = [NewMessage(event_type="e", payload=None, ordering_key=key) for key in ("a", "z", "m")]
        future = second.begin(lambda connection: OUTBOX.enqueue_many(connection, batch))
        until_it_waits(db, second)
        with db.transaction():
            between = enqueue(db)
        first.commit()
        receipts = future.result(timeout=20)
        second.connection.commit()
        assert held < between < receipts[0].id
    assert keys(db) == ["z", None, "a", "z", "m"]


def test_batches_with_the_same_keys_in_opposite_order_never_deadlock(db: Connection, url: str) -> None:
    names = [f"k{n}" for n in range(12)]

    def produces(order: list[str]) -> Callable[[], None]:
        def job() -> None:
            with psycopg.connect(url) as connection:
                connection.execute("SET deadlock_timeout = '20ms'")
                connection.commit()
                for _ in range(20):
                    OUTBOX.enqueue_many(
                        connection, [NewMessage(event_type="e", payload=None, ordering_key=key) for key in order]
                    )
                    connection.commit()

        return job

    together(produces(names), produces(names[::-1]), produces(names[6:] + names[:6]))
    assert value(db, "SELECT count(*) FROM outbox") == 3 * 20 * 12


def test_the_documented_line_of_sql_takes_the_very_same_lock(db: Connection, url: str) -> None:
    locks = "SELECT classid, objid, objsubid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    quiet = Outbox(notify=False)  # a notice has a lock of its own
    with psycopg.connect(url) as ours, psycopg.connect(url) as plain, beside(url) as waiting:
        quiet.enqueue(ours, "e", None, ordering_key="k")
        taken = ours.execute(locks).fetchall()
        ours.commit()
        plain.execute(PLAIN_SQL.encode())
        assert plain.execute(locks).fetchall() == taken
        assert len(taken) == 1
        future = waiting.begin(lambda connection: enqueue(connection, ordering_key="k"))
        until_it_waits(db, waiting)
        plain.execute("INSERT INTO outbox (event_type, payload, ordering_key) VALUES ('plain', '1', 'k')")
        plain.commit()
        future.result(timeout=20)
        waiting.connection.commit()
    found = db.execute("SELECT event_type FROM outbox ORDER BY id").fetchall()
    assert [event_type for (event_type,) in found] == ["e", "plain", "e"]


def test_a_savepoint_that_is_rolled_back_gives_its_locks_back(db: Connection, url: str) -> None:
    with psycopg.connect(url) as first:
        first.execute("SELECT 1")
        with first.transaction(force_rollback=True):
            enqueue(first, ordering_key="k")
        with db.transaction():
            db.execute("SET LOCAL lock_timeout = '2s'")
            enqueue(db, ordering_key="k")


def test_producers_and_finalizers_never_wait_for_each_other(db: Connection, url: str) -> None:
    """A business transaction that stays open for long must not hold up the dispatcher, nor the other way round."""
    with db.transaction():
        first = enqueue(db, ordering_key="k")
    with psycopg.connect(url) as producer, psycopg.connect(url) as finalizer:
        second = enqueue(producer, ordering_key="k")
        finalizer.execute("SET lock_timeout = '2s'")
        held = take(finalizer).claimed
        assert ids(held) == [first]
        assert done(finalizer, held) == []
        finalizer.commit()
        producer.commit()
        do(finalizer, lock_for_finalize(OUTBOX.catalog, [("default", "k")]))
        with beside(url) as other:
            future = other.begin(lambda connection: enqueue(connection, ordering_key="k"))
            third = future.result(timeout=20)
            other.connection.commit()
        finalizer.rollback()
    assert [each.id for each in all_rows(db)] == [first, second, third]


def test_a_plan_that_looks_at_the_queues_first_takes_the_locks_all_the_same(db: Connection) -> None:
    params = {"table": "t", "seed": 1, "queues": ["default"], "keys": ["k"]}
    statement = OUTBOX.catalog.statement("lock_keys", params)
    advisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    for settings in (0, 1, 2_000):
        db.execute("INSERT INTO outbox_queue (queue) SELECT 'q' || n FROM generate_series(1, %s) n", [settings])
        db.execute("ANALYZE outbox_queue")
        for switched_off in ("nestloop", "hashjoin", "mergejoin", "seqscan", "indexscan", "material", "sort"):
            with db.transaction(force_rollback=True):
                db.execute(f"SET LOCAL enable_{switched_off} = off")
                db.execute(statement.sql.encode(), statement.params)
                assert value(db, advisory) == 1
        db.execute("DELETE FROM outbox_queue")
