"""The inbox where several are at the same message: one effect, whatever commits, rolls back or dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Acceptance, Inbox, SchemaError, SequenceGap
from fencepost.core.inbox import entry
from fencepost.core.operation import run
from fencepost.drivers import driver_for
from fencepost.store import inbox as store
from tests.store.rows import Connection, value

INBOX = Inbox("billing")
LEVELS = ["read committed", "repeatable read", "serializable"]
PATIENCE = 60.0
"""Seconds after which what is waited for counts as never coming."""
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def effects(db: Connection) -> Iterator[None]:
    db.execute("DROP TABLE IF EXISTS effect; CREATE TABLE effect (message_id text, by int)")
    yield
    db.execute("DROP TABLE effect")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(60) as made:
        yield made


def until_waiting(db: Connection, count: int, *others: Future[Any]) -> None:
    while value(db, WAITS) < count:
        for other in others:
            assert not other.done(), other.result()


def consume(url: str, level: str = "read committed", start: threading.Barrier | None = None) -> Acceptance:
    """Take the message in and make its effect; again where the database asks for that."""
    while True:
        with psycopg.connect(url) as connection:
            connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            connection.execute("SELECT 1")  # its snapshot is taken
            if start is not None:
                start.wait()
                start = None
            try:
                found = INBOX.accept(connection, "m", fence=1, body=b"x")
                if found:
                    connection.execute("INSERT INTO effect VALUES ('m', 1)")
                connection.commit()
            except psycopg.errors.SerializationFailure:
                continue
            return found


@pytest.mark.parametrize("level", LEVELS)
def test_fifty_at_once_make_one_effect(
    url: str, db: Connection, effects: None, pool: ThreadPoolExecutor, level: str
) -> None:
    start = threading.Barrier(50)
    found = [each.result() for each in [pool.submit(consume, url, level, start) for _ in range(50)]]
    assert sorted(found, key=str) == [Acceptance.ACCEPTED] + [Acceptance.REPEAT] * 49
    assert value(db, "SELECT count(*) FROM effect") == 1


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_concurrent_repeat_waits_for_the_first(
    url: str, db: Connection, effects: None, pool: ThreadPoolExecutor, ending: str
) -> None:
    with psycopg.connect(url) as first:
        assert INBOX.accept(first, "m")
        second = pool.submit(consume, url)
        until_waiting(db, 1, second)
        getattr(first, ending)()
    assert second.result() is (Acceptance.REPEAT if ending == "commit" else Acceptance.ACCEPTED)


@pytest.mark.parametrize("level", LEVELS[1:])
def test_above_read_committed_the_wait_may_end_in_a_serialization_failure(
    url: str, db: Connection, effects: None, pool: ThreadPoolExecutor, level: str
) -> None:
    def once() -> None:
        with psycopg.connect(url) as connection:
            connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            INBOX.accept(connection, "m")

    with psycopg.connect(url) as first:
        assert INBOX.accept(first, "m")
        second = pool.submit(once)
        until_waiting(db, 1, second)
        first.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        second.result()
    assert consume(url, level) is Acceptance.REPEAT


KILLED = """
import os, sys, signal, psycopg
from fencepost import Inbox
with psycopg.connect(sys.argv[1]) as connection:
    assert Inbox("billing").accept(connection, "m")
    connection.execute("INSERT INTO effect VALUES ('m', 2)")
    print("effect", flush=True)
    sys.stdin.read()
"""


def test_killed_between_the_effect_and_the_commit_it_is_made_once_after_all(
    url: str, db: Connection, effects: None
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"effect\n"
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
    assert consume(url) is Acceptance.ACCEPTED
    assert consume(url) is Acceptance.REPEAT
    assert value(db, "SELECT array_agg(by) FROM effect") == [1]


def test_what_another_consumer_took_in_is_neither_taken_in_nor_compared(db: Connection) -> None:
    other = Inbox("archive", allow_autocommit=True)
    assert other.accept(db, "m", fence=9, body=b"theirs")
    assert not INBOX.has_accepted(db, "m")
    with db.transaction():
        assert INBOX.accept(db, "m", fence=1, body=b"ours") is Acceptance.ACCEPTED
        assert INBOX.accept(db, "m", fence=1, body=b"ours") is Acceptance.REPEAT
    assert other.accept(db, "m", fence=9, body=b"theirs") is Acceptance.REPEAT


def test_an_entry_that_is_purged_while_we_look_is_taken_in_anew(db: Connection) -> None:
    with db.transaction():
        assert INBOX.accept(db, "m")
    purged = False

    def execute(statement: Any) -> Any:
        nonlocal purged
        if statement.name == "inbox_find" and not purged:
            purged = True
            db.execute("DELETE FROM outbox_inbox")
        return driver_for(db).execute(statement)

    with db.transaction():
        operation = store.accept(INBOX.catalog, entry("billing", "m", None, None))
        assert run(operation, execute) is Acceptance.ACCEPTED
    assert purged


def test_an_insert_that_is_swallowed_is_reported(db: Connection) -> None:
    with db.transaction(force_rollback=True):
        db.execute("CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        for table in ("outbox_inbox", "outbox_inbox_key"):
            trigger = f"CREATE TRIGGER swallow BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION swallow()"
            db.execute(trigger.encode())
        with pytest.raises(SchemaError, match=r'"outbox_inbox" answers with no row.*swallows it'):
            INBOX.accept(db, "m")
        with pytest.raises(SchemaError, match=r'"outbox_inbox_key" answers with no row.*swallows it'):
            INBOX.accept_in_sequence(db, "k", 1)


def test_each_number_of_a_key_is_kept_and_the_next_one_follows_it(db: Connection) -> None:
    for number in (1, 2, 3):
        with db.transaction():
            assert INBOX.accept_in_sequence(db, "k", number) is Acceptance.ACCEPTED
            assert INBOX.last_in_sequence(db, "k") == number
    with db.transaction():
        assert INBOX.accept_in_sequence(db, "k", 2) is Acceptance.REPEAT
        with pytest.raises(SequenceGap):
            INBOX.accept_in_sequence(db, "k", 5)


def in_sequence(url: str, number: int, start: threading.Barrier) -> Acceptance:
    with psycopg.connect(url) as connection:
        start.wait()
        give_up_at = time.monotonic() + PATIENCE
        while True:
            try:
                found = INBOX.accept_in_sequence(connection, "k", number)
            except SequenceGap:
                connection.rollback()  # its predecessor is on its way
                assert time.monotonic() < give_up_at, f"number {number - 1} never came"
                continue
            if found:
                connection.execute("INSERT INTO effect VALUES ('k', %s)", [number])
            return found


def test_numbers_that_come_at_once_and_twice_have_their_effects_in_order(
    url: str, db: Connection, effects: None, pool: ThreadPoolExecutor
) -> None:
    with db.transaction():
        assert INBOX.accept_in_sequence(db, "k", 1)
    start = threading.Barrier(20)
    numbers = [number for number in range(2, 12) for _ in range(2)]
    found = [each.result() for each in [pool.submit(in_sequence, url, number, start) for number in numbers]]
    assert found.count(Acceptance.ACCEPTED) == 10
    assert value(db, "SELECT array_agg(by ORDER BY ctid) FROM effect") == list(range(2, 12))


def test_two_first_messages_of_a_key_wait_for_each_other(
    url: str, db: Connection, effects: None, pool: ThreadPoolExecutor
) -> None:
    with psycopg.connect(url) as first:
        assert INBOX.accept_in_sequence(first, "k", 1)
        second = pool.submit(in_sequence, url, 1, threading.Barrier(1))
        until_waiting(db, 1, second)
        first.commit()
    assert second.result() is Acceptance.REPEAT


def test_a_purge_passes_by_what_others_hold(url: str, db: Connection) -> None:
    with db.transaction():
        assert all(INBOX.accept(db, f"m{number}") for number in range(3))
    db.execute("UPDATE outbox_inbox SET accepted_at = now() - interval '30 days'")
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM outbox_inbox WHERE message_id = 'm1' FOR UPDATE")
        with db.transaction():
            db.execute("SET LOCAL lock_timeout = '1s'")
            assert INBOX.purge(db, timedelta(days=10)) == 2
    assert value(db, "SELECT array_agg(message_id) FROM outbox_inbox") == ["m1"]


@pytest.mark.parametrize(
    ("column", "bad"),
    [
        ("consumer", "''"),
        ("message_id", "repeat('x', 513)"),
        ("fence", "-1"),
        ("digest", "'x'"),
    ],
)
def test_impossible_entries_are_refused_by_the_table(db: Connection, column: str, bad: str) -> None:
    values = {"consumer": "'c'", "message_id": "'m'"} | {column: bad}
    with pytest.raises(psycopg.errors.CheckViolation, match="outbox_inbox_limits"):
        db.execute(
            f"INSERT INTO outbox_inbox ({', '.join(values)}) VALUES ({', '.join(values.values())})".encode()
        )


@pytest.mark.parametrize(("column", "bad"), [("consumer", "''"), ("key", "''"), ("last_sequence", "0")])
def test_impossible_keys_are_refused_by_the_table(db: Connection, column: str, bad: str) -> None:
    values = {"consumer": "'c'", "key": "'k'", "last_sequence": "1"} | {column: bad}
    columns = ", ".join(values)
    with pytest.raises(psycopg.errors.CheckViolation, match="outbox_inbox_number"):
        db.execute(f"INSERT INTO outbox_inbox_key ({columns}) VALUES ({', '.join(values.values())})".encode())
