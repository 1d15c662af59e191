"""Numbers within a key, without a gap, in queues that count: whatever is rolled back, repeated or done at once."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from fencepost import DedupeConflict, NewMessage
from fencepost.store import enqueue as enqueueing
from tests.store.ordered import beside, take, together, until_it_waits
from tests.store.rows import OUTBOX, Connection

QUEUE = "counted"


@pytest.fixture(autouse=True)
def _counted(db: Connection) -> None:
    db.execute("INSERT INTO outbox_queue (queue, sequenced) VALUES (%s, true)", [QUEUE])


def message(key: str | None = "k", queue: str = QUEUE, payload: Any = None, **options: Any) -> NewMessage:
    return NewMessage(event_type="e", payload=payload, ordering_key=key, queue=queue, **options)


def enqueue(connection: Connection, key: str | None = "k", payload: Any = None, **options: Any) -> bool:
    with connection.transaction():
        return OUTBOX.enqueue(connection, "e", payload, ordering_key=key, queue=QUEUE, **options).created


def enqueue_many(connection: Connection, *messages: NewMessage) -> list[bool]:
    with connection.transaction():
        return [each.created for each in OUTBOX.enqueue_many(connection, messages)]


def numbers(db: Connection, key: str | None = "k", queue: str = QUEUE) -> list[int | None]:
    found = db.execute(
        "SELECT key_sequence FROM outbox WHERE queue = %s AND ordering_key IS NOT DISTINCT FROM %s ORDER BY id",
        [queue, key],
    ).fetchall()
    return [number for (number,) in found]


def test_each_key_counts_from_one(db: Connection) -> None:
    for key in ("k", "other", "k", "K", "k", None):
        enqueue(db, key)
    assert numbers(db) == [1, 2, 3]
    assert numbers(db, "other") == numbers(db, "K") == [1]
    assert numbers(db, None) == [None]
    held = take(db, queue=QUEUE).claimed
    assert [each.message.key_sequence for each in held] == [1, 1, 2, 1, 3, None]


def test_a_queue_that_does_not_count_has_no_numbers(db: Connection) -> None:
    db.execute("INSERT INTO outbox_queue (queue) VALUES ('plain')")
    assert enqueue_many(db, message(queue="plain"), message(queue="without-settings")) == [True, True]
    assert numbers(db, queue="plain") == numbers(db, queue="without-settings") == [None]
    assert db.execute("SELECT * FROM outbox_key").fetchall() == []


def test_what_is_rolled_back_takes_no_number(db: Connection) -> None:
    enqueue(db)
    with db.transaction(force_rollback=True):
        enqueue(db)
        enqueue_many(db, message(), message())
    enqueue(db)
    with db.transaction():
        enqueue(db)
        with db.transaction(force_rollback=True):
            enqueue_many(db, message(), message("other"))
        enqueue(db)
    assert numbers(db) == [1, 2, 3, 4]
    assert numbers(db, "other") == []


def test_a_repeat_takes_no_number(db: Connection) -> None:
    assert [enqueue(db, dedupe_key=key) for key in ("a", "a", "b", "a")] == [True, False, True, False]
    with db.transaction():
        with pytest.raises(DedupeConflict):
            OUTBOX.enqueue(db, "e", "other", ordering_key="k", queue=QUEUE, dedupe_key="a")
        assert enqueue(db)
    assert numbers(db) == [1, 2, 3]


def test_a_repeat_under_another_key_takes_no_number_of_either(db: Connection, url: str) -> None:
    """The first one commits while the second, which has drawn its number, waits at the dedupe key."""
    with psycopg.connect(url) as first, beside(url) as second:
        OUTBOX.enqueue(first, "e", None, queue=QUEUE, ordering_key="k", dedupe_key="d")
        future = second.begin(lambda connection: enqueue(connection, "other", dedupe_key="d"))
        until_it_waits(db, second)
        first.commit()
        assert future.result(timeout=20) is False
        second.connection.commit()
    assert enqueue(db, "other")
    assert (numbers(db), numbers(db, "other")) == ([1], [1])


def test_a_batch_counts_in_its_order(db: Connection) -> None:
    enqueue(db)
    assert enqueue_many(db, *[message(key) for key in ("k", "other", "k", None, "k")]) == [True] * 5
    assert numbers(db) == [1, 2, 3, 4]
    assert numbers(db, "other") == [1]


def test_a_batch_with_repeats_counts_what_is_inserted(db: Connection) -> None:
    enqueue(db, dedupe_key="b")
    made = enqueue_many(
        db,
        message(dedupe_key="a"),
        message(dedupe_key="b"),
        message(dedupe_key="a"),
        message(),
        message(None, dedupe_key="c"),
        message("k", "plain", dedupe_key="a"),
        message(dedupe_key="d"),
    )
    assert made == [True, False, False, True, True, True, True]
    assert numbers(db) == [1, 2, 3, 4]


def test_a_batch_of_several_statements_counts_through(db: Connection) -> None:
    count = 2 * enqueueing.CHUNK + 5
    enqueue_many(db, *[message() for _ in range(count)])
    assert numbers(db) == list(range(1, count + 1))


def test_producers_at_once_leave_no_gap_and_keep_to_the_order_of_ids(db: Connection, url: str) -> None:
    def produces() -> None:
        with psycopg.connect(url) as connection:
            for n in range(20):
                OUTBOX.enqueue_many(connection, [message(f"k{m % 2}") for m in range(n % 3 + 1)])
                if n % 4 == 3:
                    connection.rollback()
                OUTBOX.enqueue(connection, "e", n, queue=QUEUE, ordering_key="k0", dedupe_key=f"{n}")
                connection.commit()

    together(produces, produces, produces)
    for key in ("k0", "k1"):
        found = numbers(db, key)
        assert found == list(range(1, len(found) + 1))
        assert len(found) > 20


def test_under_a_snapshot_a_number_drawn_meanwhile_is_a_serialization_failure(db: Connection, url: str) -> None:
    """For the caller's retry; it never takes a number twice."""
    enqueue(db)
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM outbox")
        enqueue(db)
        with pytest.raises(psycopg.errors.SerializationFailure):
            OUTBOX.enqueue(connection, "e", None, queue=QUEUE, ordering_key="k")
        connection.rollback()
        OUTBOX.enqueue(connection, "e", None, queue=QUEUE, ordering_key="k")
    assert numbers(db) == [1, 2, 3]
