"""Fills the outbox, with one statement however many rows, and reads what the server counted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import psycopg

PAYLOAD_BYTES = 200
EVENT_TYPE = "bench.message"


def payload_of(size: int) -> str:
    """Return JSON of so many bytes."""
    return json.dumps({"text": "x" * (size - len('{"text": ""}'))})


PAYLOAD = payload_of(PAYLOAD_BYTES)

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Load:
    """Pending messages to make.

    Args:
        messages: how many.
        keys: over how many ordering keys they are spread in turns; 0 makes them unordered.
        prefix: what the names of the keys begin with.
        payload_bytes: of each of them.
    """

    messages: int
    keys: int = 0
    prefix: str = "key-"
    payload_bytes: int = PAYLOAD_BYTES


# A microsecond apart and the last one due now: the order of creation is that of the ids, as it is in real use.
_PENDING = """
INSERT INTO outbox (event_type, payload, ordering_key, created_at, available_at)
SELECT 'bench.message', %(payload)s::json,
       CASE WHEN %(keys)s::int > 0 THEN %(prefix)s::text || n %% greatest(1, %(keys)s::int) END, t, t
FROM generate_series(1, %(messages)s::int) AS n,
     LATERAL (SELECT statement_timestamp() - (%(messages)s::int - n) * interval '1 microsecond') AS made (t)
"""

_DONE = """
INSERT INTO outbox (event_type, payload, status, outcome, done_at, attempts, lease_version, lease_owner)
SELECT 'bench.message', %(payload)s::json, 'done', 'delivered', statement_timestamp(), 1, 1, 'bench'
FROM generate_series(1, %(messages)s)
"""

_DEAD_HEAD = """
INSERT INTO outbox (event_type, payload, ordering_key, status, outcome, dead_at, attempts, available_at)
VALUES ('bench.message', %(payload)s::json, %(key)s, 'dead', 'permanent', statement_timestamp(), 1,
        timestamptz '9999-12-31 00:00:00+00')
"""

_PARKED = """
INSERT INTO outbox (event_type, payload, ordering_key, status, available_at)
SELECT 'bench.message', %(payload)s::json, %(key)s, 'blocked', timestamptz '9999-12-31 00:00:00+00'
FROM generate_series(1, %(messages)s)
"""


def empty(connection: Connection) -> None:
    """Leave no message behind."""
    connection.execute("TRUNCATE outbox")


def add(connection: Connection, load: Load) -> None:
    """Add due messages."""
    connection.execute(
        _PENDING,
        {
            "payload": payload_of(load.payload_bytes),
            "messages": load.messages,
            "keys": load.keys,
            "prefix": load.prefix,
        },
    )


def add_done(connection: Connection, messages: int) -> None:
    """Add delivered messages, as they stand once a vacuum has been there: in no partial index."""
    connection.execute(_DONE, {"payload": PAYLOAD, "messages": messages})


def add_dead_head(connection: Connection, key: str) -> None:
    """Add a dead message, behind which its key has to wait."""
    connection.execute(_DEAD_HEAD, {"payload": PAYLOAD, "key": key})


def add_parked(connection: Connection, messages: int, key: str) -> None:
    """Add messages that are parked already."""
    connection.execute(_PARKED, {"payload": PAYLOAD, "messages": messages, "key": key})


def settle(connection: Connection) -> None:
    """Vacuum and analyze, so that no run begins with the rest of the one before it."""
    connection.execute("VACUUM (ANALYZE) outbox")


@dataclass(frozen=True, slots=True)
class Counted:
    """What the server counted while something ran."""

    wal_bytes: int
    statements: int
    updates: int
    hot_updates: int
    dead_tuples: int


class Meter:
    """Counts from when it is made until it is read; updates and dead tuples are those of one table."""

    def __init__(self, connection: Connection, table: str = "outbox") -> None:
        self._connection, self._table = connection, table
        connection.execute("SELECT pg_stat_reset_single_table_counters(%s::regclass)", [table])
        self._wal = _wal_position(connection)
        connection.execute("SELECT pg_stat_statements_reset()")

    def read(self) -> Counted:
        """Return what happened so far."""
        statements = _statements(self._connection)
        wal_bytes = _wal_position(self._connection) - self._wal
        return Counted(wal_bytes, statements, *_table_counts(self._connection, self._table))


def _wal_position(connection: Connection) -> int:
    return int(value(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'"))


def _statements(connection: Connection) -> int:
    """Count what was executed since the reset, less the reset itself."""
    return int(
        value(
            connection,
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE toplevel"
            " AND query NOT LIKE 'SELECT pg_stat_statements_reset%'",
        )
    )


def _table_counts(connection: Connection, table: str) -> tuple[int, int, int]:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute(
        "SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup FROM pg_stat_user_tables WHERE relid = %s::regclass", [table]
    ).fetchone()
    return row if row is not None else (0, 0, 0)


def value(connection: Connection, query: str) -> Any:
    """Return the one value that a query answers with, or None where it has no row."""
    row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]
