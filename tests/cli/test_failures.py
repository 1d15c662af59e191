"""From an exception to one line that names the remedy, and an exit code."""

from __future__ import annotations

import psycopg
import pytest

from fencepost.cli import exits
from fencepost.cli.failures import failure_of
from fencepost.config import Settings, Source
from fencepost.errors import ConfigError, EmbeddedError, FencepostError, SchemaError

SETTINGS = Settings(store="postgresql://app:s3cret@db/shop", sources={"store": Source("flag", "--store")})


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ConfigError("lease: no"), exits.USAGE, "lease: no"),
        (SchemaError("the tables are missing"), exits.SCHEMA, "the tables are missing"),
        (EmbeddedError("no server"), exits.DATABASE, "no server"),
        (FencepostError("stopped"), exits.FAILED, "stopped"),
        (
            ImportError("no pq wrapper available.\nAttempts made: x"),
            exits.USAGE,
            "pip install 'fencepost[binary]'",
        ),
        (ImportError("no module"), exits.FAILED, "run again with --debug"),
        (ZeroDivisionError(), exits.FAILED, "unexpected: ZeroDivisionError"),
        (psycopg.errors.UndefinedTable("x"), exits.SCHEMA, "run `fencepost migrate`"),
        (psycopg.errors.InvalidSchemaName("x"), exits.SCHEMA, "run `fencepost migrate`"),
        (psycopg.errors.UndefinedColumn("x"), exits.SCHEMA, "run `fencepost migrate`"),
        (psycopg.errors.InsufficientPrivilege("permission denied"), exits.DATABASE, "grant this user"),
        (psycopg.errors.LockNotAvailable("x"), exits.DATABASE, "something else holds the tables"),
        (psycopg.errors.ReadOnlySqlTransaction("x"), exits.DATABASE, "name the primary"),
        (
            psycopg.OperationalError("password authentication failed"),
            exits.DATABASE,
            "check the user and password",
        ),
        (psycopg.OperationalError("x"), exits.DATABASE, "check postgresql://app:***@db/shop (flag --store)"),
        (
            psycopg.ProgrammingError('invalid URI query parameter: "x"'),
            exits.USAGE,
            "correct postgresql://app:***@db",
        ),
    ],
)
def test_each_kind(error: Exception, code: int, says: str) -> None:
    failure = failure_of(error, SETTINGS)
    assert failure.code == code
    assert says in failure.text
    assert "\n" not in failure.text
    assert "s3cret" not in failure.text


def test_without_settings() -> None:
    assert "the address" in failure_of(psycopg.OperationalError("connection failed"), None).text
