"""One way to use every kind of connection that a producer may have, so that the same tests run on all of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencepost import AsyncOutbox, Enqueued, NewMessage, Outbox


def sqlalchemy_url(url: str, driver: str) -> str:
    return urlsplit(url)._replace(scheme=f"postgresql+{driver}").geturl()


class Producer:
    """A connection in a transaction, behind one async face."""

    def __init__(self, conn: Any, outbox: Outbox | AsyncOutbox) -> None:
        self.conn = conn
        self.outbox = outbox

    async def enqueue(self, event_type: str, payload: Any, **options: Any) -> Enqueued:
        result: Any = self.outbox.enqueue(self.conn, event_type, payload, **options)
        receipt: Enqueued = await result if isinstance(self.outbox, AsyncOutbox) else result
        return receipt

    async def enqueue_many(self, messages: Sequence[NewMessage]) -> list[Enqueued]:
        result: Any = self.outbox.enqueue_many(self.conn, messages)
        receipts: list[Enqueued] = await result if isinstance(self.outbox, AsyncOutbox) else result
        return receipts

    async def call(self, name: str, *args: Any, outbox: Outbox | AsyncOutbox | None = None, **options: Any) -> Any:
        """Call any other method of the outbox, or of another one, on this connection."""
        result: Any = getattr(outbox or self.outbox, name)(self.conn, *args, **options)
        return await result if isinstance(self.outbox, AsyncOutbox) else result

    async def execute(self, sql: str) -> list[Any]:
        """Send the caller's own SQL on the same connection and return its rows."""
        if isinstance(self.conn, psycopg.Connection):
            cursor = self.conn.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []
        if isinstance(self.conn, psycopg.AsyncConnection):
            acursor = await self.conn.execute(sql.encode())
            return await acursor.fetchall() if acursor.description else []
        if isinstance(self.conn, AsyncSession | AsyncConnection):
            target = await self.conn.connection() if isinstance(self.conn, AsyncSession) else self.conn
            aresult = await target.exec_driver_sql(sql)
            return list(aresult) if aresult.returns_rows else []
        target_sync = self.conn.connection() if isinstance(self.conn, Session) else self.conn
        result = target_sync.exec_driver_sql(sql)
        return list(result) if result.returns_rows else []

    async def end(self, how: str) -> None:
        """Call ``commit`` or ``rollback``."""
        result = getattr(self.conn, how)()
        if isinstance(self.conn, psycopg.AsyncConnection | AsyncSession | AsyncConnection):
            await result

    async def commit(self) -> None:
        await self.end("commit")

    async def rollback(self) -> None:
        await self.end("rollback")


Open = Callable[[str], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True)
class Adapter:
    """A kind of connection: how it is opened in a transaction, and how in autocommit mode."""

    name: str
    open: Open
    open_autocommit: Open
    is_async: bool

    @contextlib.asynccontextmanager
    async def producer(self, url: str, **settings: Any) -> AsyncIterator[Producer]:
        async with self.open(url) as conn:
            yield Producer(conn, self.outbox(**settings))

    def outbox(self, **settings: Any) -> Outbox | AsyncOutbox:
        return AsyncOutbox(**settings) if self.is_async else Outbox(**settings)

    def __str__(self) -> str:
        return self.name


def _psycopg(autocommit: bool) -> Open:
    @contextlib.asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        conn = psycopg.connect(url, autocommit=autocommit)
        try:
            yield conn
        finally:
            conn.close()

    return opened


def _async_psycopg(autocommit: bool) -> Open:
    @contextlib.asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        conn = await psycopg.AsyncConnection.connect(url, autocommit=autocommit)
        try:
            yield conn
        finally:
            await conn.close()

    return opened


def _options(autocommit: bool) -> dict[str, Any]:
    return {"isolation_level": "AUTOCOMMIT"} if autocommit else {}


def _sqlalchemy(driver: str, kind: str, autocommit: bool) -> Open:
    @contextlib.asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = create_engine(sqlalchemy_url(url, driver), **_options(autocommit))
        try:
            with Session(engine) if kind == "Session" else engine.connect() as conn:
                yield conn
        finally:
            engine.dispose()

    return opened


def _async_sqlalchemy(driver: str, kind: str, autocommit: bool) -> Open:
    @contextlib.asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(sqlalchemy_url(url, driver), **_options(autocommit))
        try:
            async with AsyncSession(engine) if kind == "AsyncSession" else engine.connect() as conn:
                yield conn
        finally:
            await engine.dispose()

    return opened


ADAPTERS = [
    Adapter("psycopg", _psycopg(False), _psycopg(True), is_async=False),
    Adapter("psycopg async", _async_psycopg(False), _async_psycopg(True), is_async=True),
    *[
        Adapter(f"{kind} {driver}", _sqlalchemy(driver, kind, False), _sqlalchemy(driver, kind, True), False)
        for driver in ("psycopg", "psycopg2")
        for kind in ("Connection", "Session")
    ],
    *[
        Adapter(
            f"{kind} {driver}",
            _async_sqlalchemy(driver, kind, False),
            _async_sqlalchemy(driver, kind, True),
            is_async=True,
        )
        for driver in ("psycopg", "asyncpg")
        for kind in ("AsyncConnection", "AsyncSession")
    ],
]
