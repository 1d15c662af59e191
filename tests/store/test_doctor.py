"""The doctor: each check finds what it is for, says what to do, and is content otherwise."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Outbox
from fencepost.core.operation import Rows, Statement, run
from fencepost.core.records import Finding
from fencepost.drivers import driver_for
from fencepost.embedded import PostgresServer
from fencepost.store import breaker, doctor, keys, queues
from tests.client.adapters import ADAPTERS, Adapter
from tests.postgres import fresh_database
from tests.store.databases import Migrated, migrated_database
from tests.store.rows import OUTBOX, Connection, add, claim, expire, value
from tests.store.test_catalog import FILES
from tests.store.test_search_path import HOSTILE

CHECKS = [
    "schema",
    "delivered_order",
    "commit_order",
    "dead_heads",
    "stranded_keys",
    "vacuum",
    "dead_rows",
    "indexes",
    "expired_leases",
    "paused_queues",
    "breakers",
    "oldest_message",
    "queue_settings",
]
LOCK = (
    """SELECT pg_advisory_xact_lock(hashtextextended('"public"."outbox" ' || queue || ' ' || ordering_key, 1))"""
)


def found(db: Connection, check: str) -> Finding:
    (finding,) = [each for each in OUTBOX.doctor(db) if each.check == check]
    return finding


def ordered(db: Connection, key: str, count: int = 1, **options: Any) -> list[int]:
    return add(db, count, ordering_key=key, **options)


INSERT = "INSERT INTO outbox (event_type, payload, ordering_key) VALUES ('e', '1', %s) RETURNING id"


@pytest.fixture
def fresh(postgres: PostgresServer) -> Iterator[Migrated]:
    """A database of the test's own, for those that change its tables or need its statistics for themselves."""
    with migrated_database(postgres) as migrated:
        yield migrated


def test_where_all_is_well_every_check_says_so(db: Connection) -> None:
    ordered(db, "k", 3)
    with db.transaction():
        OUTBOX.mark_done(db, OUTBOX.claim(db, "w", batch=1))
    findings = OUTBOX.doctor(db)
    assert [each.check for each in findings] == CHECKS
    assert {each.severity for each in findings if each.check != "vacuum"} == {"ok"}
    assert {each.remedy for each in findings if each.check != "vacuum"} == {None}


# --- order -----------------------------------------------------------------------------------------------


def inserted_the_other_way_round(db: Connection, url: str, key: str = "k") -> tuple[int, int]:
    """Two producers in plain SQL, without the lock: the one that drew its id first commits last."""
    with psycopg.connect(url) as slow:
        first = value(slow, INSERT, [key])
        second = value(db, INSERT, [key])
        slow.commit()
    return first, second


def test_commits_in_another_order_than_ids(db: Connection, url: str) -> None:
    ordered(db, "k")  # the first open message of a key is left out: it may have been promoted
    _, second = inserted_the_other_way_round(db, url)
    finding = found(db, "commit_order")
    assert finding.severity == "problem"
    assert (
        f"1 ordering key out of order, such as 'k' in queue default: message {second} was committed"
        in finding.text
    )
    assert "by 2 untouched ones among the newest 50000 messages" in finding.text
    assert finding.remedy is not None
    assert finding.remedy.endswith(LOCK)


def test_what_was_delivered_in_another_order_than_ids(db: Connection, url: str) -> None:
    with psycopg.connect(url) as slow:
        first = value(slow, INSERT, ["k"])
        second = value(db, INSERT, ["k"])
        deliver(db, second)
        slow.commit()
    finding = found(db, "delivered_order")  # the first is still open
    assert finding.severity == "problem"
    assert f"message {second} was delivered before an earlier message of its key" in finding.text
    deliver(db, first)
    assert found(db, "delivered_order") == finding.__class__(
        finding.check,
        finding.severity,
        finding.text.replace("by 1 delivered", "by 2 delivered"),
        finding.remedy,
    )


def deliver(db: Connection, *ids: int) -> None:
    with db.transaction():
        held = OUTBOX.claim(db, "w")
        assert [each.id for each in held] == list(ids)
        assert OUTBOX.mark_done(db, held) == []


def test_the_remedy_helps(db: Connection, url: str) -> None:
    """Who takes the lock first cannot overtake, whether it is the library or plain SQL."""
    line = doctor.lock_line(OUTBOX.catalog).replace("queue ||", "'default' ||").replace("ordering_key", "'k'")
    with psycopg.connect(url) as plain:
        plain.execute(line.encode())
        plain.execute(INSERT, ["k"])
        with db.transaction(force_rollback=True):
            db.execute("SET LOCAL lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                OUTBOX.enqueue(db, "e", 1, ordering_key="k")


def test_what_the_library_does_is_in_order(db: Connection) -> None:
    """Parked, promoted, retried, skipped, released and deferred messages are no inversions."""
    ids = ordered(db, "k", 6)
    ordered(db, "other", 2)
    for key in ("k", "other"):
        ordered(db, key, 2)
    (head,) = claim(db, batch=1)
    OUTBOX.mark_dead(db, head, error="x")
    OUTBOX.release(db, claim(db))  # parks what waits behind it
    assert value(db, "SELECT count(*) FROM outbox WHERE status = 'blocked'") == 7
    with db.transaction():
        OUTBOX.skip_dead(db, [head.id], "ann")
    ordered(db, "k", 2)
    healthy = [found(db, check).severity for check in ("delivered_order", "commit_order")]
    assert healthy == ["ok", "ok"]
    while True:
        with db.transaction():
            held = OUTBOX.claim(db, "w", batch=3)
            OUTBOX.mark_done(db, held)
        assert [found(db, check).severity for check in ("delivered_order", "commit_order")] == ["ok", "ok"]
        if not held:
            break
    assert value(db, "SELECT count(*) FROM outbox WHERE status = 'done' AND id >= %s", [ids[0]]) == 14


def test_a_promoted_head_is_not_taken_for_a_late_commit(db: Connection) -> None:
    first, second = ordered(db, "k", 2)
    db.execute(
        "UPDATE outbox SET status = 'blocked', available_at = '9999-12-31 00:00:00+00' WHERE id IN (%s, %s)",
        [first, second],
    )
    db.execute("DELETE FROM outbox WHERE id = %s", [first])
    ordered(db, "k", 2)
    with db.transaction():
        run(keys.promote_stranded(OUTBOX.catalog, after=None, limit=10), driver_for(db).execute)
    finding = found(db, "commit_order")
    assert finding.severity == "ok"
    assert "by 2 untouched ones" in finding.text


def test_only_the_newest_are_looked_at(db: Connection, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inserted_the_other_way_round(db, url)
    monkeypatch.setattr(doctor, "NEWEST", 3)
    add(db, 3)
    assert "among the newest 3 messages" in found(db, "commit_order").text
    assert found(db, "commit_order").severity == "ok"


def test_a_server_that_keeps_no_commit_timestamps(db: Connection) -> None:
    def execute(statement: Statement) -> Rows:
        if statement.name == "doctor_server":
            return [(False, True)]
        assert statement.name != "doctor_commits"
        return driver_for(db).execute(statement)

    findings = run(doctor.examine(OUTBOX.catalog), execute)
    (finding,) = [each for each in findings if each.check == "commit_order"]
    assert (finding.severity, finding.text) == (
        "unknown",
        "ids cannot be compared with the order of commits: track_commit_timestamp is off",
    )


def test_dead_heads_and_stranded_keys_are_counted(db: Connection) -> None:
    for key in ("a", "b"):
        ordered(db, key, 2)
        (head,) = claim(db, batch=1)
        OUTBOX.mark_dead(db, head, error="x")
    ordered(db, "alone", 1)
    OUTBOX.mark_dead(db, claim(db), error="x")
    finding = found(db, "dead_heads")
    assert finding.severity == "problem"
    assert finding.text == "2 of 3 keys with open messages cannot move: others wait behind a dead message"
    assert found(db, "stranded_keys").severity == "ok"
    claim(db)
    db.execute("DELETE FROM outbox WHERE status = 'dead' AND ordering_key = 'a'")
    db.execute(
        "UPDATE outbox SET status = 'blocked', available_at = '9999-12-31 00:00:00+00'"
        " WHERE ordering_key = 'a' AND status = 'pending'"
    )
    assert found(db, "stranded_keys").text.startswith("1 of 3 keys with open messages: parked")


# --- the table -------------------------------------------------------------------------------------------

SPOILED = {
    "DROP INDEX outbox_ready": (True, "index outbox_ready is missing"),
    "ALTER TABLE outbox DROP CONSTRAINT outbox_state": (True, "constraint outbox_state is missing"),
    "ALTER TABLE outbox ALTER COLUMN id SET CACHE 20": (True, "the id sequence has CACHE 20"),
    "ALTER TABLE outbox ALTER COLUMN id DROP IDENTITY": (True, "column id has no identity sequence"),
    "ALTER TABLE outbox RENAME COLUMN last_error TO other": (False, "column last_error is missing"),
    "DROP TABLE outbox": (False, "is missing"),
    "DELETE FROM outbox_migration WHERE version = 2": (False, "migration 0002 order_and_queues is not applied"),
    "INSERT INTO outbox_migration VALUES (99, 'later', 'x')": (False, "does not know: upgrade fencepost"),
    "UPDATE outbox_migration SET checksum = 'x'": (False, "was applied with other content"),
}


@pytest.mark.parametrize("change", SPOILED)
def test_tables_that_are_not_in_order(fresh: Migrated, change: str) -> None:
    is_readable, text = SPOILED[change]
    with psycopg.connect(fresh.url, autocommit=True) as db:
        db.execute(change.encode())
        findings = OUTBOX.doctor(db)
    assert (findings[0].check, findings[0].severity) == ("schema", "problem")
    assert text in findings[0].text
    assert ("vacuum" in [each.check for each in findings]) == is_readable


def test_no_tables_at_all(postgres: PostgresServer) -> None:
    with fresh_database(postgres) as url, psycopg.connect(url) as db:
        (finding,) = OUTBOX.doctor(db)
    assert (finding.check, finding.severity) == ("schema", "problem")
    assert "do not exist: run `fencepost migrate`" in finding.text


def test_indexes_that_stand_in_the_way(fresh: Migrated) -> None:
    with psycopg.connect(fresh.url, autocommit=True) as db:
        db.execute("CREATE INDEX status_free ON outbox (aggregate_type, aggregate_id)")
        assert found(db, "indexes").text == "5 indexes, none of them in the way"
        db.execute("CREATE INDEX mine ON outbox (created_at) WHERE status = 'pending'")
        finding = found(db, "indexes")
        assert (finding.severity, finding.text.partition(":")[0]) == ("warning", "index mine names status")
        db.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'mine'::regclass")
        invalid, in_the_way = (each for each in OUTBOX.doctor(db) if each.check == "indexes")
        assert invalid.text == "index mine is invalid: it costs and serves nobody"
        assert in_the_way == finding


def test_autovacuum_that_is_off(fresh: Migrated) -> None:
    with psycopg.connect(fresh.url, autocommit=True) as db:
        assert found(db, "dead_rows").severity == "ok"
        db.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
        finding = found(db, "dead_rows")
        assert (finding.severity, finding.text) == ("problem", "autovacuum is off")


def test_many_dead_rows_that_nobody_removes(fresh: Migrated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MANY_DEAD", 100)
    with psycopg.connect(fresh.url, autocommit=True) as db:
        add(db, 200)
        db.execute("UPDATE outbox SET last_error = 'x'")
        db.execute("UPDATE outbox SET last_error = 'y'")
        db.execute("SELECT pg_stat_force_next_flush()")
        db.execute("SELECT 1")
        finding = found(db, "dead_rows")
        assert finding.severity == "warning"
        assert re.fullmatch("about 200 live and [24]00 dead rows; last vacuum: never", finding.text)
        db.execute("VACUUM outbox")
        assert found(db, "dead_rows").severity == "ok"


# --- vacuum ----------------------------------------------------------------------------------------------


def vacuum(db: Connection) -> Finding:
    return found(db, "vacuum")


@contextmanager
def old_transaction(url: str) -> Iterator[int]:
    """A transaction with a snapshot, forgotten by its program; yields its process id."""
    other = psycopg.connect(url, application_name="forgotten")
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    yield value(other, "SELECT pg_backend_pid()")
    other.close()


def test_a_session_that_holds_back_vacuum_is_named(fresh: Migrated, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(fresh.url, autocommit=True) as db, old_transaction(fresh.url) as pid:
        assert vacuum(db).severity == "ok"
        monkeypatch.setattr(doctor, "HELD_TOO_LONG", timedelta(0))
        finding = vacuum(db)
        assert finding.severity == "warning"
        assert finding.text.startswith(f"session {pid} (forgotten) holds back vacuum for 0 s and ")
        assert "idle in transaction since its query of 0 s ago" in finding.text
        assert finding.remedy == f"SELECT pg_terminate_backend({pid}), or let it end"
        db.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        assert f"session {pid} " not in vacuum(db).text


def test_a_prepared_transaction_that_holds_back_vacuum(fresh: Migrated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "HELD_TOO_LONG", timedelta(0))
    with psycopg.connect(fresh.url, autocommit=True) as db:
        db.execute("BEGIN")
        db.execute(INSERT, ["k"])
        db.execute("PREPARE TRANSACTION 'left behind'")
        finding = vacuum(db)
        db.execute("ROLLBACK PREPARED 'left behind'")
    assert finding.text.startswith("prepared transaction left behind holds back vacuum for 0 s")
    assert finding.remedy == "COMMIT PREPARED or ROLLBACK PREPARED it"


def test_a_replication_slot_that_holds_back_vacuum(db: Connection) -> None:
    held = {"xids": 0}

    def execute(statement: Statement) -> Rows:
        if statement.name == "doctor_vacuum":
            return [("replication slot", "standby", held["xids"], None, None, None, None)]
        return driver_for(db).execute(statement)

    for held["xids"], severity in ((99_999, "ok"), (100_000, "warning")):
        (finding,) = [each for each in run(doctor.examine(OUTBOX.catalog), execute) if each.check == "vacuum"]
        assert finding.severity == severity
        assert finding.text.startswith("replication slot standby holds back")


def test_who_may_see_nothing_is_told_so(fresh: Migrated) -> None:
    """Privileges on the tables only, and somebody else's session in the way."""
    with old_transaction(fresh.url) as pid, psycopg.connect(fresh.url) as db:
        db.execute("CREATE ROLE onlooker")
        db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO onlooker")
        db.execute("SET LOCAL ROLE onlooker")
        findings = {each.check: each for each in OUTBOX.doctor(db)}
        db.rollback()
    assert list(findings) == CHECKS
    finding = findings["vacuum"]
    assert finding.severity == "unknown"
    assert f"session {pid} (forgotten)" in finding.text
    assert {each.severity for check, each in findings.items() if check != "vacuum"} == {"ok"}


# --- the queues ------------------------------------------------------------------------------------------


def test_expired_leases_that_nobody_takes_over(db: Connection) -> None:
    add(db, 3, queue="mail")
    claim(db)
    expire(db)
    assert found(db, "expired_leases").severity == "ok"
    db.execute("UPDATE outbox SET lease_until = now() - interval '5 min' WHERE status = 'processing'")
    finding = found(db, "expired_leases")
    assert finding.severity == "problem"
    assert finding.text == "queue mail: 3 leases ended, the first 5 min ago, and nobody takes over"
    OUTBOX.pause_queue(db, "mail", "ann")
    assert found(db, "expired_leases").severity == "ok"


def test_paused_queues_in_which_messages_wait(db: Connection) -> None:
    OUTBOX.pause_queue(db, "mail", "ann")
    assert found(db, "paused_queues").severity == "ok"
    add(db, 3, queue="mail")
    finding = found(db, "paused_queues")
    assert finding.severity == "warning"
    assert finding.text == "queue mail: 3 messages waiting; paused since 0 s by ann"
    assert finding.remedy == "fencepost resume mail"


def test_queues_that_are_paused_for_a_reason(db: Connection) -> None:
    OUTBOX.pause_queue(db, "hook", "w1", reason="410 Gone")
    OUTBOX.pause_queue(db, "mail", "ann", reason="moving")
    add(db, 1, queue="mail")
    findings = [each for each in OUTBOX.doctor(db) if each.check == "paused_queues"]
    assert {each.severity for each in findings} == {"warning"}
    assert [each.text for each in findings] == [
        "queue mail: 1 message waiting; paused since 0 s by ann: moving",
        "queue hook: paused: 410 Gone",
    ]
    assert [each.remedy for each in findings] == ["fencepost resume mail", "fencepost resume hook"]
    for queue in ("hook", "mail"):
        OUTBOX.resume_queue(db, queue, "ann")
    assert found(db, "paused_queues").severity == "ok"


def test_open_breakers(db: Connection) -> None:
    run(
        breaker.open_breaker(OUTBOX.catalog, "hook", pause=timedelta(0), error="connection refused"),
        driver_for(db).execute,
    )
    finding = found(db, "breakers")
    assert (finding.severity, finding.text) == ("warning", "queue hook: open for 0 s: connection refused")
    assert finding.remedy is not None
    assert "fencepost queue close-breaker hook" in finding.remedy
    db.execute("UPDATE outbox_queue SET breaker_trips = 3, breaker_opened_at = now() - interval '3 h'")
    assert found(db, "breakers").text == "queue hook: open for 3 h, 3 probes failed: connection refused"
    assert OUTBOX.close_breaker(db, "hook")
    assert found(db, "breakers").severity == "ok"


def test_the_oldest_message_that_is_due(db: Connection) -> None:
    assert found(db, "oldest_message").text == "nothing is due"
    add(db, 1, queue="mail", delay=timedelta(hours=1))
    assert found(db, "oldest_message").text == "nothing is due"
    add(db, 1, queue="sms")
    assert found(db, "oldest_message").severity == "ok"
    db.execute("UPDATE outbox SET available_at = now() - interval '3 h' WHERE queue = 'sms'")
    finding = found(db, "oldest_message")
    assert (finding.severity, finding.text) == ("warning", "queue sms: 3 h old")


def test_settings_that_do_not_fit(db: Connection) -> None:
    OUTBOX.set_queue(db, "mail", "ann", lease=timedelta(seconds=5))
    finding = found(db, "queue_settings")
    assert finding.severity == "warning"
    assert finding.text.startswith("queue mail: lease: a publish may take 10 s but the lease ends after 5 s")
    # Written by hand, past the checks of the library.
    db.execute("UPDATE outbox_queue SET publish_timeout_seconds = 5")
    assert found(db, "queue_settings").text.startswith("queue mail: publish_timeout: a publish may take 5 s")


# --- over any connection ---------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", ADAPTERS, ids=str)
async def test_both_twins_over_any_connection(database18: str, adapter: Adapter) -> None:
    with psycopg.connect(database18) as connection:
        OUTBOX.migrate(connection)
    async with adapter.producer(database18) as producer:
        assert await producer.call("pause_queue", "mail", "ann")
        assert await producer.call("resume_queue", "mail", "ann")
        half = timedelta(milliseconds=500)
        settings = await producer.call("set_queue", "mail", "ann", weight=3, backoff_base=half, sequenced=True)
        assert (settings.weight, settings.backoff_base, settings.sequenced) == (3, half, True)
        assert await producer.call("queues") == [settings]
        for n in range(2):
            await producer.enqueue("e", n, queue="mail", ordering_key="k")
        held = await producer.call("claim", "w", batch=1)
        await producer.call("mark_dead", held, "no")
        await producer.commit()
        page = await producer.call("blocked_keys", queue="mail")
        assert [(each.reason, each.followers) for each in page.keys] == [("dead", 1)]
        assert (await producer.call("blocked_keys", after=("mail", "k"))).keys == ()
        assert [each.check for each in await producer.call("doctor")] == CHECKS


# --- at depth --------------------------------------------------------------------------------------------

DEEP = """
INSERT INTO outbox (event_type, payload, ordering_key, status, outcome, attempts, lease_version, done_at)
SELECT 'e', to_json(repeat('x', 200)), 'key ' || n % 1000, 'done', 'delivered', 1, 1, now() + n * interval '1 ms'
FROM generate_series(1, 150000) AS n;
INSERT INTO outbox (event_type, payload, ordering_key)
SELECT 'e', to_json(repeat('x', 200)), 'key ' || n % 30000 FROM generate_series(1, 60000) AS n
"""


def test_it_takes_no_long_look_at_a_long_history(fresh: Migrated) -> None:
    fresh.janitor.execute(DEEP)
    began = time.monotonic()
    findings = OUTBOX.doctor(fresh.janitor)
    assert time.monotonic() - began < 10
    assert [each.check for each in findings] == CHECKS
    texts = {each.check: each.text for each in findings}
    assert "untouched ones among the newest 50000" in texts["commit_order"]
    assert texts["dead_heads"] == "none of the first 20000 keys waits behind a dead message"


# --- whoever stands in the search_path -------------------------------------------------------------------


def every_queue_key_and_doctor_operation(outbox: Outbox, conn: Connection, execute: Any) -> None:
    """Send each statement about queues, keys and health once."""
    outbox.pause_queue(conn, "mail", "ann")
    outbox.resume_queue(conn, "mail", "ann")
    outbox.set_queue(conn, "mail", "ann", lease=timedelta(seconds=20), sequenced=True)
    assert run(queues.has_open(outbox.catalog, "nosuch"), execute) is False
    with conn.transaction():
        for n in range(3):
            outbox.enqueue(conn, "e", n, queue="mail", ordering_key="k")
    (head,) = outbox.claim(conn, "w", queues=["mail"], batch=1)
    outbox.mark_dead(conn, head, "x")
    assert outbox.blocked_keys(conn, include_leased=True).keys[0].followers == 2
    with conn.transaction():
        assert outbox.skip_dead(conn, [head.id], "ann") == [head.id]
        run(keys.freed(outbox.catalog, [head.id]), execute)
    with conn.transaction():
        run(keys.promote_stranded(outbox.catalog, after=None, limit=10), execute)
    assert [each.check for each in outbox.doctor(conn)] == CHECKS


def test_nobody_elses_functions_run_in_these_statements(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: set[str] = set()

    class Recording:
        def __init__(self, connection: Any) -> None:
            self._driver = driver_for(connection)
            self.commits_alone = self._driver.commits_alone

        def execute(self, statement: Statement) -> Rows:
            sent.add(statement.name)
            return self._driver.execute(statement)

    with psycopg.connect(database18, autocommit=True) as hostile:
        hostile.execute(HOSTILE)
        hostile.execute("SET search_path = public")
        with hostile.transaction():
            OUTBOX.migrate(hostile)
        monkeypatch.setattr("fencepost.client.sending.driver_for", Recording)
        every_queue_key_and_doctor_operation(OUTBOX, hostile, Recording(hostile).execute)
    ours = {name for name in FILES if name.startswith(("queue_", "keys_", "doctor_"))}
    assert sent >= ours
