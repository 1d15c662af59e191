"""SQLAlchemy 2: Connection and Session, AsyncConnection and AsyncSession, over psycopg, psycopg2 and asyncpg.

Statements go through ``exec_driver_sql``, so they take part in the transaction that SQLAlchemy has open.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from fencepost.core.operation import Rows, Statement
from fencepost.drivers import psycopg
from fencepost.drivers.parameters import numbered
from fencepost.errors import UnsupportedConnection

_SYNC_DRIVERS = ("psycopg", "psycopg2")
_ASYNC_DRIVERS = ("psycopg", "psycopg_async", "asyncpg")


def is_sync(connection: Any) -> bool:
    return isinstance(connection, Connection | Session | scoped_session)


def is_async(connection: Any) -> bool:
    return isinstance(connection, AsyncConnection | AsyncSession | async_scoped_session)


class SqlalchemyDriver:
    """Sends statements over a `Connection`, or the connection that a `Session` works on."""

    def __init__(self, target: Connection | Session | scoped_session[Any]) -> None:
        self._target = target
        self._connection = target if isinstance(target, Connection) else target.connection()
        _check(self._connection, _SYNC_DRIVERS)
        _refuse_encoding(self._connection)

    def execute(self, statement: Statement) -> Rows:
        result = self._connection.exec_driver_sql(*_compiled(statement, self._connection.dialect.driver))
        return [tuple(row) for row in result] if result.returns_rows else []

    def commits_alone(self) -> bool:
        return _commits_alone(self._connection)

    def commit(self) -> None:
        self._target.commit()  # of a Session: with what it has not flushed yet

    def rollback(self) -> None:
        self._target.rollback()


class AsyncSqlalchemyDriver:
    """The async twin of `SqlalchemyDriver`."""

    def __init__(self, target: AsyncConnection | AsyncSession | async_scoped_session[Any]) -> None:
        self._target = target

    async def execute(self, statement: Statement) -> Rows:
        connection = await self._connect()
        result = await connection.exec_driver_sql(*_compiled(statement, connection.dialect.driver))
        return [tuple(row) for row in result] if result.returns_rows else []

    async def commits_alone(self) -> bool:
        connection = await self._connect()
        return await connection.run_sync(_commits_alone)

    async def commit(self) -> None:
        await self._target.commit()

    async def rollback(self) -> None:
        await self._target.rollback()

    async def _connect(self) -> AsyncConnection:
        target = self._target
        connection = target if isinstance(target, AsyncConnection) else await target.connection()
        _check(connection, _ASYNC_DRIVERS)
        await connection.run_sync(_refuse_encoding)
        return connection


def _check(connection: Connection | AsyncConnection, known: tuple[str, ...]) -> None:
    dialect = connection.dialect
    if dialect.name != "postgresql" or dialect.driver not in known:
        names = ", ".join(f"postgresql+{name}" for name in known if name != "psycopg_async")
        raise UnsupportedConnection(f"SQLAlchemy on {dialect.name}+{dialect.driver} is not supported: use {names}")


def _refuse_encoding(connection: Connection) -> None:
    raw: Any = connection.connection.driver_connection
    if psycopg.is_sync(raw) or psycopg.is_async(raw):
        psycopg.refuse_encoding(raw)
    elif connection.dialect.driver == "asyncpg":
        settings = raw.get_settings()
        psycopg.refused_encoding(settings.server_encoding, settings.client_encoding)
    else:
        status = raw.info.parameter_status
        psycopg.refused_encoding(status("server_encoding"), status("client_encoding"))


def _compiled(statement: Statement, driver: str) -> tuple[str, Any]:
    if driver == "asyncpg":
        return numbered(statement.sql, statement.params)
    return statement.sql, dict(statement.params) or None


def _commits_alone(connection: Connection) -> bool:
    """Ask the driver's own connection: what SQLAlchemy believes may differ."""
    pooled = connection.connection
    raw = pooled.driver_connection
    if psycopg.is_sync(raw) or psycopg.is_async(raw):
        return psycopg.commits_alone(raw)  # type: ignore[arg-type]  # checked in the line above
    if connection.dialect.driver == "asyncpg":
        begins_itself = getattr(pooled.dbapi_connection, "isolation_level", None) != "autocommit"
        return not begins_itself and not raw.is_in_transaction()  # type: ignore[union-attr]  # asyncpg.Connection
    # psycopg2: status 1 is "ready", outside a transaction.
    return bool(raw.autocommit) and raw.info.transaction_status == 0  # type: ignore[union-attr]  # psycopg2 has no types
