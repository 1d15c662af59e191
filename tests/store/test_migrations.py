"""The tables: made once however many try, the same by hand, checked, and never on top of somebody else's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from fencepost import AutocommitRefused, ConfigError, Outbox, SchemaError
from fencepost.embedded import PostgresServer
from fencepost.store.catalog import Names
from fencepost.store.schema import EXPECTED_COLUMNS, migrations
from tests.store.databases import Migrated
from tests.store.rows import OUTBOX, Connection, claim, value

ALL = [
    (1, "outbox"),
    (2, "order_and_queues"),
    (3, "destinations"),
    (4, "inbox"),
    (5, "jobs"),
    (6, "recovery"),
    (7, "fence"),
]
TABLES = [
    *("outbox", "outbox_attempt", "outbox_audit", "outbox_cron", "outbox_fence"),
    *("outbox_inbox", "outbox_inbox_key", "outbox_job", "outbox_job_audit"),
    *("outbox_key", "outbox_migration", "outbox_queue"),
]
_numbers = itertools.count(1)


@pytest.fixture
def db(migrated: Migrated) -> Iterator[Connection]:
    with psycopg.connect(migrated.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def outbox() -> Outbox:
    """An outbox in a schema of its own that does not exist yet."""
    return Outbox(schema_name=f"place_{next(_numbers)}")


def migrate(db: Connection, outbox: Outbox) -> list[tuple[int, str]]:
    with db.transaction():
        return [(step.version, step.name) for step in outbox.migrate(db)]


def tables(db: Connection, schema: str) -> list[str]:
    found = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", [schema]).fetchall()
    return [name for (name,) in found]


def shape(db: Connection, schema: str) -> list[tuple[Any, ...]]:
    """Everything that the catalogs know of a schema's tables, without the schema's own name."""
    described = db.execute(
        """
        WITH tables AS (
            SELECT c.oid, c.relname, c.reloptions FROM pg_class c
            WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND c.relkind = 'r'
        )
        SELECT 'table', relname, reloptions::text, obj_description(oid, 'pg_class') FROM tables
        UNION ALL
        SELECT 'column', relname, a.attname, concat_ws(' ', a.attnum, format_type(a.atttypid, a.atttypmod),
               a.attnotnull, a.attidentity, a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid))
        FROM tables JOIN pg_attribute a ON a.attrelid = oid AND a.attnum > 0
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        UNION ALL
        SELECT 'constraint', relname, c.conname, pg_get_constraintdef(c.oid)
        FROM tables JOIN pg_constraint c ON c.conrelid = tables.oid
        UNION ALL
        SELECT 'index', relname, i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid)
        FROM tables JOIN pg_index i ON i.indrelid = tables.oid
        UNION ALL
        SELECT 'sequence', relname, s.seqrelid::regclass::text,
               concat_ws(' ', s.seqstart, s.seqincrement, s.seqcache, s.seqcycle, s.seqmax)
        FROM tables JOIN pg_depend d ON d.refobjid = oid AND d.deptype = 'i'
        JOIN pg_sequence s ON s.seqrelid = d.objid
        ORDER BY 1, 2, 3, 4
        """,
        {"schema": schema},
    ).fetchall()
    return [tuple(str(each).replace(schema, "<schema>") for each in row) for row in described]


# --- once, and only once ---------------------------------------------------------------------------------


def test_migrating_twice_applies_once_and_the_check_is_content(db: Connection, outbox: Outbox) -> None:
    assert migrate(db, outbox) == ALL
    before = shape(db, outbox.schema_name)
    assert migrate(db, outbox) == []
    assert shape(db, outbox.schema_name) == before
    assert tables(db, outbox.schema_name) == TABLES
    assert outbox.check_schema(db) == []


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_ten_at_once_apply_once_and_all_succeed(
    db: Connection, outbox: Outbox, migrated: Migrated, level: str
) -> None:
    start = threading.Barrier(10)
    applied: list[list[Any]] = []
    failures: list[BaseException] = []

    def one() -> None:
        try:
            options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
            with psycopg.connect(migrated.url, options=options) as connection:
                start.wait(timeout=20)
                applied.append(outbox.migrate(connection))
                connection.commit()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures
    assert sorted(len(each) for each in applied) == [0] * 9 + [len(ALL)]
    assert outbox.check_schema(db) == []


def test_a_snapshot_from_before_is_refused_with_the_remedy(outbox: Outbox, migrated: Migrated) -> None:
    with psycopg.connect(migrated.url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        with pytest.raises(SchemaError, match=r"repeatable read transaction .* READ COMMITTED"):
            outbox.migrate(connection)
        connection.rollback()
        assert len(outbox.migrate(connection)) == len(ALL)
        assert value(connection, "SHOW transaction_isolation") == "read committed"
        connection.commit()
        assert value(connection, "SHOW transaction_isolation") == "repeatable read"


def test_a_migration_rolls_back_with_its_transaction(db: Connection, outbox: Outbox) -> None:
    with db.transaction(force_rollback=True):
        outbox.migrate(db)
    assert tables(db, outbox.schema_name) == []
    assert migrate(db, outbox) == ALL


def test_outside_a_transaction_it_is_refused_or_else_the_callers_word(db: Connection, outbox: Outbox) -> None:
    with pytest.raises(AutocommitRefused):
        outbox.migrate(db)
    assert tables(db, outbox.schema_name) == []


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation = serializable",
        "search_path = ''",
        "DateStyle = 'German'",
        "TimeZone = 'Asia/Kathmandu'",
    ],
)
def test_whatever_the_session_is_set_to_the_tables_are_the_same(
    db: Connection, outbox: Outbox, setting: str
) -> None:
    db.execute(f"SET {setting}")
    assert migrate(db, outbox) == ALL
    assert outbox.check_schema(db) == []
    db.execute("RESET ALL")
    assert value(db, f"SELECT count(*) FROM {outbox.schema_name}.outbox_migration") == len(ALL)
    other = Outbox(schema_name=f"other_{outbox.schema_name}")
    migrate(db, other)
    assert shape(db, outbox.schema_name) == shape(db, other.schema_name)


# --- by hand ---------------------------------------------------------------------------------------------


def test_the_printed_script_makes_the_same_tables(db: Connection, outbox: Outbox) -> None:
    by_hand = Outbox(schema_name=f"hand_{outbox.schema_name}")
    migrate(db, outbox)
    db.execute(by_hand.schema_sql().encode())
    assert shape(db, by_hand.schema_name) == shape(db, outbox.schema_name)
    assert by_hand.check_schema(db) == []
    assert migrate(db, by_hand) == []
    recorded = "SELECT version, name, checksum FROM {}.outbox_migration"
    assert (
        db.execute(recorded.format(by_hand.schema_name)).fetchall()
        == db.execute(recorded.format(outbox.schema_name)).fetchall()
    )


def test_the_script_changes_nothing_where_the_tables_exist(db: Connection, outbox: Outbox) -> None:
    migrate(db, outbox)
    before = shape(db, outbox.schema_name)
    with pytest.raises(psycopg.errors.DuplicateTable):
        db.execute(outbox.schema_sql().encode())
    db.execute("ROLLBACK")
    assert shape(db, outbox.schema_name) == before


# --- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "table"),
    [
        ("Mein-Schema", "Ausgang"),
        ("select", "order"),
        ("Ärger_é", "таблица"),
        ("a$b-c", "_x$1-2"),
        ("s" * 48, "t" * 48),
        ("public", "second_outbox"),
    ],
)
def test_names_that_need_quotes_work_from_end_to_end(db: Connection, schema: str, table: str) -> None:
    outbox = Outbox(schema_name=schema, table=table)
    assert migrate(db, outbox) == ALL
    assert migrate(db, outbox) == []
    assert outbox.check_schema(db) == []
    assert f"{table}_migration" in tables(db, schema)
    with db.transaction():
        first = outbox.enqueue(db, "e", 1, dedupe_key="k")
        assert outbox.enqueue(db, "e", 1, dedupe_key="k").created is False
    held = claim(db, outbox=outbox)
    assert [each.id for each in held] == [first.id]
    assert outbox.heartbeat(db, held) == []
    assert outbox.mark_dead(db, held, error="x") == []
    assert outbox.retry_dead(db, [first.id], actor="a") == [first.id]
    assert outbox.mark_done(db, claim(db, outbox=outbox)) == []
    assert outbox.stats(db).done == 1
    assert outbox.reap(db) == 0
    assert outbox.purge(db, older_than=timedelta(0)) == 1
    with db.transaction():
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            db.execute(sql.SQL("INSERT INTO {} (event_type) VALUES ('e')").format(sql.Identifier(schema, table)))
        assert refused.value.diag.constraint_name == f"{table}_shape"
        raise psycopg.Rollback


@pytest.mark.parametrize(
    "name", ["", "1st", "with space", 'quo"te', "semi;colon", "new\nline", "%s", "a.b", "{x}", "é" * 25, "x" * 49]
)
def test_names_that_postgresql_would_cut_or_misread_are_refused(name: str) -> None:
    for outbox in (Outbox(schema_name=name), Outbox(table=name)):
        with pytest.raises(ConfigError, match=r"schema|table"):
            _ = outbox.catalog


def test_every_name_that_we_make_fits() -> None:
    longest = Names("s" * 48, "t" * 48)
    for name in longest.placeholders().values():
        assert all(len(part.strip('"')) <= 63 for part in name.split("."))
    assert len(longest.channel) <= 63


def test_two_outboxes_in_one_database_do_not_meet(db: Connection, outbox: Outbox) -> None:
    migrate(db, outbox)
    other = Outbox(schema_name=outbox.schema_name, table="other")
    migrate(db, other)
    with db.transaction():
        outbox.enqueue(db, "e", 1, dedupe_key="k")
        assert other.enqueue(db, "e", 2, dedupe_key="k").created is True
    assert [each.message.payload for each in claim(db, outbox=other)] == [b"2"]
    assert [each.message.payload for each in claim(db, outbox=outbox)] == [b"1"]


# --- what is in the way ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", ["TABLE {} (id int, version int)", "VIEW {} AS SELECT 1 AS id"])
def test_somebody_elses_table_is_left_alone(db: Connection, outbox: Outbox, name: str, kind: str) -> None:
    db.execute(f"CREATE SCHEMA {outbox.schema_name}")
    db.execute("CREATE " + kind.format(f"{outbox.schema_name}.{name}"))
    before = shape(db, outbox.schema_name)
    with db.transaction():
        with pytest.raises(SchemaError, match=f'"{name}" exists that fencepost did not make'):
            outbox.migrate(db)
        # The transaction stays usable: nothing had been sent that could fail.
        assert value(db, "SELECT 1") == 1
    assert shape(db, outbox.schema_name) == before
    assert any("do not exist" in problem for problem in outbox.check_schema(db))


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_every_text_is_refused(postgres: PostgresServer, encoding: str) -> None:
    name = f"fp_{encoding.lower()}"
    with psycopg.connect(postgres.url, autocommit=True) as administrator:
        administrator.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
        try:
            url = urlsplit(postgres.url)._replace(path=f"/{name}").geturl()
            with (
                psycopg.connect(url) as connection,
                pytest.raises(SchemaError, match=f"encoding is {encoding}.*UTF8"),
            ):
                Outbox().migrate(connection)
        finally:
            administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")


# --- what the check sees ---------------------------------------------------------------------------------


def test_before_anything_the_check_says_what_to_do(db: Connection, outbox: Outbox) -> None:
    (problem,) = outbox.check_schema(db)
    assert "do not exist" in problem
    assert "fencepost migrate" in problem


DAMAGE = {
    "ALTER TABLE outbox ALTER id SET CACHE 20": "CACHE 20",
    "ALTER TABLE outbox ALTER id SET INCREMENT -1": "INCREMENT -1",
    "ALTER TABLE outbox ALTER id SET CYCLE": "CYCLE",
    "ALTER TABLE outbox ALTER id DROP IDENTITY": "no identity sequence",
    "DROP INDEX outbox_ready": "index outbox_ready is missing",
    "DROP INDEX outbox_order": "index outbox_order is missing",
    "DROP INDEX outbox_dedupe": "index outbox_dedupe is missing",
    "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey": "index outbox_pkey is missing",
    "ALTER TABLE outbox DROP CONSTRAINT outbox_state": "constraint outbox_state is missing",
    "ALTER TABLE outbox DROP CONSTRAINT outbox_shape": "constraint outbox_shape is missing",
    "ALTER TABLE outbox DROP CONSTRAINT outbox_order_check": "constraint outbox_order_check is missing",
    "ALTER TABLE outbox DROP COLUMN key_sequence": "column key_sequence is missing",
    "ALTER TABLE outbox DROP COLUMN reclaim_count": "column reclaim_count is missing",
    "ALTER TABLE outbox DROP COLUMN id": "column id is missing",
    "ALTER TABLE outbox ALTER payload TYPE jsonb": "column payload is jsonb, expected json",
    "ALTER TABLE outbox RENAME TO elsewhere": '"outbox" is missing',
    "DROP TABLE outbox_audit": '"outbox_audit" is missing',
    "DROP TABLE outbox_queue": '"outbox_queue" is missing',
    "DROP TABLE outbox_key": '"outbox_key" is missing',
    "DROP TABLE outbox_inbox": '"outbox_inbox" is missing',
    "DROP TABLE outbox_inbox_key": '"outbox_inbox_key" is missing',
    "DROP TABLE outbox_job": '"outbox_job" is missing',
    "DROP TABLE outbox_job_audit": '"outbox_job_audit" is missing',
    "DROP TABLE outbox_cron": '"outbox_cron" is missing',
    "DROP TABLE outbox_attempt": '"outbox_attempt" is missing',
    "DROP TABLE outbox_fence": '"outbox_fence" is missing',
    "DROP TABLE outbox_migration": "do not exist",
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_ready'::regclass": "ready is invalid",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_seen(db: Connection, damage: str) -> None:
    with db.transaction(force_rollback=True):
        db.execute(damage.encode())
        problems = OUTBOX.check_schema(db)
    assert any(DAMAGE[damage] in problem for problem in problems), problems


def test_what_others_add_is_theirs(db: Connection) -> None:
    with db.transaction(force_rollback=True):
        db.execute("ALTER TABLE outbox ADD tenant text NOT NULL DEFAULT 'x'")
        db.execute("CREATE INDEX by_tenant ON outbox (tenant)")
        db.execute("ALTER TABLE outbox ADD CONSTRAINT short CHECK (length(tenant) < 10)")
        assert OUTBOX.check_schema(db) == []
        assert migrate(db, OUTBOX) == []
        OUTBOX.enqueue(db, "e", 1)
        assert OUTBOX.mark_done(db, claim(db)) == []
        names = {name for kind, _, name, _ in shape(db, "public") if kind == "column"}
        assert EXPECTED_COLUMNS.keys() < names


def test_a_schema_from_the_future_is_refused(db: Connection) -> None:
    with db.transaction(force_rollback=True):
        db.execute("INSERT INTO outbox_migration VALUES (9999, 'future', 'x', now())")
        for refused in (OUTBOX.migrate, OUTBOX.check_schema):
            with pytest.raises(SchemaError, match=r"9999.*upgrade fencepost"):
                refused(db)


def test_a_migration_that_was_applied_with_other_content_is_refused(db: Connection) -> None:
    with db.transaction(force_rollback=True):
        db.execute("UPDATE outbox_migration SET checksum = 'other'")
        for refused in (OUTBOX.migrate, OUTBOX.check_schema):
            with pytest.raises(SchemaError, match="0001 outbox was applied with other content"):
                refused(db)


def test_a_migration_that_is_not_applied_yet_is_reported_and_then_applied(db: Connection) -> None:
    """As after an upgrade: the record stands, one step is missing."""
    with db.transaction(force_rollback=True):
        made = ", ".join(table for table in TABLES if table != "outbox_migration")
        db.execute(f"DELETE FROM outbox_migration; DROP TABLE {made}".encode())
        assert OUTBOX.check_schema(db) == [
            f"migration {version:04} {name} is not applied: run `fencepost migrate`" for version, name in ALL
        ]
        assert migrate(db, OUTBOX) == ALL
        assert OUTBOX.check_schema(db) == []


def test_the_second_step_meets_a_table_in_use(db: Connection, outbox: Outbox) -> None:
    """An upgrade of the first version: its rows are delivered as before, and keys are accepted from then on."""
    first, *others = migrations(outbox.catalog)
    with db.transaction(force_rollback=True):
        db.execute(f"CREATE SCHEMA {outbox.schema_name}")
        table = f"{outbox.schema_name}.outbox"
        insert = f"INSERT INTO {table} (event_type, payload, ordering_key) VALUES ('e', '1', %s)"
        for part in [outbox.catalog.statement("migration_table").sql, *first.statements]:
            db.execute(part.encode())
        db.execute(
            f"INSERT INTO {table}_migration (version, name, checksum) VALUES (1, 'outbox', %s)",
            [first.checksum],
        )
        db.execute(insert.encode(), [None])
        assert len(outbox.check_schema(db)) == len(others)
        assert [(step.version, step.name) for step in outbox.migrate(db)] == ALL[1:]
        assert outbox.check_schema(db) == []
        db.execute(insert.encode(), ["k"])
        held = outbox.claim(db, "w")
        assert [each.message.ordering_key for each in held] == [None, "k"]
        assert outbox.mark_done(db, held) == []
