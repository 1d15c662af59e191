"""Sessions as callers have them: other isolation levels, other time zones, transactions that stay open."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Outbox
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, claim_one, expire, row, value

LEVELS = ["repeatable read", "serializable"]
SESSIONS = {
    **{level: f"SET default_transaction_isolation = '{level}'" for level in LEVELS},
    "Kathmandu": "SET TimeZone = 'Asia/Kathmandu'",
    "far west": "SET TimeZone = '-12:00'; SET DateStyle = 'German'; SET IntervalStyle = 'sql_standard'",
    "no search path": "SET search_path = ''",
}


@pytest.fixture(params=list(SESSIONS.values()), ids=list(SESSIONS))
def session(request: pytest.FixtureRequest, url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(request.param)
        yield connection


def test_the_whole_life_of_a_message_in_an_odd_session(session: Connection, db: Connection) -> None:
    done, retried, crashed = add(session, 3)
    held = claim(session)
    assert [each.id for each in held] == [done, retried, crashed]
    assert all(abs(each.message.created_at - datetime.now(UTC)) < timedelta(minutes=5) for each in held)
    assert all(timedelta(0) <= each.age < timedelta(seconds=30) for each in held)
    assert OUTBOX.heartbeat(session, held, lease=timedelta(seconds=100)) == []
    assert all(90 < (each.lease_left or 0) <= 100 for each in all_rows(db))
    assert OUTBOX.mark_done(session, held[0]) == []
    assert OUTBOX.reschedule(session, held[1], delay=timedelta(hours=3), error="later") == []
    assert round(row(db, retried).due_in / 60) == 180
    expire(db)
    assert OUTBOX.reap(session, max_attempts=1) == 1
    assert OUTBOX.stats(session).dead_by_outcome == {"crashed": 1}
    (dead,) = OUTBOX.list_dead(session)
    assert dead.dead_at is not None
    assert abs(dead.dead_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert OUTBOX.retry_dead(session, [crashed], actor="ann") == [crashed]
    assert claim_one(session).id == crashed
    assert OUTBOX.purge(session, older_than=timedelta(hours=1)) == 0
    assert OUTBOX.purge(session, older_than=timedelta(0)) == 1


def test_an_instant_means_the_same_whatever_the_session_believes(session: Connection, db: Connection) -> None:
    when = datetime(2100, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
    add(session, available_at=when)
    assert value(db, "SELECT available_at = timestamptz '2100-07-01 12:30:15.123456+00' FROM outbox")


@pytest.mark.parametrize("level", LEVELS)
def test_two_claims_at_once_under_a_snapshot_never_share_a_row(db: Connection, url: str, level: str) -> None:
    """The second may get other rows or a serialization failure to repeat; never a row of the first."""
    ids = add(db, 10)
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        for connection in (first, second):
            connection.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
            connection.commit()
            connection.execute("SELECT count(*) FROM outbox")  # both snapshots are taken before either claim
        mine = [each.id for each in OUTBOX.claim(first, owner="first", batch=5)]
        beside = [each.id for each in OUTBOX.claim(second, owner="second", batch=3)]
        first.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            OUTBOX.claim(second, owner="second", batch=10)
        second.rollback()
        after = [each.id for each in OUTBOX.claim(second, owner="second", batch=10)]
        second.commit()
    assert mine == ids[:5]
    assert beside == ids[5:8]
    assert after == ids[5:]


@pytest.mark.parametrize("level", LEVELS)
def test_a_stale_finalize_under_a_snapshot_is_an_error_or_a_lost_lease_never_a_write(
    db: Connection, url: str, level: str
) -> None:
    (row_id,) = add(db)
    old = claim_one(db)
    with psycopg.connect(url) as stale:
        stale.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        stale.commit()
        stale.execute("SELECT count(*) FROM outbox")  # it sees itself as the holder from here on
        expire(db)
        claim_one(db, owner="new")
        before = row(db, row_id)
        with pytest.raises(psycopg.errors.SerializationFailure):
            OUTBOX.mark_done(stale, old)
        stale.rollback()
        assert OUTBOX.mark_done(stale, old) == [old]
        stale.commit()
    assert row(db, row_id).xmin == before.xmin


def test_a_transaction_that_has_been_open_for_long_does_not_make_leases_short(db: Connection, url: str) -> None:
    """now() stands still in a transaction; a lease must not be counted from there."""
    add(db)
    with psycopg.connect(url) as slow:
        slow.execute("SELECT now(), pg_sleep(0.3)")
        OUTBOX.claim(slow, owner="slow", lease=timedelta(milliseconds=300))
        left = value(slow, "SELECT extract(epoch FROM lease_until - now())::float8 FROM outbox")
        assert left >= 0.6
        slow.commit()


def test_what_became_due_while_a_transaction_was_open_is_claimed_in_it(db: Connection, url: str) -> None:
    with psycopg.connect(url) as slow:
        slow.execute("SELECT now()")
        (row_id,) = add(db)
        assert [each.id for each in OUTBOX.claim(slow, owner="slow")] == [row_id]


def test_a_claim_and_a_release_in_one_transaction(db: Connection) -> None:
    (row_id,) = add(db)
    with db.transaction():
        held = Outbox().claim(db, owner="w")
        assert OUTBOX.release(db, held) == []
        assert [each.token for each in Outbox().claim(db, owner="w")] == [2]
    assert (row(db, row_id).attempts, row(db, row_id).status) == (1, "processing")
