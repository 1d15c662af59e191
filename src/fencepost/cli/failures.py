"""From any exception to one line that names the remedy, and an exit code."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

import click

from fencepost.cli import exits
from fencepost.cli.settings.addresses import shown_store
from fencepost.config import Settings
from fencepost.core.error_text import describe
from fencepost.errors import ConfigError, EmbeddedError, FencepostError, SchemaError

LIBPQ_MISSING = (
    "psycopg finds no libpq, PostgreSQL's client library: pip install 'fencepost[binary]', "
    "or install your system's package of it (libpq5, postgresql-libs)"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What to say and how to exit."""

    code: int
    text: str


def failure_of(error: BaseException, settings: Settings | None) -> Failure:
    """Classify an exception that left a command; the text is not yet redacted."""
    if isinstance(error, click.ClickException):
        return Failure(exits.USAGE, error.format_message())
    if isinstance(error, ConfigError):
        return Failure(exits.USAGE, str(error))
    if isinstance(error, SchemaError):
        return Failure(exits.SCHEMA, str(error))
    if isinstance(error, EmbeddedError):
        return Failure(exits.DATABASE, str(error))
    if isinstance(error, FencepostError):
        return Failure(exits.FAILED, str(error))
    if isinstance(error, ImportError) and "pq wrapper" in str(error):
        return Failure(exits.USAGE, LIBPQ_MISSING)
    # An error of psycopg can only exist where it was imported.
    if "psycopg" in sys.modules and (found := _database_failure(error, settings)) is not None:
        return found
    return Failure(exits.FAILED, f"unexpected: {describe(error)}; run again with --debug to see where")


_REMEDIES: tuple[tuple[str, str], ...] = (
    # Connection errors carry no SQLSTATE: libpq reports them as text.
    (r"password authentication failed|no password supplied|28P01", "check the user and password in {store}"),
    (r"no pg_hba.conf entry", "let this host, user and database in, in the server's pg_hba.conf"),
    (r'database ".*" does not exist|3D000', "create the database (createdb), or correct {store}"),
    (r'role ".*" does not exist', "create the role, or correct the user in {store}"),
    (r"could not translate host name|failed to resolve host", "check the host name in {store}"),
    (
        r"Connection refused|No such file or directory",
        "check the host and port in {store}, and that the server runs",
    ),
    (r"timeout expired|timed out", "check the host in {store}, and that no firewall is in between"),
    (r"too many (?:clients|connections)|53300", "close other connections, or raise max_connections"),
    (r"starting up|shutting down|57P0[123]", "the server is starting or stopping: try again"),
    (r"read-only transaction|25006", "this is a standby: name the primary in {store}"),
    (r"permission denied|42501", "grant this user what it needs, or name the owner of the tables in {store}"),
    (r"does not support SSL|SSL", "check sslmode in {store}"),
    (r"lock_not_available|55P03|57014", "something else holds the tables: try again"),
)


# What libpq says of an address before it connects.
_BAD_ADDRESS = re.compile(r"invalid (?:\w+ value|URI|connection option|port|integer)|missing \"=\"")


def _database_failure(error: BaseException, settings: Settings | None) -> Failure | None:
    import psycopg

    if not isinstance(error, psycopg.Error):
        return None
    text = " ".join(str(error).split())
    if error.sqlstate in ("42P01", "3F000"):
        place = f"{settings.schema}.{settings.table}" if settings else "the outbox"
        return Failure(
            exits.SCHEMA, f"tables of {place} do not exist, all or the newer ones: run `fencepost migrate`"
        )
    if error.sqlstate == "42703":
        return Failure(
            exits.SCHEMA,
            f"the tables are not what this version needs ({error.diag.message_primary or text}): "
            "run `fencepost migrate`",
        )
    if error.sqlstate is None and _BAD_ADDRESS.search(text):
        return Failure(exits.USAGE, f"store: {text}; correct {_store(settings)}")
    searched = f"{text} {error.sqlstate or ''}"
    remedy = next((say for pattern, say in _REMEDIES if re.search(pattern, searched)), "check {store}")
    text = re.sub(r"\s*Is the server running on that host.*", "", text)
    return Failure(exits.DATABASE, f"database: {text}; {remedy.format(store=_store(settings))}")


def _store(settings: Settings | None) -> str:
    if settings is None or settings.store is None:
        return "the address"
    return f"{shown_store(settings.store)} ({settings.source('store')})"
