"""A worker's own database connection, which survives restarts, failovers and cut cables.

Each operation runs in a transaction of its own: READ COMMITTED whatever the server's default, with its
limits set locally, so that nothing depends on session state that a pooler would share.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from fencepost.core.error_text import describe
from fencepost.core.operation import Operation, Statement, arun
from fencepost.drivers.faults import Fault, fault_of
from fencepost.drivers.psycopg import AsyncPsycopgDriver
from fencepost.store.catalog import Catalog

T = TypeVar("T")
log = logging.getLogger("fencepost.link")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds, all below the lease: no lock and no wait of ours may outlive one."""

    statement: float
    lock: float
    idle: float
    transaction: float
    answer: float
    """Our own limit around a whole transaction, for a server that stopped answering."""
    connect: float = 10.0

    @classmethod
    def below(cls, lease: timedelta) -> Limits:
        """Derive the limits from a lease."""
        seconds = lease.total_seconds()
        return cls(
            statement=min(20.0, seconds / 3),
            lock=min(5.0, seconds / 6),
            idle=min(30.0, seconds / 2),
            transaction=min(40.0, seconds / 2),
            answer=min(45.0, seconds * 0.6),
        )

    def statement_for(self, catalog: Catalog) -> Statement:
        """Return the statement that sets them, as the first one of a transaction."""
        milliseconds = {
            "statement_ms": self.statement,
            "lock_ms": self.lock,
            "idle_ms": self.idle,
            "transaction_ms": self.transaction,
        }
        return catalog.statement("session", {key: str(max(1, int(s * 1000))) for key, s in milliseconds.items()})


class Link:
    """One connection; operations take turns on it."""

    def __init__(
        self, url: str, catalog: Catalog, limits: Limits, role: str, on_reconnect: Callable[[], None]
    ) -> None:
        self._url = url
        self._limits = limits
        self._role = role
        self._on_reconnect = on_reconnect
        self._session = limits.statement_for(catalog)
        self._turn = asyncio.Lock()
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._was_connected = False

    async def run(self, make: Callable[[], Operation[T]], *, tries: int | None = None) -> T:
        """Run an operation in a transaction, and again after faults that are not its own.

        Args:
            make: makes the operation anew for each try.
            tries: how often to try at most; None for until it works or the task is cancelled.

        Raises:
            Exception: an error that is the operation's own, or the last fault once ``tries`` are used up.
        """
        pause = _FIRST_PAUSE
        tried = 0
        while True:
            tried += 1
            try:
                return await self._once(make)
            except Exception as error:
                fault = fault_of(error)
                if fault is Fault.OTHER or tried == tries:
                    raise
                log.warning("%s: %s; trying again (%s)", self._role, describe(error), fault.name.lower())
            # Many workers lose the same server at once: they must not all come back in the same instant.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def close(self) -> None:
        """Close the connection; the server rolls back what was not committed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _once(self, make: Callable[[], Operation[T]]) -> T:
        async with self._turn:
            try:
                connection = await self._connected()
                return await self._answered(self._transaction(connection, make()))
            except BaseException as error:
                # A cancelled query or a fault leaves the connection in a state that is not worth knowing.
                if not isinstance(error, Exception) or fault_of(error) is not Fault.TRANSIENT:
                    await self.close()
                raise

    async def _answered(self, transaction: Coroutine[Any, Any, T]) -> T:
        """Wait for a transaction within our own limit.

        The connection is closed *before* its task is cancelled: psycopg answers a cancellation by asking the
        server to cancel, and by waiting for it, which never ends where the server has gone silent.
        """
        task = asyncio.ensure_future(transaction)
        try:
            await asyncio.wait([task], timeout=self._limits.answer)
            if task.done():
                return task.result()
            raise TimeoutError(f"no answer from the database within {self._limits.answer:g} s")
        finally:
            if not task.done():
                await self.close()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _transaction(self, connection: psycopg.AsyncConnection[Any], operation: Operation[T]) -> T:
        driver = AsyncPsycopgDriver(connection)
        try:
            await driver.execute(self._session)
            result = await arun(operation, driver.execute)
        except Exception:
            operation.close()
            if not connection.closed:
                await connection.rollback()
            raise
        await connection.commit()
        return result

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None or self._connection.closed:
            async with asyncio.timeout(self._limits.connect):
                self._connection = await connect(self._url, self._role, self._limits)
            if self._was_connected:
                self._on_reconnect()
                log.info("%s: connected again", self._role)
            self._was_connected = True
        return self._connection


async def connect(
    url: str, role: str, limits: Limits, *, autocommit: bool = False
) -> psycopg.AsyncConnection[Any]:
    """Open a connection whose dead peers are noticed within a lease."""
    given = conninfo_to_dict(url)
    defaults: dict[str, Any] = {
        "application_name": f"fencepost {role}",
        "client_encoding": "UTF8",
        "connect_timeout": max(2, int(limits.connect)),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": int(limits.answer * 1000),
    }
    connection = await psycopg.AsyncConnection.connect(
        url, autocommit=autocommit, **{key: value for key, value in defaults.items() if key not in given}
    )
    if not autocommit:
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        await connection.set_read_only(False)
    return connection
