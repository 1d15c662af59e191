"""The breakers of queues: opened once, probed one at a time behind a fence; no claim passes an open one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import psycopg

from fencepost.core.operation import run
from fencepost.core.queue import OpenBreaker, QueueSettings
from fencepost.drivers import driver_for
from fencepost.store import outbox as store
from fencepost.store.breaker import (
    claim_probe,
    close_breaker,
    note_delivered,
    note_unavailable,
    open_breaker,
    reopen_breaker,
    take_probe,
)
from tests.store.databases import Migrated
from tests.store.ordered import CATALOG, do, take, take_suspects
from tests.store.rows import LEASE, OUTBOX, Connection, add, claim, expire, row, value

ZERO, MINUTE = timedelta(0), timedelta(minutes=1)
TERMS = store.ClaimTerms("w", LEASE, 12)


def opened(db: Connection, pause: timedelta = ZERO) -> None:
    assert do(db, open_breaker(CATALOG, "default", pause=pause, error="down"))


def breaker(db: Connection) -> OpenBreaker | None:
    return next((each.breaker for each in OUTBOX.queues(db) if each.queue == "default"), None)


def probe(db: Connection, patience: timedelta = MINUTE) -> tuple[list[int], int | None]:
    found, version = do(db, claim_probe(CATALOG, TERMS, "default", patience=patience))
    return [each.id for each in found.claimed], version


def test_while_it_is_open_nothing_is_claimed_and_then_everything(db: Connection) -> None:
    add(db, 3)
    add(db, queue="other")
    expired = claim(db, batch=1, queues=["default"])
    expire(db)
    opened(db)
    assert take(db).claimed == []
    assert take_suspects(db) == []
    assert [each.message.queue for each in claim(db)] == ["other"]
    assert [row(db, each.id).attempts for each in expired] == [1]
    assert do(db, close_breaker(CATALOG, "default", version=None, notify=True))
    assert len(take(db).claimed) == 2
    assert len(take_suspects(db)) == 1


def test_it_opens_once_however_many_see_the_outage(db: Connection, migrated: Migrated) -> None:
    def try_it(number: int) -> bool:
        with psycopg.connect(migrated.url) as conn:
            return do(conn, open_breaker(CATALOG, "default", pause=MINUTE, error=f"down {number}"))

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(try_it, range(8))) == [False] * 7 + [True]
    found = breaker(db)
    assert found is not None
    assert (found.trips, found.version) == (0, 1)
    assert 0 <= found.open_for.total_seconds() < 30
    assert 30 < found.probe_in.total_seconds() <= 60


def test_one_probe_at_a_time_by_the_clock_of_the_database(db: Connection, migrated: Migrated) -> None:
    add(db, 9)
    opened(db, pause=MINUTE)
    assert probe(db) == ([], None)
    db.execute("UPDATE outbox_queue SET breaker_probe_at = now()")

    def try_it(_: int) -> int:
        with psycopg.connect(migrated.url) as conn:
            return len(probe(conn)[0])

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(try_it, range(8))) == [0] * 7 + [1]


def test_a_probe_that_dies_gives_its_right_back_by_the_clock(db: Connection) -> None:
    add(db, 2)
    opened(db)
    dead, version = probe(db, patience=ZERO)
    assert len(dead) == 1
    again, newer = probe(db)
    assert len(again) == 1
    assert version is not None
    assert newer == version + 1
    # It comes back from the dead: it decides nothing any more.
    assert not do(db, close_breaker(CATALOG, "default", version=version, notify=False))
    assert not do(db, reopen_breaker(CATALOG, "default", version=version, pause=MINUTE, error="late"))
    assert breaker(db) is not None
    assert do(db, close_breaker(CATALOG, "default", version=newer, notify=True))
    assert breaker(db) is None


def test_each_opening_and_each_closing_has_a_version_that_no_other_had(db: Connection) -> None:
    versions = []
    for _ in range(3):
        opened(db)
        found = breaker(db)
        assert found is not None
        versions.append(found.version)
        assert do(db, close_breaker(CATALOG, "default", version=found.version, notify=False))
        versions.append(value(db, "SELECT breaker_version FROM outbox_queue"))
    assert versions == sorted(set(versions))


def test_a_failed_probe_counts_and_one_that_told_nothing_does_not(db: Connection) -> None:
    add(db)
    opened(db)
    _, version = probe(db)
    assert version is not None
    assert do(db, reopen_breaker(CATALOG, "default", version=version, pause=ZERO, error="still\x00down"))
    found = breaker(db)
    assert found is not None
    assert (found.trips, found.error) == (1, r"still\x00down")
    (version,) = [do(db, take_probe(CATALOG, "default", patience=MINUTE))]
    assert version is not None
    assert do(db, reopen_breaker(CATALOG, "default", version=version, pause=MINUTE, error=None))
    after = breaker(db)
    assert after is not None
    assert (after.trips, after.error) == (1, found.error)
    assert after.probe_in > ZERO


def test_where_nothing_is_due_the_right_is_given_back_at_once(db: Connection) -> None:
    opened(db)
    assert probe(db)[0] == []
    add(db)
    assert len(probe(db)[0]) == 1


def test_a_crash_suspect_is_a_probe_as_well(db: Connection) -> None:
    add(db)
    claim(db)
    expire(db)
    opened(db)
    assert len(probe(db)[0]) == 1


def test_a_paused_queue_is_not_probed(db: Connection) -> None:
    add(db)
    opened(db)
    OUTBOX.pause_queue(db, "default", "ann")
    assert probe(db) == ([], None)


def test_a_probe_does_not_wait_for_an_operators_open_transaction(db: Connection, migrated: Migrated) -> None:
    add(db)
    opened(db)
    with psycopg.connect(migrated.url) as operator:
        OUTBOX.set_queue(operator, "default", "ann", weight=2)
        db.execute("SET lock_timeout = '1s'")
        assert probe(db) == ([], None)
        operator.commit()
    found, version = probe(db)
    assert len(found) == 1
    assert version is not None


def test_what_an_operator_sets_meanwhile_and_the_breaker_leave_each_other_alone(db: Connection) -> None:
    opened(db, pause=MINUTE)
    OUTBOX.set_queue(db, "default", "ann", weight=7)
    found = next(each for each in OUTBOX.queues(db) if each.queue == "default")
    assert (found.weight, found.breaker and found.breaker.error) == (7, "down")
    assert do(db, close_breaker(CATALOG, "default", version=None, notify=False))
    assert not do(db, close_breaker(CATALOG, "default", version=None, notify=False))
    (after,) = OUTBOX.queues(db)
    assert replace(after, changed_at=None) == QueueSettings(queue="default", weight=7, changed_by="ann")


def test_it_needs_no_row_of_its_queue_before(db: Connection) -> None:
    assert OUTBOX.queues(db) == []
    assert run(open_breaker(CATALOG, "default", pause=ZERO, error="x"), driver_for(db).execute)
    assert [each.queue for each in OUTBOX.queues(db)] == ["default"]


def test_failures_of_many_workers_are_counted_together_until_something_is_delivered(
    db: Connection, migrated: Migrated
) -> None:
    def fail(_: int) -> bool:
        with psycopg.connect(migrated.url) as conn:
            return do(conn, note_unavailable(CATALOG, "default", threshold=5, pause=MINUTE, error="down"))

    assert [fail(n) for n in range(4)] == [False] * 4
    assert [each.failures_seen for each in OUTBOX.queues(db)] == [4]
    do(db, note_delivered(CATALOG, "default"))
    assert [each.failures_seen for each in OUTBOX.queues(db)] == [0]
    with ThreadPoolExecutor(7) as pool:
        assert sorted(pool.map(fail, range(7))) == [False] * 6 + [True]
    found = breaker(db)
    assert found is not None
    assert found.error == "down"
    assert [each.failures_seen for each in OUTBOX.queues(db)] == [0]


def test_failures_to_reach_it_open_it_at_the_threshold_and_not_before(db: Connection) -> None:
    def failed() -> bool:
        return do(db, note_unavailable(CATALOG, "default", threshold=3, pause=MINUTE, error="down"))

    assert [failed() for _ in range(2)] == [False, False]
    assert breaker(db) is None
    assert failed()
    assert breaker(db) is not None
