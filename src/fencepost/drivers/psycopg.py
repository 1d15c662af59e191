"""psycopg 3, sync and async."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from fencepost.core.operation import Rows, Statement


def is_sync(connection: Any) -> bool:
    return isinstance(connection, psycopg.Connection)


def is_async(connection: Any) -> bool:
    return isinstance(connection, psycopg.AsyncConnection)


class PsycopgDriver:
    """Sends statements over a `psycopg.Connection`; the caller's own row and cursor factories are left alone."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, statement: Statement) -> Rows:
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(_text(statement), statement.params or None)
            self._settle()
            return cursor.fetchall() if cursor.description else []

    def commits_alone(self) -> bool:
        self._settle()
        return commits_alone(self._connection)

    def _settle(self) -> None:
        if in_pipeline(self._connection):
            with self._connection.pipeline():
                pass  # leaving a nested block waits for the results of everything that was sent


class AsyncPsycopgDriver:
    """The async twin of `PsycopgDriver`."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def execute(self, statement: Statement) -> Rows:
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(_text(statement), statement.params or None)
            await self._settle()
            return await cursor.fetchall() if cursor.description else []

    async def commits_alone(self) -> bool:
        await self._settle()
        return commits_alone(self._connection)

    async def _settle(self) -> None:
        if in_pipeline(self._connection):
            async with self._connection.pipeline():
                pass  # leaving a nested block waits for the results of everything that was sent


def commits_alone(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether psycopg would commit the next statement by itself."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def in_pipeline(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether results and the state of the transaction are behind what was sent."""
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def _text(statement: Statement) -> bytes:
    # Bytes, since psycopg's types ask for literal strings to keep values out of SQL: ours come from the files
    # of fencepost.store.
    return statement.sql.encode()
