"""The figures."""

from __future__ import annotations

from datetime import timedelta

from fencepost.drivers import driver_for
from tests.store.rows import OUTBOX, Connection, add, claim, expire


def test_an_empty_outbox(db: Connection) -> None:
    stats = OUTBOX.stats(db)
    assert (stats.queues, stats.done, stats.done_is_capped) == ((), 0, False)
    assert stats.dead_by_outcome == {}
    assert stats.workers == {}
    assert stats.oldest_age is None
    assert stats.total("pending") == 0


def test_each_state_is_counted_where_it_belongs(db: Connection) -> None:
    add(db, 12, queue="a")
    held = claim(db, queues=["a"], owner="ann", batch=8)
    OUTBOX.mark_done(db, held[:1])
    OUTBOX.mark_dead(db, held[1:3], error="x")
    OUTBOX.mark_dead(db, held[3:4], error="x", outcome="unroutable")
    expire(db, [held[4].id])
    add(db, 2, queue="b", delay=timedelta(hours=1))
    add(db, 1, queue="c")
    claim(db, queues=["c"], owner="bob")
    add(db, 1, queue="only-done")
    OUTBOX.mark_done(db, claim(db, queues=["only-done"]))

    stats = OUTBOX.stats(db)
    counts = {
        each.queue: (each.pending, each.processing, each.blocked, each.dead, each.expired) for each in stats.queues
    }
    assert counts == {"a": (4, 4, 0, 3, 1), "b": (2, 0, 0, 0, 0), "c": (0, 1, 0, 0, 0)}
    assert [each.queue for each in stats.queues] == ["a", "b", "c"]
    assert stats.dead_by_outcome == {"permanent": 2, "unroutable": 1}
    assert (stats.done, stats.done_is_capped) == (2, False)
    # Only live leases speak for a worker.
    assert stats.workers == {"ann": 3, "bob": 1}
    assert (stats.total("pending"), stats.total("processing"), stats.total("expired")) == (6, 5, 1)


def test_the_age_of_the_oldest_undelivered_message(db: Connection) -> None:
    add(db, 3)
    assert claim(db, batch=1)
    db.execute("UPDATE outbox SET available_at = available_at - interval '10 min' WHERE status = 'pending'")
    age = OUTBOX.stats(db).oldest_age
    assert age is not None
    assert timedelta(minutes=10) <= age < timedelta(minutes=11)


def test_what_is_dead_done_or_not_due_yet_has_no_age(db: Connection) -> None:
    add(db, 2)
    db.execute("UPDATE outbox SET available_at = available_at - interval '10 min'")
    done, dead = claim(db)
    OUTBOX.mark_done(db, done)
    OUTBOX.mark_dead(db, dead, error="x")
    add(db, 1, delay=timedelta(hours=1))
    assert OUTBOX.stats(db).oldest_age is None


def test_a_message_in_its_backoff_is_as_old_as_it_is(db: Connection) -> None:
    add(db)
    db.execute("UPDATE outbox SET created_at = now() - interval '2 h', available_at = now() - interval '2 h'")
    OUTBOX.reschedule(db, claim(db), delay=timedelta(minutes=5), error="not now")
    age = OUTBOX.stats(db).oldest_age
    assert age is not None
    assert timedelta(hours=2) <= age < timedelta(hours=2, minutes=1)


def test_the_count_of_the_history_is_capped(db: Connection) -> None:
    add(db, 5)
    OUTBOX.mark_done(db, claim(db))
    statement = OUTBOX.catalog.statement("stats_done", {"cap": 3})
    # One more than the cap says that there are more.
    assert driver_for(db).execute(statement) == [(4,)]
