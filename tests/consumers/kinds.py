"""Every way to hand a consumer its connections, sync and async, behind one async face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import psycopg
from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from fencepost import Acceptance, AsyncInbox, Inbox, Outbox
from fencepost.consumers import AsyncConsumer, Consumer, Incoming, Received, Taken
from tests.client.adapters import Producer, sqlalchemy_url

T = TypeVar("T")

Effect = Callable[[Received, Producer], Awaitable[None]]


@dataclass(frozen=True)
class Kind:
    """One way to have connections.

    Args:
        name: for people.
        is_async: whether it is for an `AsyncConsumer`.
        connect: makes the consumer's ``connect`` of a database's URL.
    """

    name: str
    is_async: bool
    connect: Callable[[str], Any]

    def __str__(self) -> str:
        return self.name

    def consumer(self, url: str, name: str = "billing", **options: Any) -> Consumer | AsyncConsumer:
        if self.is_async:
            return AsyncConsumer(AsyncInbox(name), self.connect(url), **options)
        return Consumer(Inbox(name), self.connect(url), **options)


async def handled(consumer: Consumer | AsyncConsumer, effect: Effect, message: Incoming | Received) -> Acceptance:
    """Have a message handled by a handler that does this."""
    if isinstance(consumer, AsyncConsumer):

        async def run_async(received: Received, connection: Any) -> None:
            await effect(received, Producer(connection, Outbox()))

        return await consumer.handler(run_async)(message)

    def run(received: Received, connection: Any) -> None:
        _finished(effect(received, Producer(connection, Outbox())))

    return consumer.handler(run)(message)


@asynccontextmanager
async def receiving(
    consumer: Consumer | AsyncConsumer, message: Incoming | Received
) -> AsyncIterator[tuple[Taken, Producer]]:
    """Take a message in by the context manager."""
    if isinstance(consumer, AsyncConsumer):
        async with consumer.receive(message) as taken:
            yield taken, Producer(taken.connection, Outbox())
    else:
        with consumer.receive(message) as taken:
            yield taken, Producer(taken.connection, Outbox())


def _finished(awaitable: Awaitable[T]) -> None:
    """Run what never waits, on a sync connection, to its end."""
    assert isinstance(awaitable, Coroutine)
    try:
        awaitable.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits for something")


@contextmanager
def _in_a_block(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def _in_an_async_block(url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection, connection.transaction():
        yield connection


@contextmanager
def _bare(url: str) -> Iterator[psycopg.Connection]:
    """A connection that nobody but the consumer commits or rolls back."""
    connection = psycopg.connect(url)
    try:
        with nullcontext(connection) as same:
            yield same
    finally:
        status = connection.info.transaction_status
        assert status not in (psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.INERROR)
        connection.close()


def _engine(url: str, driver: str) -> Any:
    return create_engine(sqlalchemy_url(url, driver), poolclass=NullPool)


def _async_engine(url: str, driver: str) -> Any:
    return create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool)


KINDS = [
    Kind("psycopg.connect", False, lambda url: partial(psycopg.connect, url)),
    Kind("psycopg, in nobody's hands", False, lambda url: partial(_bare, url)),
    Kind("psycopg in a transaction block", False, lambda url: partial(_in_a_block, url)),
    Kind("engine.connect on psycopg", False, lambda url: _engine(url, "psycopg").connect),
    Kind("engine.begin on psycopg2", False, lambda url: _engine(url, "psycopg2").begin),
    Kind("sessionmaker", False, lambda url: sessionmaker(_engine(url, "psycopg2"))),
    Kind("AsyncConnection.connect", True, lambda url: partial(psycopg.AsyncConnection.connect, url)),
    Kind("async psycopg in a transaction block", True, lambda url: partial(_in_an_async_block, url)),
    Kind("async engine.connect on asyncpg", True, lambda url: _async_engine(url, "asyncpg").connect),
    Kind("async_sessionmaker.begin", True, lambda url: async_sessionmaker(_async_engine(url, "asyncpg")).begin),
    Kind("async_sessionmaker", True, lambda url: async_sessionmaker(_async_engine(url, "psycopg"))),
]
