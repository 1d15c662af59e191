"""The purge of an inbox: in steps, beside traffic, several at once, impatient, and killed half way."""

from __future__ import annotations

import threading
from datetime import timedelta

import psycopg

from fencepost import Acceptance, Inbox
from fencepost.core.operation import Rows, Statement, run
from fencepost.drivers import driver_for
from fencepost.store import inbox as store
from tests.store.rows import Connection, value, wait_for

INBOX = Inbox("billing")
DAY = timedelta(days=1)
ENTRIES = "SELECT count(*) FROM outbox_inbox"


def fill(db: Connection, count: int, days: float, prefix: str) -> None:
    db.execute(
        "INSERT INTO outbox_inbox (consumer, message_id, accepted_at)"
        " SELECT 'billing', %(prefix)s || n, now() - %(days)s * interval '1 day'"
        " FROM generate_series(1, %(count)s) n",
        {"prefix": prefix, "days": days, "count": count},
    )


def test_each_step_of_a_purge_begins_where_the_last_one_ended(db: Connection) -> None:
    fill(db, 10, 40, "a")
    fill(db, 5, 30, "b")
    fill(db, 1, 1, "young")
    sent: list[float] = []

    def execute(statement: Statement) -> Rows:
        sent.append(statement.params["after"])
        return driver_for(db).execute(statement)

    gone, after = [], 0
    while True:
        step = run(store.purge(INBOX.catalog, "billing", older_than=10 * DAY, limit=4, after=after), execute)
        gone.append(step.count)
        if step.after is None:
            break
        after = step.after
    assert gone == [4, 4, 4, 3]  # ten of them at one instant
    assert sent[0] == 0
    assert sent[1] == sent[2] < sent[3]
    assert value(db, ENTRIES) == 1


def test_a_purge_keeps_what_is_younger_than_asked_and_what_others_took_in(db: Connection) -> None:
    fill(db, 2, 11, "old")
    fill(db, 2, 9, "young")
    fill(db, 2, 11, "theirs")
    db.execute("UPDATE outbox_inbox SET consumer = 'archive' WHERE message_id LIKE 'theirs%'")
    assert INBOX.purge(db, 10 * DAY) == 2
    left = value(db, "SELECT array_agg(message_id ORDER BY message_id) FROM outbox_inbox")
    assert left == ["theirs1", "theirs2", "young1", "young2"]


def test_a_purge_begins_anew_after_its_end_and_leaves_nothing_for_ever(db: Connection) -> None:
    fill(db, 5, 30, "a")
    inbox = Inbox("billing")
    assert [inbox.purge(db, 10 * DAY, limit=3) for _ in range(3)] == [3, 2, 0]
    fill(db, 3, 90, "older")
    assert [inbox.purge(db, 10 * DAY, limit=3) for _ in range(2)] == [3, 0]
    fill(db, 9, 30, "b")
    with db.transaction(force_rollback=True):
        assert inbox.purge(db, 10 * DAY, limit=5) == 5
    assert sum(inbox.purge(db, 10 * DAY, limit=5) for _ in range(4)) == 9
    assert value(db, ENTRIES) == 0


class Purgers:
    """Threads that purge until nothing old is left, impatient as a service's connections are."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self.killed: list[BaseException] = []
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._purge) for _ in range(count)]

    def __enter__(self) -> Purgers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(timeout=60)

    def _purge(self) -> None:
        try:
            with impatient(self._url, "inbox purger") as connection:
                while value(connection, f"{ENTRIES} WHERE accepted_at < now() - interval '10 days'"):
                    INBOX.purge(connection, 10 * DAY, limit=50)
        except BaseException as error:
            is_killed = isinstance(error, psycopg.OperationalError) and error.sqlstate in (None, "57P01")
            (self.killed if is_killed else self.failures).append(error)


def impatient(url: str, name: str) -> Connection:
    connection = psycopg.connect(url, autocommit=True, application_name=name)
    connection.execute("SET statement_timeout = '1s'; SET lock_timeout = '200ms'")
    return connection


def test_three_purgers_at_once_beside_traffic_one_killed_half_way(url: str, db: Connection) -> None:
    old, young = 5_000, 200
    fill(db, old, 30, "old")
    fill(db, young, 1, "young")
    taken = 0
    with impatient(url, "consumer") as consumer, Purgers(url, 3) as purgers:
        wait_for(db, f"({ENTRIES}) < 4500")
        killed = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid ="
        victim = "(SELECT min(pid) FROM pg_stat_activity WHERE application_name = 'inbox purger')"
        assert value(db, f"{killed} {victim}") == 1
        while value(db, f"{ENTRIES} WHERE accepted_at < now() - interval '10 days'"):
            with consumer.transaction():
                assert INBOX.accept(consumer, f"new{taken}")
                assert INBOX.accept(consumer, f"young{taken % young + 1}") is Acceptance.REPEAT
            taken += 1
    assert purgers.failures == []
    assert len(purgers.killed) == 1
    assert value(db, ENTRIES) == young + taken
