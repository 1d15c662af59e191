"""The verdict against tables with planted violations: each line can say no."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest

from fencepost.demo import race_verdict, verdict
from fencepost.demo.tables import make_schema
from fencepost.embedded import PostgresServer
from tests.postgres import fresh_database

# What a run leaves when all went well, with three orders: the second was in the hands of the worker that was
# killed, the third in those of the one that was frozen.
_FAULTLESS: LiteralString = """
    INSERT INTO fencepost_demo.orders (customer, message_id, event)
    SELECT 'Ada', gen_random_uuid(), convert_to('{"order":  ' || n || '}', 'UTF8') FROM generate_series(1, 3) AS n;

    INSERT INTO fencepost_demo.outbox (message_id, event_type, payload, status, outcome, done_at,
                                       attempts, lease_owner, lease_version, reclaim_count)
    SELECT message_id, 'order.created', convert_from(event, 'UTF8')::json, 'done', 'delivered', now(),
           CASE id WHEN 1 THEN 1 ELSE 2 END, 'worker-3', CASE id WHEN 1 THEN 1 ELSE 2 END,
           CASE id WHEN 1 THEN 0 ELSE 1 END
    FROM fencepost_demo.orders ORDER BY id;

    INSERT INTO fencepost_demo.rolled_back
    VALUES (gen_random_uuid(), 'transaction'), (gen_random_uuid(), 'savepoint');

    INSERT INTO fencepost_demo.arrival (message_id, worker, token, payload, at)
    SELECT message_id, CASE id WHEN 1 THEN 'worker-3' ELSE 'worker-' || id - 1 END, 1, event, now()
    FROM fencepost_demo.orders ORDER BY id;
    INSERT INTO fencepost_demo.arrival (message_id, worker, token, payload, at)
    SELECT message_id, 'worker-3', 2, event, now() + interval '2.2 s'
    FROM fencepost_demo.orders WHERE id > 1 ORDER BY id;
    INSERT INTO fencepost_demo.receipt SELECT message_id, 1 FROM fencepost_demo.orders;
    INSERT INTO fencepost_demo.shipment (message_id) SELECT message_id FROM fencepost_demo.orders;

    INSERT INTO fencepost_demo.fault VALUES ('worker-1', 'killed', now()), ('worker-2', 'frozen', now());
    INSERT INTO fencepost_demo.held
    SELECT 'worker-' || id - 1, id, message_id, 1, now() + interval '2 s' FROM fencepost_demo.outbox WHERE id > 1;
    INSERT INTO fencepost_demo.before_thaw
    SELECT id, xmin::text, lease_version, done_at FROM fencepost_demo.outbox WHERE id = 3;
    INSERT INTO fencepost_demo.worker_report
    VALUES ('worker-1', 1, 0, 0), ('worker-2', 1, 0, 1), ('worker-3', 3, 3, 0);

    INSERT INTO fencepost_demo.sent (scene, worker, message_id, token)
    SELECT scene, worker, md5(scene)::uuid, token
    FROM (VALUES ('usual', 'A', NULL), ('usual', 'B', NULL), ('leased', 'A', 1),
                 ('paused', 'A', 1), ('paused', 'B', 2)) AS sent (scene, worker, token);
    INSERT INTO fencepost_demo.late_write
    SELECT id, xmin::text, lease_version, done_at, true FROM fencepost_demo.outbox WHERE id = 3;
"""


@pytest.fixture(scope="module")
def faultless(postgres18: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with fresh_database(postgres18) as url, psycopg.connect(url, autocommit=True) as connection:
        make_schema(connection)
        connection.execute(_FAULTLESS)
        yield connection


@pytest.fixture
def connection(faultless: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """A faultless run, to be spoilt: each test gets it unspoilt."""
    with faultless.transaction(force_rollback=True):
        yield faultless


def _untrue(connection: psycopg.Connection[Any]) -> set[str]:
    lines = verdict.judge(connection) + race_verdict.judge(connection)
    return {line.name for line in lines if not line.holds}


def test_a_faultless_run_passes(connection: psycopg.Connection[Any]) -> None:
    assert _untrue(connection) == set()


VIOLATIONS: list[tuple[str, LiteralString]] = [
    ("delivered", "DELETE FROM fencepost_demo.arrival WHERE worker = 'worker-3' AND token = 1"),
    (
        "delivered",
        "INSERT INTO fencepost_demo.orders (customer, message_id, event) VALUES ('Bo', gen_random_uuid(), '{}')",
    ),
    (
        "rolled_back",
        "INSERT INTO fencepost_demo.arrival (message_id, worker, token, payload)"
        " SELECT message_id, 'worker-3', 1, '{}' FROM fencepost_demo.rolled_back LIMIT 1",
    ),
    (
        "rolled_back",
        "INSERT INTO fencepost_demo.outbox (message_id, event_type, payload)"
        " SELECT message_id, 'order.created', '{}' FROM fencepost_demo.rolled_back LIMIT 1",
    ),
    ("rolled_back", "DELETE FROM fencepost_demo.rolled_back WHERE how = 'savepoint'"),
    (
        "payloads",
        "UPDATE fencepost_demo.arrival SET payload = convert_to(replace(convert_from(payload, 'UTF8'), '  ', ' '),"
        " 'UTF8') WHERE id = 1",
    ),
    ("repeats", "INSERT INTO fencepost_demo.shipment (message_id) SELECT message_id FROM fencepost_demo.shipment"),
    (
        "repeats",  # sent twice under one token
        "INSERT INTO fencepost_demo.arrival (message_id, worker, token, payload)"
        " SELECT message_id, worker, token, payload FROM fencepost_demo.arrival WHERE id = 1",
    ),
    (
        "repeats",  # claimed again although its lease had not run out
        "WITH gone AS (DELETE FROM fencepost_demo.held WHERE outbox_id = 2)"
        " UPDATE fencepost_demo.outbox SET reclaim_count = 0 WHERE id = 2",
    ),
    (
        "repeats",  # taken over so soon that its lease cannot have run out
        "WITH gone AS (DELETE FROM fencepost_demo.held WHERE outbox_id = 2)"
        " UPDATE fencepost_demo.arrival SET at = at - interval '2 s' WHERE token = 2",
    ),
    ("repeats", "DELETE FROM fencepost_demo.arrival WHERE token = 2"),
    ("taken_over", "UPDATE fencepost_demo.arrival SET at = at + interval '2 s' WHERE token = 2"),
    ("taken_over", "UPDATE fencepost_demo.held SET lease_until = lease_until + interval '1 s'"),
    ("taken_over", "UPDATE fencepost_demo.outbox SET reclaim_count = 0 WHERE id = 2"),
    ("taken_over", "UPDATE fencepost_demo.outbox SET lease_version = 1 WHERE id = 3"),
    ("taken_over", "DELETE FROM fencepost_demo.held WHERE worker = 'worker-1'"),
    ("stale_writes", "UPDATE fencepost_demo.outbox SET done_at = done_at + interval '1 s' WHERE id = 3"),
    ("stale_writes", "UPDATE fencepost_demo.outbox SET done_at = done_at WHERE id = 3"),
    ("stale_writes", "UPDATE fencepost_demo.worker_report SET lost_leases = 0"),
    ("stale_writes", "DELETE FROM fencepost_demo.before_thaw"),
    (
        "nothing_left",
        "UPDATE fencepost_demo.outbox SET status = 'pending', outcome = NULL, done_at = NULL WHERE id = 1",
    ),
    ("usual_sent_twice", "DELETE FROM fencepost_demo.sent WHERE scene = 'usual' AND worker = 'B'"),
    ("usual_sent_twice", "UPDATE fencepost_demo.sent SET message_id = gen_random_uuid() WHERE scene = 'usual'"),
    (
        "leased_sent_once",
        "INSERT INTO fencepost_demo.sent (scene, worker, message_id, token)"
        " SELECT scene, 'B', message_id, 2 FROM fencepost_demo.sent WHERE scene = 'leased'",
    ),
    ("late_write_refused", "UPDATE fencepost_demo.late_write SET refused = false"),
    ("late_write_refused", "DELETE FROM fencepost_demo.late_write"),
    ("late_write_refused", "UPDATE fencepost_demo.outbox SET done_at = done_at WHERE id = 3"),
    ("repeat_can_be_told", "UPDATE fencepost_demo.sent SET token = 1 WHERE scene = 'paused'"),
    ("repeat_can_be_told", "UPDATE fencepost_demo.sent SET message_id = gen_random_uuid() WHERE scene = 'paused'"),
]


@pytest.mark.parametrize(("line", "violation"), VIOLATIONS)
def test_a_violation_is_seen(connection: psycopg.Connection[Any], line: str, violation: LiteralString) -> None:
    connection.execute(violation)

    assert line in _untrue(connection)


@pytest.mark.parametrize(
    ("cause", "history"),
    [
        ("timed out", "SET last_error = 'no answer from the receiver within 1.5 s', reclaim_count = 0"),
        ("lease ran out", "SET reclaim_count = 1"),
        ("unexplained", "SET reclaim_count = 0"),
    ],
)
def test_a_repeat_without_a_fault_gets_its_cause_from_the_row(
    connection: psycopg.Connection[Any], cause: str, history: LiteralString
) -> None:
    connection.execute("DELETE FROM fencepost_demo.held WHERE outbox_id = 2")
    connection.execute("UPDATE fencepost_demo.outbox " + history + " WHERE id = 2")

    assert [repeat["cause"] for repeat in verdict.repeats(connection)] == [cause, "frozen"]
