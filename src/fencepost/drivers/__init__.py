"""How a statement is sent: one file a library, chosen by the kind of connection that the caller has."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from fencepost.core.operation import Rows, Statement
from fencepost.errors import AutocommitRefused, UnsupportedConnection

KNOWN_SYNC = "a psycopg Connection, or a SQLAlchemy Connection or Session on psycopg or psycopg2"
KNOWN_ASYNC = "a psycopg AsyncConnection, or a SQLAlchemy AsyncConnection or AsyncSession on psycopg or asyncpg"


class Driver(Protocol):
    """Sends statements over a caller's sync connection, inside whatever transaction it is in."""

    def execute(self, statement: Statement) -> Rows:
        """Send one statement and return its rows."""

    def commits_alone(self) -> bool:
        """Tell whether a statement sent now would be committed at once, by the driver's own word."""

    def commit(self) -> None:
        """Commit; where a block around us alone may do that, leave it to the end of that block."""

    def rollback(self) -> None:
        """Roll back; where a block around us alone may do that, leave it to the end of that block."""


class AsyncDriver(Protocol):
    """The async twin of `Driver`."""

    async def execute(self, statement: Statement) -> Rows:
        """Send one statement and return its rows."""

    async def commits_alone(self) -> bool:
        """Tell whether a statement sent now would be committed at once, by the driver's own word."""

    async def commit(self) -> None:
        """Commit; see `Driver.commit`."""

    async def rollback(self) -> None:
        """Roll back; see `Driver.rollback`."""


def driver_for(connection: Any) -> Driver:
    """Return the driver for a sync connection.

    Raises:
        UnsupportedConnection: no driver knows it.
    """
    # An object of a library can only exist where that library is imported already.
    if "sqlalchemy" in sys.modules:
        from fencepost.drivers import sqlalchemy

        if sqlalchemy.is_sync(connection):
            return sqlalchemy.SqlalchemyDriver(connection)
    if "psycopg" in sys.modules:
        from fencepost.drivers import psycopg

        if psycopg.is_sync(connection):
            return psycopg.PsycopgDriver(connection)
    raise UnsupportedConnection(f"{_kind(connection)} is not a connection for sync use: pass {KNOWN_SYNC}")


def async_driver_for(connection: Any) -> AsyncDriver:
    """Return the driver for an async connection; see `driver_for`."""
    if "sqlalchemy" in sys.modules:
        from fencepost.drivers import sqlalchemy

        if sqlalchemy.is_async(connection):
            return sqlalchemy.AsyncSqlalchemyDriver(connection)
    if "psycopg" in sys.modules:
        from fencepost.drivers import psycopg

        if psycopg.is_async(connection):
            return psycopg.AsyncPsycopgDriver(connection)
    raise UnsupportedConnection(f"{_kind(connection)} is not a connection for async use: pass {KNOWN_ASYNC}")


def refuse_autocommit(reason: str, who: str) -> AutocommitRefused:
    """Return the error for a connection that commits every statement by itself.

    Args:
        reason: what speaks against that.
        who: the class that was called.
    """
    return AutocommitRefused(
        f"this connection is in autocommit mode and in no transaction, so {reason}: open a transaction "
        f"(psycopg: `with conn.transaction():`), or say {who}(allow_autocommit=True)"
    )


def _kind(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
