"""Heartbeats: they extend what is held, wait for nobody, and say what is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fencepost import ConfigError
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, claim_one, expire, row


def test_a_heartbeat_counts_the_lease_from_now(db: Connection) -> None:
    add(db, 3)
    held = claim(db, lease=timedelta(seconds=5))
    assert OUTBOX.heartbeat(db, held, lease=timedelta(seconds=500)) == []
    seen = all_rows(db)
    assert all(each.lease_left is not None and 490 < each.lease_left <= 500 for each in seen)
    assert {(each.status, each.token, each.attempts) for each in seen} == {("processing", 1, 1)}
    # It may shorten a lease as well: the last word counts.
    assert OUTBOX.heartbeat(db, held, lease=timedelta(seconds=1)) == []
    assert all(each.lease_left is not None and each.lease_left <= 1 for each in all_rows(db))


def test_a_lease_that_expired_and_that_nobody_took_lives_again(db: Connection) -> None:
    add(db)
    held = claim(db)
    expire(db)
    assert OUTBOX.heartbeat(db, held) == []
    assert claim(db, owner="other") == []
    assert OUTBOX.mark_done(db, held) == []


def test_a_row_that_is_being_finalized_is_skipped_without_waiting_and_not_reported_lost(
    db: Connection, db2: Connection
) -> None:
    ids = add(db, 3)
    held = claim(db, lease=timedelta(seconds=5))
    db2.execute("SET lock_timeout = '2s'; SET statement_timeout = '5s'")
    with db.transaction():
        OUTBOX.mark_done(db, held[0])
        assert OUTBOX.heartbeat(db2, held, lease=timedelta(seconds=500)) == []
        assert [each.lease_left is not None and each.lease_left > 400 for each in all_rows(db2)] == [
            False,
            True,
            True,
        ]
    assert row(db, ids[0]).status == "done"
    # Now it is known: what is finalized is nobody's any more.
    assert OUTBOX.heartbeat(db2, held) == held[:1]


def test_a_row_that_another_worker_is_taking_over_is_lost_once_that_is_committed(
    db: Connection, db2: Connection
) -> None:
    add(db)
    held = claim(db)
    expire(db)
    db2.execute("SET lock_timeout = '2s'; SET statement_timeout = '5s'")
    with db.transaction():
        (taken,) = OUTBOX.claim(db, owner="other")
        assert OUTBOX.heartbeat(db2, held) == []
    assert OUTBOX.heartbeat(db2, held) == held
    assert OUTBOX.heartbeat(db, taken) == []


def test_a_heartbeat_never_blocks_the_finalize_for_longer_than_its_own_transaction(
    db: Connection, db2: Connection
) -> None:
    add(db)
    held = claim_one(db)
    assert OUTBOX.heartbeat(db2, held) == []
    db.execute("SET lock_timeout = '1s'")
    assert OUTBOX.mark_done(db, held) == []


@pytest.mark.parametrize("lease", [timedelta(0), timedelta(seconds=-1)])
def test_a_lease_that_would_be_over_at_once_is_refused(db: Connection, lease: timedelta) -> None:
    add(db)
    held = claim(db)
    with pytest.raises(ConfigError, match="lease"):
        OUTBOX.heartbeat(db, held, lease=lease)
    assert row(db, held[0].id).lease_left
