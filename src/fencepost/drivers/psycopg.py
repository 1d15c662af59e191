"""psycopg 3, sync and async."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from fencepost.core.operation import Rows, Statement


def is_sync(connection: Any) -> bool:
    return isinstance(connection, psycopg.Connection)


def is_async(connection: Any) -> bool:
    return isinstance(connection, psycopg.AsyncConnection)


class PsycopgDriver:
    """Sends statements over a `psycopg.Connection`; the caller's own row factory is left alone."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, statement: Statement) -> Rows:
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(_text(statement), statement.params or None)
            return cursor.fetchall() if cursor.description else []

    def commits_alone(self) -> bool:
        return commits_alone(self._connection)


class AsyncPsycopgDriver:
    """The async twin of `PsycopgDriver`."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def execute(self, statement: Statement) -> Rows:
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(_text(statement), statement.params or None)
            return await cursor.fetchall() if cursor.description else []

    async def commits_alone(self) -> bool:
        return commits_alone(self._connection)


def commits_alone(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether psycopg would commit the next statement by itself."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def _text(statement: Statement) -> bytes:
    # Bytes, since psycopg's types ask for literal strings to keep values out of SQL: ours come from the files
    # of fencepost.store.
    return statement.sql.encode()
