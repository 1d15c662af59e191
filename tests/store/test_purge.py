"""Clean-up: only done rows past their retention go, in small steps, beside everything else."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any, Self

import psycopg
import pytest

from fencepost import ConfigError, Outbox
from fencepost.core.operation import Rows, Statement, run
from fencepost.drivers import driver_for
from fencepost.store import upkeep
from fencepost.store.upkeep import Purged
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, value, wait_for

DAY = timedelta(days=1)


def history(db: Connection, count: int, *, days_ago: float, status: str = "done") -> list[int]:
    """Insert ``count`` rows as an outbox of some days ago would hold them."""
    closed = {
        "done": "'done', 'delivered', 1, 1, NULL, NULL, {at}, NULL, {at}",
        "skipped": "'done', 'skipped', 1, 1, NULL, NULL, {at}, {at}, timestamptz '9999-12-31 00:00:00+00'",
        "dead": "'dead', 'permanent', 1, 1, NULL, NULL, NULL, {at}, timestamptz '9999-12-31 00:00:00+00'",
        "processing": "'processing', NULL, 1, 1, 'w', {at}, NULL, NULL, {at}",
        "pending": "'pending', NULL, 0, 0, NULL, NULL, NULL, NULL, {at}",
    }[status].format(at="statement_timestamp() - %(days)s * interval '1 day'")
    rows = db.execute(
        f"""
        INSERT INTO outbox (event_type, payload, created_at, status, outcome, attempts, lease_version,
                            lease_owner, lease_until, done_at, dead_at, available_at)
        SELECT 'old', '{{}}', statement_timestamp() - %(days)s * interval '1 day', {closed}
        FROM generate_series(1, %(count)s) RETURNING id
        """,
        {"days": days_ago, "count": count},
    ).fetchall()
    return [row[0] for row in rows]


def left(db: Connection) -> list[int]:
    return [each.id for each in all_rows(db)]


def purge_all(db: Connection, **options: Any) -> int:
    total = 0
    while gone := OUTBOX.purge(db, **options):
        total += gone
    return total


def test_done_and_skipped_rows_past_their_retention_go_and_nothing_else(db: Connection) -> None:
    history(db, 3, days_ago=8)
    history(db, 2, days_ago=8, status="skipped")
    kept = history(db, 3, days_ago=6)
    for status in ("dead", "pending", "processing"):
        kept += history(db, 4, days_ago=800, status=status)
    assert OUTBOX.purge(db, older_than=7 * DAY) == 5
    assert left(db) == sorted(kept)
    assert OUTBOX.purge(db, older_than=7 * DAY) == 0


def test_retention_counts_from_the_end_not_from_the_beginning(db: Connection) -> None:
    """A message that waited for weeks and was delivered yesterday is yesterday's."""
    ids = history(db, 3, days_ago=30)
    db.execute("UPDATE outbox SET done_at = statement_timestamp() - interval '1 day'")
    assert OUTBOX.purge(db, older_than=7 * DAY) == 0
    assert left(db) == ids


def test_no_retention_at_all_still_leaves_what_is_not_done(db: Connection) -> None:
    history(db, 3, days_ago=0.0001)
    kept = history(db, 1, days_ago=1, status="dead") + add(db)
    assert OUTBOX.purge(db, older_than=timedelta(0)) == 3
    assert left(db) == kept


def test_one_step_deletes_at_most_its_limit(db: Connection) -> None:
    ids = history(db, 250, days_ago=10)
    assert OUTBOX.purge(db, older_than=DAY, limit=100) == 100
    assert left(db) == ids[100:]
    assert OUTBOX.purge(db, older_than=DAY, limit=1) == 1
    assert OUTBOX.purge(db, older_than=DAY, limit=2**40) == 149


@pytest.mark.parametrize("status", ["dead", "pending", "processing"])
def test_old_rows_that_must_stay_do_not_starve_it(db: Connection, status: str) -> None:
    kept = history(db, 700, days_ago=100, status=status)
    history(db, 30, days_ago=50)
    young = history(db, 300, days_ago=0)
    history(db, 30, days_ago=50)
    assert purge_all(db, older_than=7 * DAY, limit=10) >= 30
    assert set(kept) <= set(left(db))
    # The young ones ended the search: what is done behind them has its turn when they are old enough.
    assert left(db)[: len(kept) + len(young)] == kept + young


def test_old_rows_scattered_over_kept_ones_are_all_found(db: Connection) -> None:
    kept = []
    for _ in range(20):
        kept += history(db, 40, days_ago=90, status="dead")
        history(db, 3, days_ago=90)
    assert purge_all(db, older_than=7 * DAY, limit=7) == 60
    assert left(db) == kept


def test_each_call_is_bounded_and_goes_on_where_the_last_one_ended(db: Connection) -> None:
    """Thousands of old rows that must stay lie in front, and some of them between."""
    kept = history(db, 4_500, days_ago=100, status="dead")
    history(db, 100, days_ago=50)
    kept += history(db, 700, days_ago=20, status="dead")
    history(db, 25, days_ago=20)
    outbox = Outbox()
    steps = [outbox.purge(db, 7 * DAY, limit=100) for _ in range(8)]
    # Five windows of 200 a call; the 100 end their call, as they are its limit.
    assert steps == [0, 0, 0, 0, 100, 25, 0, 0]
    assert left(db) == kept
    more = history(db, 3, days_ago=20)
    assert sum(outbox.purge(db, 7 * DAY, limit=100) for _ in range(7)) == len(more)


def test_one_step_looks_at_a_bounded_number_of_rows(db: Connection) -> None:
    history(db, 3_000, days_ago=100, status="dead")
    history(db, 10, days_ago=50)
    sent: list[Statement] = []

    def execute(statement: Statement) -> Rows:
        sent.append(statement)
        return driver_for(db).execute(statement)

    after: int | None = 0
    deleted = []
    while after is not None:
        sent.clear()
        step = run(upkeep.purge(OUTBOX.catalog, older_than=DAY, limit=100, after=after), execute)
        assert sum(each.params["window"] for each in sent) <= 1_000
        deleted.append(step.deleted)
        after = step.after
    assert deleted in ([0, 0, 0, 10], [0, 0, 10])


def test_rows_that_somebody_has_locked_are_passed_over_without_waiting(db: Connection, db2: Connection) -> None:
    ids = history(db, 10, days_ago=10)
    db2.execute("SET lock_timeout = '2s'; SET statement_timeout = '5s'")
    with db.transaction():
        db.execute("SELECT 1 FROM outbox WHERE id = ANY (%s) FOR UPDATE", [ids[:4]])
        assert OUTBOX.purge(db2, older_than=DAY) == 6
    assert OUTBOX.purge(db2, older_than=DAY) == 4


def test_one_purge_at_a_time_and_who_comes_second_gives_way(db: Connection, db2: Connection) -> None:
    ids = history(db, 10, days_ago=10)
    with db.transaction():
        assert OUTBOX.purge(db, older_than=DAY, limit=4) == 4
        assert OUTBOX.purge(db, older_than=DAY, limit=4) == 4  # its own turn goes on
        assert OUTBOX.purge(db2, older_than=DAY) == 0
        terms = {"older_than": DAY, "limit": 10, "after": 3}
        assert step(db2, **terms) == Purged(0, 3, gave_way=True)  # it will go on from there
        holder = run(upkeep.purge_holder(OUTBOX.catalog), driver_for(db2).execute)
        assert holder is not None
        assert holder.pid == value(db, "SELECT pg_backend_pid()")
        assert run(upkeep.purge_holder(Outbox(table="other").catalog), driver_for(db2).execute) is None
    assert run(upkeep.purge_holder(OUTBOX.catalog), driver_for(db2).execute) is None
    assert OUTBOX.purge(db2, older_than=DAY) == 2
    assert len(ids) == 10


def step(db: Connection, **terms: Any) -> Purged:
    return run(upkeep.purge(OUTBOX.catalog, **terms), driver_for(db).execute)


class Purgers:
    """Threads that purge until nothing old is left, or until they are killed."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self.gone: list[int] = []
        self.killed: list[BaseException] = []
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._purge) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(timeout=60)

    def _purge(self) -> None:
        count = 0
        try:
            with impatient(self._url, "purger") as connection:
                while value(connection, "SELECT count(*) FROM outbox WHERE done_at < now() - interval '1 day'"):
                    count += OUTBOX.purge(connection, older_than=DAY, limit=50)
        except BaseException as error:
            # What was killed is told as such or, when that got lost on the way, as a server that went away.
            is_killed = isinstance(error, psycopg.OperationalError) and error.sqlstate in (None, "57P01")
            (self.killed if is_killed else self.failures).append(error)
        self.gone.append(count)


def impatient(url: str, name: str) -> Connection:
    connection = psycopg.connect(url, autocommit=True, application_name=name)
    connection.execute("SET statement_timeout = '1s'; SET lock_timeout = '200ms'")
    return connection


def test_three_purgers_at_once_beside_traffic_one_killed_half_way(db: Connection, url: str) -> None:
    old = history(db, 5_000, days_ago=10)
    kept = history(db, 100, days_ago=10, status="dead")
    delivered = 0
    with impatient(url, "worker") as worker, Purgers(url, 3) as purgers:
        wait_for(db, "(SELECT count(*) FROM outbox WHERE done_at < now() - interval '1 day') < 4000")
        killed = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'purger'"
        assert (
            value(
                db, f"{killed} AND pid = (SELECT min(pid) FROM pg_stat_activity WHERE application_name = 'purger')"
            )
            == 1
        )
        while value(db, "SELECT count(*) FROM outbox WHERE done_at < now() - interval '1 day'"):
            add(worker, 5)
            held = claim(worker)
            assert OUTBOX.mark_done(worker, held) == []
            delivered += len(held)
    assert not purgers.failures
    assert len(purgers.killed) == 1
    assert sum(purgers.gone) <= len(old)
    assert set(left(db)) & {*old, *kept} == set(kept)
    assert len(left(db)) == len(kept) + delivered


@pytest.mark.parametrize("terms", [{"older_than": timedelta(seconds=-1)}, {"older_than": DAY, "limit": 0}])
def test_terms_that_cannot_work_are_refused(db: Connection, terms: dict[str, Any]) -> None:
    history(db, 1, days_ago=10)
    with pytest.raises(ConfigError):
        OUTBOX.purge(db, **terms)
    assert len(left(db)) == 1


def test_an_endless_retention_keeps_everything(db: Connection) -> None:
    ids = history(db, 3, days_ago=10_000)
    assert OUTBOX.purge(db, older_than=timedelta.max) == 0
    assert left(db) == ids


def test_a_purge_frees_the_dedupe_key(db: Connection) -> None:
    (first,) = add(db, dedupe_key="once")
    with db.transaction():
        assert OUTBOX.enqueue(db, "test.event", {"n": 0}, dedupe_key="once").created is False
    OUTBOX.mark_done(db, claim(db))
    assert OUTBOX.purge(db, older_than=timedelta(0)) == 1
    with db.transaction():
        receipt = OUTBOX.enqueue(db, "test.event", {"n": 0}, dedupe_key="once")
    assert receipt.created is True
    assert receipt.id > first
