"""The demonstration's schema: fencepost's own tables, and those of the shop, the receiver and the observer."""

from __future__ import annotations

from typing import Any

import psycopg

from fencepost.client.outbox import Outbox
from fencepost.errors import ConfigError

SCHEMA = "fencepost_demo"
MARK = "made by `fencepost demo`, which drops it at its next run"

_TABLES = (
    *("outbox", "outbox_audit", "outbox_migration", "outbox_queue", "outbox_key"),
    *("outbox_inbox", "outbox_inbox_key", "outbox_job", "outbox_job_audit", "outbox_cron"),
    *("outbox_attempt", "outbox_fence"),
    *("orders", "rolled_back", "arrival", "receipt", "shipment", "fault", "held", "before_thaw", "worker_report"),
    *("naive_outbox", "sent", "late_write"),
)

_FOR_THE_DEMO = """
-- The shop's. `event` is the event's payload as the shop wrote it, to compare with what arrived.
CREATE TABLE fencepost_demo.orders (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer   text NOT NULL,
    message_id uuid NOT NULL UNIQUE,
    event      bytea NOT NULL
);
-- Message ids whose transaction or savepoint was rolled back; noted in a transaction of its own.
CREATE TABLE fencepost_demo.rolled_back (message_id uuid PRIMARY KEY, how text NOT NULL);

-- The receiver's: every request that reached it, ...
CREATE TABLE fencepost_demo.arrival (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id uuid NOT NULL,
    worker     text NOT NULL,
    token      bigint NOT NULL,
    payload    bytea NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- ... the ids it has acted on, ...
CREATE TABLE fencepost_demo.receipt (message_id uuid PRIMARY KEY, token bigint NOT NULL);
-- ... and what it did: one parcel for each order, if all goes well.
CREATE TABLE fencepost_demo.shipment (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id uuid NOT NULL
);

-- The observer's: what was done to which worker, the messages it held then, the rows before it woke up, and
-- what the workers say they counted.
CREATE TABLE fencepost_demo.fault (worker text PRIMARY KEY, kind text NOT NULL, at timestamptz NOT NULL);
CREATE TABLE fencepost_demo.held (
    worker text NOT NULL, outbox_id bigint NOT NULL, message_id uuid NOT NULL, token bigint NOT NULL,
    lease_until timestamptz NOT NULL
);
CREATE TABLE fencepost_demo.before_thaw (
    outbox_id bigint PRIMARY KEY, row_version text NOT NULL, token bigint NOT NULL, done_at timestamptz NOT NULL
);
CREATE TABLE fencepost_demo.worker_report (
    worker text PRIMARY KEY, claimed bigint NOT NULL, delivered bigint NOT NULL, lost_leases bigint NOT NULL
);
"""

_FOR_THE_RACE = """
CREATE TABLE fencepost_demo.naive_outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id uuid NOT NULL DEFAULT gen_random_uuid(),
    done_at    timestamptz
);
-- The outside world: what was really published.
CREATE TABLE fencepost_demo.sent (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scene      text NOT NULL,
    worker     text NOT NULL,
    message_id uuid NOT NULL,
    token      bigint
);
-- The row as it stood before the late write of the worker that had paused, and what that write was told.
CREATE TABLE fencepost_demo.late_write (
    outbox_id bigint PRIMARY KEY, row_version text NOT NULL, token bigint NOT NULL, done_at timestamptz NOT NULL,
    refused boolean NOT NULL
);
"""


def outbox() -> Outbox:
    """Return the outbox in the demonstration's schema."""
    return Outbox(schema_name=SCHEMA)


def hold_the_stage(connection: psycopg.Connection[Any]) -> None:
    """Keep a second demonstration out of this database for as long as the connection lives.

    Raises:
        ConfigError: another one is running.
    """
    row = connection.execute("SELECT pg_try_advisory_lock(hashtextextended('fencepost demo', 0))").fetchone()
    if row is None or not row[0]:
        raise ConfigError("another demo is running on this store: wait for its end, or name another store")


def make_schema(connection: psycopg.Connection[Any]) -> None:
    """Drop the schema of the last run and make a new one, in one transaction.

    Raises:
        ConfigError: the schema holds what no demonstration made; nothing was touched.
    """
    with connection.transaction():
        _drop_schema(connection)
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        connection.execute(f"COMMENT ON SCHEMA {SCHEMA} IS '{MARK}'")
        outbox().migrate(connection)
        connection.execute(_FOR_THE_DEMO)
        connection.execute(_FOR_THE_RACE)


def _drop_schema(connection: psycopg.Connection[Any]) -> None:
    found = connection.execute(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", [SCHEMA]
    ).fetchone()
    if found is None:
        return
    try:
        if found[0] == MARK:
            connection.execute("DROP TABLE IF EXISTS " + ", ".join(f"{SCHEMA}.{table}" for table in _TABLES))
        # Without CASCADE: PostgreSQL itself refuses where anything else is left in it or leans on it.
        connection.execute(f"DROP SCHEMA {SCHEMA}")
    except psycopg.errors.DependentObjectsStillExist as error:
        raise ConfigError(
            f"schema {SCHEMA} holds or serves something that no demo made, so it was left alone "
            f"({error.diag.message_detail}): move that elsewhere, or name another store"
        ) from error
