"""The table's own checks: a row that no transition makes cannot be written by anybody."""

from __future__ import annotations

import psycopg
import pytest

from fencepost import Outbox
from tests.store.rows import OUTBOX, Connection, add, all_rows, claim, claim_one, expire, row, value

BAD_INSERTS: dict[str, tuple[str, dict[str, str]]] = {
    # constraint -> what is wrong -> columns
    "no payload": ("outbox_shape", {"payload": "NULL"}),
    "two payloads": ("outbox_shape", {"payload_bytes": "'x'"}),
    "headers that are a list": ("outbox_shape", {"headers": "'[]'"}),
    "headers that are null": ("outbox_shape", {"headers": "'null'"}),
    "a header that is a number": ("outbox_shape", {"headers": """'{"a": "b", "n": 1}'"""}),
    "a header that is null": ("outbox_shape", {"headers": """'{"n": null}'"""}),
    "a header that is an object": ("outbox_shape", {"headers": """'{"n": {"a": "b"}}'"""}),
    "a header that is a list of text": ("outbox_shape", {"headers": """'{"n": ["b"]}'"""}),
    "an unknown recovery": ("outbox_shape", {"recovery_policy": "'never'"}),
    "an empty event type": ("outbox_limits", {"event_type": "''"}),
    "a long event type": ("outbox_limits", {"event_type": "repeat('x', 256)"}),
    "a long event type in bytes": ("outbox_limits", {"event_type": "repeat('é', 128)"}),
    "an empty queue": ("outbox_limits", {"queue": "''"}),
    "a long queue": ("outbox_limits", {"queue": "repeat('x', 101)"}),
    "a long aggregate type": ("outbox_limits", {"aggregate_type": "repeat('x', 256)"}),
    "a long aggregate id": ("outbox_limits", {"aggregate_id": "repeat('x', 1025)"}),
    "an empty dedupe key": ("outbox_limits", {"dedupe_key": "''"}),
    "a long dedupe key": ("outbox_limits", {"dedupe_key": "repeat('x', 1025)"}),
    "an empty content type": ("outbox_limits", {"content_type": "''"}),
    "a long content type": ("outbox_limits", {"content_type": "repeat('x', 256)"}),
    "due in antiquity": ("outbox_limits", {"available_at": "'1899-12-31 23:59:59+00'"}),
    "due at minus infinity": ("outbox_limits", {"available_at": "'-infinity'"}),
    "due at infinity": ("outbox_limits", {"available_at": "'infinity'"}),
    "due in the year 9000": ("outbox_limits", {"available_at": "'9000-01-01 00:00:00+00'"}),
    "created in antiquity": ("outbox_limits", {"created_at": "'1899-12-31 23:59:59+00'"}),
    "created at infinity": ("outbox_limits", {"created_at": "'infinity'"}),
    "attempts below zero": ("outbox_limits", {"attempts": "-1"}),
    "a token below zero": ("outbox_limits", {"lease_version": "-1"}),
    "reclaims below zero": ("outbox_limits", {"reclaim_count": "-1"}),
    "attempts near their end": ("outbox_limits", {"attempts": "1000000001"}),
    "a token near its end": ("outbox_limits", {"lease_version": "4611686018427387905"}),
    "reclaims near their end": ("outbox_limits", {"reclaim_count": "1000000001"}),
    "an empty ordering key": ("outbox_order_check", {"ordering_key": "''"}),
    "a long ordering key": ("outbox_order_check", {"ordering_key": "repeat('x', 2049)"}),
    "a long ordering key in bytes": ("outbox_order_check", {"ordering_key": "repeat('é', 1024) || 'x'"}),
    "a number without a key": ("outbox_order_check", {"key_sequence": "1"}),
    "a number below one": ("outbox_order_check", {"ordering_key": "'k'", "key_sequence": "0"}),
    "pending at the far end": ("outbox_state", {"available_at": "'9999-12-31 00:00:00+00'"}),
    "pending with a lease": ("outbox_state", {"lease_until": "now()"}),
    "pending with an outcome": ("outbox_state", {"outcome": "'delivered'"}),
    "pending and done": ("outbox_state", {"done_at": "now()"}),
    "pending and dead": ("outbox_state", {"dead_at": "now()"}),
    "an unknown status": ("outbox_state", {"status": "'lost'"}),
    "blocked without a key": (
        "outbox_state",
        {"status": "'blocked'", "available_at": "'9999-12-31 00:00:00+00'"},
    ),
    "processing without a lease": (
        "outbox_state",
        {"status": "'processing'", "lease_owner": "'w'", "lease_version": "1", "attempts": "1"},
    ),
    "processing without an owner": (
        "outbox_state",
        {"status": "'processing'", "lease_until": "now()", "lease_version": "1", "attempts": "1"},
    ),
    "processing without a token": (
        "outbox_state",
        {"status": "'processing'", "lease_until": "now()", "lease_owner": "'w'", "attempts": "1"},
    ),
    "processing without an attempt": (
        "outbox_state",
        {"status": "'processing'", "lease_until": "now()", "lease_owner": "'w'", "lease_version": "1"},
    ),
    "done without an instant": ("outbox_state", {"status": "'done'", "outcome": "'delivered'"}),
    "done without an outcome": ("outbox_state", {"status": "'done'", "done_at": "now()"}),
    "done as a dead one": ("outbox_state", {"status": "'done'", "done_at": "now()", "outcome": "'permanent'"}),
    "dead without an instant": (
        "outbox_state",
        {"status": "'dead'", "outcome": "'permanent'", "available_at": "'9999-12-31 00:00:00+00'"},
    ),
    "dead without an outcome": (
        "outbox_state",
        {"status": "'dead'", "dead_at": "now()", "available_at": "'9999-12-31 00:00:00+00'"},
    ),
    "dead as delivered": (
        "outbox_state",
        {
            "status": "'dead'",
            "dead_at": "now()",
            "outcome": "'delivered'",
            "available_at": "'9999-12-31 00:00:00+00'",
        },
    ),
    "dead and still due": ("outbox_state", {"status": "'dead'", "dead_at": "now()", "outcome": "'permanent'"}),
}


@pytest.mark.parametrize("what", BAD_INSERTS)
def test_an_impossible_row_cannot_be_inserted(db: Connection, what: str) -> None:
    constraint, columns = BAD_INSERTS[what]
    values = {"event_type": "'e'", "payload": "'1'"} | columns
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        db.execute(f"INSERT INTO outbox ({', '.join(values)}) VALUES ({', '.join(values.values())})".encode())
    assert refused.value.diag.constraint_name == constraint
    assert all_rows(db) == []


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"event_type": "NULL"}, psycopg.errors.NotNullViolation),
        ({"queue": "NULL"}, psycopg.errors.NotNullViolation),
        ({"headers": "NULL"}, psycopg.errors.NotNullViolation),
        ({"status": "NULL"}, psycopg.errors.NotNullViolation),
        ({"message_id": "NULL"}, psycopg.errors.NotNullViolation),
        ({"payload": "'{'"}, psycopg.errors.InvalidTextRepresentation),
        ({"headers": """'{"a": "\\u0000"}'"""}, psycopg.errors.UntranslatableCharacter),
        ({"id": "1"}, psycopg.errors.GeneratedAlways),
    ],
)
def test_what_has_no_meaning_is_refused(db: Connection, columns: dict[str, str], error: type[Exception]) -> None:
    values = {"event_type": "'e'", "payload": "'1'"} | columns
    with pytest.raises(error):
        db.execute(f"INSERT INTO outbox ({', '.join(values)}) VALUES ({', '.join(values.values())})".encode())


BAD_UPDATES = {
    "pending": ["status = 'processing'", "status = 'done'", "status = 'dead'", "status = 'blocked'",
                "lease_until = now()"],
    "processing": ["status = 'pending'", "status = 'done'", "status = 'dead'", "lease_until = NULL",
                   "attempts = 0", "lease_owner = NULL", "done_at = now()", "dead_at = now()",
                   "outcome = 'delivered'", "available_at = '9999-12-31 00:00:00+00'"],
    "done": ["status = 'pending'", "status = 'processing'", "status = 'dead'", "done_at = NULL",
             "outcome = NULL", "lease_until = now()", "outcome = 'crashed'"],
    "dead": ["status = 'pending'", "status = 'processing'", "status = 'done'", "dead_at = NULL",
             "outcome = NULL", "available_at = now()", "done_at = now()", "lease_until = now()"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "change"), [(status, change) for status, changes in BAD_UPDATES.items() for change in changes]
)
def test_half_a_transition_by_hand_is_refused(db: Connection, status: str, change: str) -> None:
    (row_id,) = add(db)
    if status != "pending":
        held = claim_one(db)
        if status == "done":
            OUTBOX.mark_done(db, held)
        elif status == "dead":
            OUTBOX.mark_dead(db, held, error="x")
    before = row(db, row_id)
    assert before.status == status
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        db.execute(f"UPDATE outbox SET {change}".encode())
    assert refused.value.diag.constraint_name == "outbox_state"
    assert row(db, row_id).xmin == before.xmin


def test_the_largest_numbers_that_fit_stop_no_claim(db: Connection) -> None:
    """Every write to such a row succeeds, so that it never fails its whole batch; a token is not used twice."""
    insert = "INSERT INTO outbox (event_type, payload, {}) VALUES ('e', '1', {})"
    for column, largest in (("attempts", 10**9), ("lease_version", 2**62), ("reclaim_count", 10**9)):
        db.execute(insert.format(column, largest).encode())
    spent, endless, suspect = (each.id for each in all_rows(db))
    (good,) = add(db)
    outbox = Outbox()
    taken = [each.id for _ in range(3) for each in claim(db, outbox=outbox, max_attempts=2**31 - 1)]
    assert sorted(taken) == [suspect, good]
    for _ in range(2):
        expire(db)
        for _ in range(2):
            claim(db, outbox=outbox)
    assert row(db, suspect).reclaim_count == 10**9
    for each in (spent, endless):
        assert (row(db, each).status, row(db, each).outcome) == ("dead", "exhausted")
    assert OUTBOX.retry_dead(db, [endless], "ann") == [endless]
    claim(db, outbox=outbox)
    claim(db, outbox=outbox)
    assert (row(db, endless).status, row(db, endless).token) == ("dead", 2**62)
    assert OUTBOX.skip_dead(db, [spent, endless], "ann") == [spent, endless]


def test_a_dedupe_key_is_unique_in_its_queue(db: Connection) -> None:
    insert = "INSERT INTO outbox (queue, event_type, payload, dedupe_key) VALUES (%s, 'e', '1', %s)"
    db.execute(insert, ["a", "k"])
    db.execute(insert, ["b", "k"])
    db.execute(insert, ["a", "K"])
    db.execute(insert, ["a", "k "])
    db.execute(insert, ["a", None])
    db.execute(insert, ["a", None])
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.execute(insert, ["a", "k"])


# --- any program with one INSERT -------------------------------------------------------------------------


def test_one_plain_insert_of_an_event_type_and_a_payload_is_enough(db: Connection) -> None:
    db.execute(
        """INSERT INTO outbox (event_type, payload) VALUES ('order.created', '{ "id": 42.0,  "id": 43 }')"""
    )
    held = claim_one(db)
    message = held.message
    assert message.payload == b'{ "id": 42.0,  "id": 43 }'
    assert (message.queue, message.event_type, message.content_type) == (
        "default",
        "order.created",
        "application/json",
    )
    assert (message.aggregate_type, message.aggregate_id, message.ordering_key) == (None, None, None)
    assert message.headers == {}
    assert message.message_id.version == 4
    assert held.recovery == "auto"
    assert OUTBOX.mark_done(db, held) == []


def test_one_plain_insert_of_bytes(db: Connection) -> None:
    db.execute("INSERT INTO outbox (event_type, payload_bytes) VALUES ('avro', '\\x00ff10')")
    message = claim_one(db).message
    assert message.payload == b"\x00\xff\x10"
    assert message.content_type == "application/octet-stream"


def test_one_plain_insert_with_everything(db: Connection) -> None:
    db.execute(
        """
        INSERT INTO outbox (message_id, queue, aggregate_type, aggregate_id, event_type, payload, content_type,
                            headers, dedupe_key, recovery_policy, created_at, available_at)
        VALUES ('0196f5a4-1111-7abc-8def-0123456789ab', 'any queue at all', 'order', '42', 'e', '"x"',
                'application/cloudevents+json', '{ "traceparent":"00-1" }', 'k', 'manual',
                '2020-02-29 12:00:00.123456+05:45', '2020-02-29 12:00:00+00')
        """
    )
    held = claim_one(db)
    message = held.message
    assert str(message.message_id) == "0196f5a4-1111-7abc-8def-0123456789ab"
    assert (message.queue, message.aggregate_type, message.aggregate_id) == ("any queue at all", "order", "42")
    assert message.headers == {"traceparent": "00-1"}
    assert message.content_type == "application/cloudevents+json"
    assert message.created_at.isoformat() == "2020-02-29T06:15:00.123456+00:00"
    assert held.recovery == "manual"
    assert held.age.days > 1_000


def test_text_that_only_a_plain_insert_can_bring_is_delivered_unchanged(db: Connection) -> None:
    """The json type keeps escapes that jsonb refuses: they were accepted, so they are never stuck later."""
    payload = r'{"nul":"\u0000","half":"\ud800","big":1e400,"deep":' + "[" * 900 + "]" * 900 + "}"
    db.execute("INSERT INTO outbox (event_type, payload) VALUES ('e', %s)", [payload])
    held = claim_one(db)
    assert held.message.payload == payload.encode()
    assert OUTBOX.mark_dead(db, held, error="receiver said no") == []
    assert OUTBOX.list_dead(db)[0].message.payload == payload.encode()


def test_rows_created_in_the_future_do_no_harm(db: Connection) -> None:
    """As where a clock was set back."""
    db.execute("INSERT INTO outbox (event_type, payload, created_at) VALUES ('e', '1', now() + interval '1 h')")
    held = claim(db)
    assert held[0].age.total_seconds() < 0
    expire(db)
    assert OUTBOX.stats(db).total("expired") == 1
    assert value(db, "SELECT count(*) FROM outbox") == 1
