"""Migrations and the check of what they made, as operations to run inside one transaction."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fencepost.core.operation import Operation, Statement
from fencepost.errors import SchemaError
from fencepost.store.catalog import Catalog, Names

EXPECTED_COLUMNS: Mapping[str, str] = {
    "id": "bigint",
    "message_id": "uuid",
    "queue": "text",
    "aggregate_type": "text",
    "aggregate_id": "text",
    "event_type": "text",
    "ordering_key": "text",
    "payload": "json",
    "payload_bytes": "bytea",
    "content_type": "text",
    "headers": "json",
    "dedupe_key": "text",
    "recovery_policy": "text",
    "created_at": "timestamp with time zone",
    "available_at": "timestamp with time zone",
    "status": "text",
    "attempts": "integer",
    "lease_owner": "text",
    "lease_until": "timestamp with time zone",
    "lease_version": "bigint",
    "reclaim_count": "integer",
    "last_error": "text",
    "outcome": "text",
    "done_at": "timestamp with time zone",
    "dead_at": "timestamp with time zone",
    "key_sequence": "bigint",
    "routed": "boolean",
}

_TABLES_SINCE = {
    2: ("queue", "key"),
    4: ("inbox", "inbox_key"),
    5: ("job", "job_audit", "cron"),
    6: ("attempt",),
    7: ("fence",),
}
"""Migrations that make further tables, and which."""

_TABLES = ("outbox", "audit", *(name for names in _TABLES_SINCE.values() for name in names))

_END_OF_STATEMENT = re.compile(r";\s*\n")

INDEXES = ("pkey", "ready", "order", "dedupe")
CONSTRAINTS = ("shape", "limits", "order_check", "state")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema; ``checksum`` is over the file as it is shipped, before names are filled in."""

    version: int
    name: str
    sql: str
    checksum: str

    @property
    def statements(self) -> list[str]:
        """The file's statements one by one, as not every driver takes several at once.

        Each ends with a semicolon at the end of a line, and no other line does.
        """
        return statements_of(self.sql)


@dataclass(frozen=True, slots=True)
class _Found:
    schema: bool
    tables: Mapping[str, bool]
    migration: bool
    migration_is_ours: bool
    encoding: str | bytes
    """As bytes from psycopg where it is SQL_ASCII, which has no characters."""


def statements_of(text: str) -> list[str]:
    """Return the statements of a file that has several; see `Migration.statements`."""
    return [part for part in _END_OF_STATEMENT.split(text) if part.strip()]


def migrations(catalog: Catalog) -> list[Migration]:
    """Return every migration of this version, in order."""
    plain = {version: sql for version, _, sql in Catalog(Names(), catalog.dialect).migrations()}
    return [
        Migration(version, name, sql, hashlib.sha256(plain[version].encode()).hexdigest())
        for version, name, sql in catalog.migrations()
    ]


def migrate(catalog: Catalog) -> Operation[list[Migration]]:
    """Bring the schema up to date and return what was applied; safe to run by many processes at once.

    Run it in one transaction: an advisory lock makes the others wait, and they then find nothing to do. For
    that they must see what was committed while they waited, so the transaction is made READ COMMITTED.

    Raises:
        SchemaError: the database cannot hold the tables, something else already has their name, or the
            transaction has a snapshot from before.
    """
    yield from see_what_others_commit(catalog)
    yield catalog.statement("migration_lock", {"name": catalog.names.placeholders()["outbox"]})
    found = yield from _find(catalog)
    _refuse_what_cannot_work(catalog, found)
    if not found.schema:
        yield catalog.statement("migration_schema")
    if not found.migration:
        yield catalog.statement("migration_table")
    pending = yield from _pending(catalog)
    marks = catalog.names.placeholders()
    made = [name for step in pending for name in _TABLES_SINCE.get(step.version, ())]
    _refuse_foreign({marks[name]: found.tables[name] for name in made})
    for step in pending:
        for part in step.statements:
            yield Statement(f"migrations/{step.version:04}_{step.name}", part)
        yield _record(catalog, step)
    return pending


def check(catalog: Catalog) -> Operation[list[str]]:
    """Return what is wrong with the schema, each with its remedy; an empty list is a schema in order."""
    found = yield from _find(catalog)
    marks = catalog.names.placeholders()
    if not found.migration_is_ours:
        return [f"the tables of {marks['outbox']} do not exist: run `fencepost migrate`"]
    pending = yield from _pending(catalog)
    if pending:
        return [
            f"migration {step.version:04} {step.name} is not applied: run `fencepost migrate`" for step in pending
        ]
    tables = {marks[name]: found.tables[name] for name in _TABLES}
    problems = [
        f"table {name} is missing: create it as in `fencepost migrate --sql`"
        for name, there in tables.items()
        if not there
    ]
    if not found.tables["outbox"]:
        return problems
    problems += yield from _column_problems(catalog)
    is_partitioned = (yield catalog.statement("schema_kind", _table(catalog)))[0][0]
    indexes = [each for each in INDEXES if each != "dedupe" or not is_partitioned]
    problems += yield from _named_problems(catalog, "schema_indexes", "index", indexes)
    problems += yield from _named_problems(catalog, "schema_constraints", "constraint", CONSTRAINTS)
    problems += yield from _sequence_problems(catalog)
    return problems


def script(catalog: Catalog) -> str:
    """Return the whole schema as one SQL script, for someone who runs it by hand.

    It is written for an empty place: it fails, changing nothing, where the tables exist.
    """
    steps = migrations(catalog)
    parts = ["BEGIN;", f"CREATE SCHEMA IF NOT EXISTS {catalog.names.placeholders()['schema']};"]
    parts.append(catalog.statement("migration_table").sql.strip() + ";")
    for step in steps:
        parts.append(f"-- migration {step.version:04} {step.name}\n{step.sql.strip()}")
        parts.append(
            f"INSERT INTO {catalog.names.placeholders()['migration']} (version, name, checksum) "  # noqa: S608 - our own constants
            f"VALUES ({step.version}, '{step.name}', '{step.checksum}');"
        )
    parts.append("COMMIT;")
    return "\n\n".join(parts) + "\n"


def see_what_others_commit(catalog: Catalog) -> Operation[None]:
    """Make the transaction READ COMMITTED: each statement must see what was committed while one before it waited.

    Raises:
        SchemaError: it has a snapshot already.
    """
    rows = yield catalog.statement("migration_isolation")  # which takes no snapshot
    level = rows[0][0]
    if level in ("read committed", "read uncommitted"):
        return
    try:
        yield catalog.statement("migration_read_committed")
    except Exception as error:
        raise SchemaError(
            f"this {level} transaction began before the migration and cannot see what others apply meanwhile: "
            "migrate at the beginning of a transaction, or in a READ COMMITTED one"
        ) from error


def _table(catalog: Catalog) -> dict[str, Any]:
    return {"outbox": catalog.names.placeholders()["outbox"]}


def _find(catalog: Catalog) -> Operation[_Found]:
    marks = catalog.names.placeholders()
    names = {"schema": marks["schema"], "migration": marks["migration"]}
    rows = yield catalog.statement("migration_state", names | {"tables": [marks[name] for name in _TABLES]})
    schema, digits, *rest = rows[0]
    text = digits if isinstance(digits, str) else digits.decode()
    return _Found(schema, {name: digit == "1" for name, digit in zip(_TABLES, text, strict=True)}, *rest)


def _refuse_what_cannot_work(catalog: Catalog, found: _Found) -> None:
    encoding = found.encoding if isinstance(found.encoding, str) else found.encoding.decode()
    if encoding != "UTF8":
        raise SchemaError(
            f"the database's encoding is {encoding}, which cannot keep UTF-8 payloads byte for byte: "
            "create a database with ENCODING 'UTF8'"
        )
    marks = catalog.names.placeholders()
    foreign = {
        marks["migration"]: found.migration and not found.migration_is_ours,
    }
    foreign |= {marks[name]: there and not found.migration for name, there in found.tables.items()}
    _refuse_foreign(foreign)


def _refuse_foreign(in_the_way: Mapping[str, bool]) -> None:
    for name, is_there in in_the_way.items():
        if is_there:
            raise SchemaError(
                f"a table {name} exists that fencepost did not make: choose another name with --table or --schema"
            )


def _pending(catalog: Catalog) -> Operation[list[Migration]]:
    rows = yield catalog.statement("migration_list")
    applied = {version: checksum for version, _, checksum in rows}
    known = migrations(catalog)
    newer = sorted(set(applied) - {step.version for step in known})
    if newer:
        raise SchemaError(
            f"the schema has migration {newer[-1]:04}, which this version of fencepost does not know: "
            "upgrade fencepost"
        )
    for step in known:
        if step.version in applied and applied[step.version] != step.checksum:
            raise SchemaError(
                f"migration {step.version:04} {step.name} was applied with other content than this version ships: "
                "the tables may differ; compare with `fencepost migrate --sql`"
            )
    return [step for step in known if step.version not in applied]


def _record(catalog: Catalog, step: Migration) -> Statement:
    return catalog.statement(
        "migration_record", {"version": step.version, "name": step.name, "checksum": step.checksum}
    )


def _column_problems(catalog: Catalog) -> Operation[list[str]]:
    rows = yield catalog.statement("schema_columns", _table(catalog))
    # Columns that others added are theirs to keep; a missing or changed one of ours is not.
    types = {name: kind for name, kind, _ in rows}
    return [
        f"column {name} is {types.get(name, 'missing')}, expected {kind}: undo that change"
        for name, kind in EXPECTED_COLUMNS.items()
        if types.get(name) != kind
    ]


def _named_problems(catalog: Catalog, statement: str, kind: str, suffixes: Sequence[str]) -> Operation[list[str]]:
    rows = yield catalog.statement(statement, _table(catalog))
    valid: dict[str, bool] = dict(rows)
    names = [f"{catalog.names.table}_{suffix}" for suffix in suffixes]
    return [
        f"{kind} {name} is {'invalid' if name in valid else 'missing'}: create it as in `fencepost migrate --sql`"
        for name in names
        if not valid.get(name)
    ]


def _sequence_problems(catalog: Catalog) -> Operation[list[str]]:
    rows = yield catalog.statement("schema_sequence", _table(catalog))
    if not rows:
        return ["column id has no identity sequence: restore it as in `fencepost migrate --sql`"]
    cache, increment, cycles = rows[0]
    if cache != 1 or increment < 1 or cycles:
        return [
            f"the id sequence has CACHE {cache}, INCREMENT {increment}{', CYCLE' if cycles else ''}: "
            "ids would not follow the order of inserts; use CACHE 1, INCREMENT 1, NO CYCLE"
        ]
    return []
