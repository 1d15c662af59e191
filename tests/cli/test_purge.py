"""``purge``: delete done messages past their retention, a committed step at a time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from fencepost import Outbox
from fencepost.cli import steps
from tests.cli.program import Program, Result, bury, deliver, enqueue, statuses

Call = Callable[..., Result]


def test_deletes_old_done_messages_only(call: Call, store: str) -> None:
    deliver(store, 3)
    with psycopg.connect(store) as connection:
        connection.execute(
            "UPDATE outbox SET done_at = now() - interval '8 days', created_at = now() - interval '9 days'"
        )
    deliver(store)
    bury(store)
    enqueue(store)
    assert call("purge", "--older-than", "7d", store=store) == Result(0, "deleted 3 done messages\n", "")
    assert statuses(store) == {4: "done", 5: "dead", 6: "pending"}
    assert call("purge", "--older-than", "7d", "--json", store=store).json == {"deleted": 0, "attempts": 0}


def test_deletes_old_attempts_of_the_ledger_as_well(call: Call, store: str) -> None:
    with psycopg.connect(store) as connection:
        Outbox().set_queue(connection, "default", "ann", ledger=True)
    deliver(store, 3)
    with psycopg.connect(store) as connection:
        connection.execute("UPDATE outbox_attempt SET started_at = now() - interval '31 days' WHERE row_id < 3")
    keep = call("purge", "--older-than", "7d", "--ledger-retention", "none", "--json", store=store)
    assert keep.json == {"deleted": 0, "attempts": 0}
    purged = call("purge", "--older-than", "7d", "--step", "1", store=store)
    assert purged.out == "deleted 0 done messages, and 2 of the ledger's attempts\n"
    assert call("attempts", "3", "--json", store=store).json[0]["result"] == "delivered"
    assert call("attempts", "1", store=store).code == 1


def test_commits_each_step(call: Call, store: str) -> None:
    deliver(store, 5)
    with psycopg.connect(store) as connection:
        connection.execute("CREATE TABLE step (transaction xid8, messages int)")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO step VALUES (pg_current_xact_id(), 1); RETURN NULL; END $$"
        )
        connection.execute("CREATE TRIGGER note AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION note()")
    assert call("purge", "--older-than", "0s", "--step", "2", store=store).out == "deleted 5 done messages\n"
    with psycopg.connect(store) as connection:
        steps = connection.execute("SELECT sum(messages) FROM step GROUP BY transaction ORDER BY 1").fetchall()
    assert steps == [(1,), (2,), (2,)]


def test_says_which_other_purge_is_at_work_and_waits_for_it(configured: Program, store: str) -> None:
    deliver(store, 3)
    deliver(store, 3)
    with psycopg.connect(store, application_name="nightly") as other:
        assert Outbox().purge(other, timedelta(0), limit=1) == 1
        process = configured.start("purge", "--older-than", "0s")
        assert process.stderr is not None
        line = process.stderr.readline()
        assert f"another purge is at work (server process {other.info.backend_pid}, nightly, " in line
        assert process.poll() is None
        other.commit()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "deleted 5 done messages\n", "")


def test_makes_its_steps_smaller_where_they_take_too_long(call: Call, store: str) -> None:
    deliver(store, 40)
    with psycopg.connect(store) as connection:
        connection.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(0.02); RETURN NULL; END $$"
        )
        connection.execute("CREATE TRIGGER slow AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION slow()")
        database = connection.execute("SELECT quote_ident(current_database())").fetchone()
        assert database is not None
        connection.execute(f"ALTER DATABASE {database[0]} SET statement_timeout = '300ms'".encode())
    result = call("purge", "--older-than", "0s", "--step", "32", store=store)
    assert (result.code, result.out) == (0, "deleted 40 done messages\n")
    assert "statement timeout" in result.err
    assert "going on in steps of 16" in result.err


def test_gives_up_where_even_the_smallest_step_fails(
    call: Call, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "TRIES", 2)
    deliver(store)
    with psycopg.connect(store, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE lock_not_available; END $$"
        )
        connection.execute("CREATE TRIGGER no BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION no()")
        result = call("purge", "--older-than", "0s", store=store)
    assert result.code != 0
    assert result.err.count("going on in steps of") == 2
    assert statuses(store) == {1: "done"}


def test_killed_half_way_it_leaves_nothing_behind(configured: Program, call: Call, store: str) -> None:
    with psycopg.connect(store) as connection:
        connection.execute(
            "INSERT INTO outbox (event_type, payload, created_at, status, outcome, attempts, lease_version,"
            " done_at) SELECT 'old', '{}', now() - interval '9 days', 'done', 'delivered', 1, 1,"
            " now() - interval '8 days'"
            " FROM generate_series(1, 20000)"
        )
    process = configured.start("purge", "--older-than", "7d", "--step", "50")
    count = "SELECT count(*) FROM outbox"
    with psycopg.connect(store, autocommit=True) as connection:
        deadline = time.monotonic() + 30
        while connection.execute(count).fetchone() == (20_000,):
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGKILL)
        process.wait()
    result = call("purge", "--older-than", "7d", store=store)
    assert result.code == 0
    with psycopg.connect(store) as connection:
        assert connection.execute(count).fetchone() == (0,)
