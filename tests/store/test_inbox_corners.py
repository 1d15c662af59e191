"""The inbox in the corners: savepoints, deadlocks, wrong clocks, deletes by hand, time-outs, frozen consumers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Acceptance, Inbox, MessageConflict, SequenceGap
from fencepost.core.inbox import entry
from fencepost.core.operation import Rows, Statement, run
from fencepost.drivers import driver_for
from fencepost.store import inbox as store
from tests.store.rows import Connection, value

INBOX = Inbox("billing")
ENTRIES = "SELECT count(*) FROM outbox_inbox"


@pytest.fixture
def effects(db: Connection) -> Iterator[None]:
    db.execute("DROP TABLE IF EXISTS effect; CREATE TABLE effect (n bigserial, message_id text)")
    yield
    db.execute("DROP TABLE effect")


def made(db: Connection) -> list[str]:
    found: list[str] = value(db, "SELECT coalesce(array_agg(message_id ORDER BY n), '{}') FROM effect")
    return found


def effect(connection: Connection, message_id: str = "m") -> None:
    connection.execute("INSERT INTO effect (message_id) VALUES (%s)", [message_id])


def age(db: Connection, by: str = "30 days") -> None:
    db.execute("UPDATE outbox_inbox SET accepted_at = accepted_at - %s::interval", [by])


def test_the_whole_of_it_behind_a_pooler_in_odd_sessions(db: Connection, effects: None) -> None:
    """Each in its transaction, and so each in a session that others left settings in."""
    for found in (Acceptance.ACCEPTED, Acceptance.REPEAT):
        with db.transaction():
            assert INBOX.accept(db, "é", fence=2**63 - 1, body=b"\x00\\x\xff") is found
    with db.transaction():
        assert INBOX.accept(db, "é", fence=7, body=b"\x00\\x\xff") is Acceptance.STALE
        with pytest.raises(MessageConflict):
            INBOX.accept(db, "é", body=b"\x00")
        effect(db)
    for number in (1, 2, 3):
        with db.transaction():
            assert INBOX.accept_in_sequence(db, "k", number)
    age(db)
    assert INBOX.purge(db, timedelta(days=10)) == 1
    assert (made(db), value(db, ENTRIES)) == (["m"], 0)


def test_a_savepoint_around_both_takes_both_back(db: Connection, effects: None) -> None:
    with db.transaction():
        with db.transaction(force_rollback=True):
            assert INBOX.accept(db, "m")
            effect(db)
        effect(db, "note")
    assert made(db) == ["note"]
    with db.transaction():
        assert INBOX.accept(db, "m")


def test_a_savepoint_around_the_effect_alone_leaves_the_message_accepted(db: Connection, effects: None) -> None:
    """What the documentation warns of: who swallows the failure of an effect has said that it is done."""
    with db.transaction():
        assert INBOX.accept(db, "m")
        with db.transaction(force_rollback=True):
            effect(db)
    with db.transaction():
        assert INBOX.accept(db, "m") is Acceptance.REPEAT
    assert made(db) == []


def test_a_handler_that_uses_a_savepoint_of_its_own_and_goes_well(db: Connection, effects: None) -> None:
    for _ in range(2):
        with db.transaction():
            if INBOX.accept(db, "m"):
                with db.transaction():
                    effect(db)
                with db.transaction(force_rollback=True):
                    effect(db, "no")
    assert made(db) == ["m"]


@pytest.mark.parametrize("what", ["messages", "consumers"])
def test_two_in_the_opposite_order_are_a_deadlock_and_then_go_well(
    url: str, db: Connection, effects: None, what: str
) -> None:
    meet = threading.Barrier(2)

    def accepted(connection: Connection, each: str) -> Acceptance:
        if what == "messages":
            return INBOX.accept(connection, each)
        return Inbox(each).accept(connection, "m")

    def consume(first: str, second: str) -> int:
        deadlocks = 0
        while True:
            with psycopg.connect(url) as connection:
                try:
                    for place, each in enumerate((first, second)):
                        if accepted(connection, each):
                            effect(connection, each)
                        if place == 0 and not deadlocks:
                            meet.wait(30)
                    connection.commit()
                except psycopg.errors.DeadlockDetected:
                    deadlocks += 1
                    continue
                return deadlocks

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(consume, *order) for order in (("a", "b"), ("b", "a"))]
        assert sorted(each.result() for each in found) == [0, 1]
    assert sorted(made(db)) == ["a", "b"]


def test_a_clock_that_was_stepped_back_only_keeps_entries_longer(db: Connection) -> None:
    with db.transaction():
        assert INBOX.accept(db, "m")
    age(db, "-300 days")  # taken in while the clock was ahead
    assert INBOX.purge(db, timedelta(days=10)) == 0
    with db.transaction():
        assert INBOX.accept(db, "m") is Acceptance.REPEAT
        assert INBOX.accept(db, "n")


def test_an_entry_deleted_by_hand_is_new_and_a_key_deleted_by_hand_is_a_gap(db: Connection) -> None:
    with db.transaction():
        assert INBOX.accept(db, "m")
        assert INBOX.accept_in_sequence(db, "k", 1)
    db.execute("DELETE FROM outbox_inbox; DELETE FROM outbox_inbox_key")
    with db.transaction():
        assert INBOX.accept(db, "m")
        with pytest.raises(SequenceGap):
            INBOX.accept_in_sequence(db, "k", 2)
        assert INBOX.accept_in_sequence(db, "k", 2, allow_gap=True)


def test_a_key_whose_move_is_swallowed_is_not_taken_for_moved(db: Connection) -> None:
    with db.transaction(force_rollback=True):
        assert INBOX.accept_in_sequence(db, "k", 1)
        db.execute("CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        db.execute("CREATE TRIGGER s BEFORE UPDATE ON outbox_inbox_key FOR EACH ROW EXECUTE FUNCTION swallow()")
        with pytest.raises(Exception, match=r'"outbox_inbox_key" answers with no row'):
            INBOX.accept_in_sequence(db, "k", 2)


def test_two_first_messages_at_once_both_have_their_effects_in_order(
    url: str, db: Connection, effects: None
) -> None:
    start = threading.Barrier(20)

    def consume(key: str, number: int) -> None:
        with psycopg.connect(url) as connection:
            start.wait(30)
            while True:
                try:
                    assert INBOX.accept_in_sequence(connection, key, number)
                    effect(connection, f"{key}{number}")
                    connection.commit()
                except SequenceGap:
                    connection.rollback()  # the first one is on its way
                    continue
                return

    with ThreadPoolExecutor(20) as pool:
        found = [pool.submit(consume, key, number) for key in "abcdefghij" for number in (2, 1)]
        for each in found:
            each.result()
    order = made(db)
    assert len(order) == 20
    assert all(order.index(f"{key}1") < order.index(f"{key}2") for key in "abcdefghij")


class Injected(psycopg.OperationalError):
    """Bad luck, as the database tells it."""


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "57014"])
@pytest.mark.parametrize(
    "at", ["inbox_accept", "inbox_find", "inbox_key_hold", "inbox_key_first", "inbox_key_move"]
)
def test_bad_luck_at_any_statement_is_told_as_such_and_loses_nothing(db: Connection, code: str, at: str) -> None:
    def execute(statement: Statement) -> Rows:
        if statement.name == at:
            failure = Injected(code)
            failure.sqlstate = code
            raise failure
        return driver_for(db).execute(statement)

    def take(send: Any) -> list[Acceptance]:
        catalog, message = INBOX.catalog, entry("billing", "m", None, None)
        with db.transaction():
            found = [run(store.accept(catalog, message), send) for _ in range(2)]
            for number in (1, 2, 2):
                operation = store.accept_in_sequence(catalog, "billing", "k", number, allow_gap=False, first=1)
                found.append(run(operation, send))
            return found

    with pytest.raises(Injected, match=code):
        take(execute)
    assert value(db, ENTRIES) == 0
    accepted, repeat = Acceptance.ACCEPTED, Acceptance.REPEAT
    assert take(driver_for(db).execute) == [accepted, repeat, accepted, accepted, repeat]


FROZEN = """
import sys, psycopg
from fencepost import Inbox
with psycopg.connect(sys.argv[1]) as connection:
    assert Inbox("billing").accept(connection, "m")
    connection.execute("INSERT INTO effect (message_id) VALUES ('frozen')")
    connection.execute("SET idle_in_transaction_session_timeout = '300ms'")
    print("effect", flush=True)
    sys.stdin.readline()
    try:
        connection.commit()
    except psycopg.Error:
        print("refused", flush=True)
"""


def test_a_consumer_frozen_before_its_commit_is_thrown_out_by_its_own_time_out(
    url: str, db: Connection, effects: None
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as frozen:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "effect\n"
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            with db.transaction():
                assert INBOX.accept(db, "m")
                effect(db)
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        said, _ = frozen.communicate("go on\n", timeout=30)
    assert said == "refused\n"
    assert made(db) == ["m"]
