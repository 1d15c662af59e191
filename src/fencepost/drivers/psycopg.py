"""psycopg 3, sync and async."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import postgres
from psycopg.adapt import AdaptersMap
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types import TypesRegistry

from fencepost.core.operation import Rows, Statement
from fencepost.drivers.parameters import numbered
from fencepost.errors import ConfigError, SchemaError


def is_sync(connection: Any) -> bool:
    return isinstance(connection, psycopg.Connection)


def is_async(connection: Any) -> bool:
    return isinstance(connection, psycopg.AsyncConnection)


def _own_adapters() -> AdaptersMap:
    """Return psycopg's defaults, made anew: a caller may have changed those of a connection, or of psycopg."""
    types = TypesRegistry()
    postgres.register_default_types(types)
    adapters = AdaptersMap(types=types)
    postgres.register_default_adapters(adapters)
    return adapters


_ADAPTERS = _own_adapters()


# Raw cursors leave the text as it is. The others look for parameters in it each time, where it is long.
class _Cursor(psycopg.RawCursor[Any]):
    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class _AsyncCursor(psycopg.AsyncRawCursor[Any]):
    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class PsycopgDriver:
    """Sends statements over a `psycopg.Connection`; the caller's own factories and adapters are left alone."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        refuse_encoding(connection)
        self._connection = connection

    def execute(self, statement: Statement) -> Rows:
        with _Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(*_raw(statement))
            self._settle()
            return cursor.fetchall() if _has_rows(cursor) else []

    def commits_alone(self) -> bool:
        self._settle()
        return commits_alone(self._connection)

    def commit(self) -> None:
        try:
            self._connection.commit()
        except psycopg.ProgrammingError as error:
            _left_to_a_block(error)

    def rollback(self) -> None:
        try:
            self._connection.rollback()
        except psycopg.ProgrammingError as error:
            _left_to_a_block(error)

    def _settle(self) -> None:
        if in_pipeline(self._connection):
            with self._connection.pipeline():
                pass  # leaving a nested block waits for the results of everything that was sent


class AsyncPsycopgDriver:
    """The async twin of `PsycopgDriver`."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        refuse_encoding(connection)
        self._connection = connection

    async def execute(self, statement: Statement) -> Rows:
        async with _AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(*_raw(statement))
            await self._settle()
            return await cursor.fetchall() if _has_rows(cursor) else []

    async def commits_alone(self) -> bool:
        await self._settle()
        return commits_alone(self._connection)

    async def commit(self) -> None:
        try:
            await self._connection.commit()
        except psycopg.ProgrammingError as error:
            _left_to_a_block(error)

    async def rollback(self) -> None:
        try:
            await self._connection.rollback()
        except psycopg.ProgrammingError as error:
            _left_to_a_block(error)

    async def _settle(self) -> None:
        if in_pipeline(self._connection):
            async with self._connection.pipeline():
                pass  # leaving a nested block waits for the results of everything that was sent


def _left_to_a_block(error: psycopg.ProgrammingError) -> None:
    """Go on where psycopg says that the end of a ``transaction()`` block will do it; there is no way to ask."""
    if error.sqlstate is not None or "forbidden within a Transaction" not in str(error):
        raise error


def refuse_encoding(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a session whose text is not UTF-8, before any work; see `refused_encoding`."""
    server, client = (
        connection.pgconn.parameter_status(each) for each in (b"server_encoding", b"client_encoding")
    )
    if server is not None and client is not None:  # None: the connection is closed, as its first use will say
        refused_encoding(server.decode(), client.decode())


def refused_encoding(server: str, client: str) -> None:
    """Check PostgreSQL's names of the encodings of a database and of a session in it.

    Raises:
        SchemaError: the database cannot keep every message.
        ConfigError: the session cannot carry every message: text would be lost, or come back as bytes.
    """
    if server != "UTF8":
        raise SchemaError(
            f"the database's encoding is {server}, which cannot keep UTF-8 payloads byte for byte: "
            "create a database with ENCODING 'UTF8'"
        )
    if client != "UTF8":
        raise ConfigError(
            f"this connection's client_encoding is {client}, which cannot carry every message: "
            "make it UTF8 (in the URL, or with SET client_encoding TO 'UTF8')"
        )


def commits_alone(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether psycopg would commit the next statement by itself."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def in_pipeline(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether results and the state of the transaction are behind what was sent."""
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def _has_rows(cursor: psycopg.RawCursor[Any] | psycopg.AsyncRawCursor[Any]) -> bool:
    # (``description`` would make an object of each column.)
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


def _raw(statement: Statement) -> tuple[bytes, tuple[Any, ...] | None]:
    # Bytes, since psycopg's types ask for literal strings to keep values out of SQL: ours come from the files
    # of fencepost.store.
    text, values = numbered(statement.sql, statement.params)
    return text.encode(), values or None
