"""Sessions on which an operation is run as its callers run it, and which end at a point of it."""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import CodeType
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from fencepost.core.operation import Operation, Rows, Statement, arun, run
from fencepost.drivers import AsyncDriver
from fencepost.drivers.psycopg import AsyncPsycopgDriver, PsycopgDriver
from fencepost.drivers.sqlalchemy import AsyncSqlalchemyDriver
from lab.crashes.operations import running
from lab.crashes.points import Point, Way
from lab.crashes.scenario import Make
from lab.crashes.world import Snapshot, World

T = TypeVar("T")
BEGIN, COMMIT = Statement("BEGIN", "BEGIN"), Statement("COMMIT", "COMMIT")


class AnswerLost(psycopg.OperationalError):
    """The server has done it, and its answer does not come."""


class Session:
    """A sync connection on which statements are counted, and which ends at a point.

    Args:
        looks: look at the tables after each statement.
    """

    def __init__(self, world: World, point: Point | None = None, *, looks: bool = False) -> None:
        self._world, self._point, self._looks = world, point, looks
        # (Only what is cut needs a connection of its own: to connect costs more than most statements.)
        self._connection = world.spare if point is None else psycopg.connect(world.url, autocommit=True)
        self.names: list[str] = []
        self.states: list[Snapshot] = []
        self.codes: set[CodeType] = set()

    def attempt(self, make: Make, *, alone: bool) -> Any:
        """Run the operation as its callers do."""
        try:
            operation = make()
            if alone:
                return run(operation, lambda statement: self._execute(statement, operation))
            self._execute(BEGIN)
            result = run(operation, lambda statement: self._execute(statement, operation))
            self._execute(COMMIT)
            return result
        finally:
            if self._point is not None:
                self._connection.close()
            elif self._connection.info.transaction_status != TransactionStatus.IDLE:
                self._connection.rollback()

    def _execute(self, statement: Statement, operation: Operation[Any] | None = None) -> Rows:
        self.names.append(statement.name)
        if operation is not None:
            self.codes |= running(operation)
        way = self._point.way if self._point is not None and self._point.number == len(self.names) else None
        if way is Way.BEFORE:
            self._end()
        rows = PsycopgDriver(self._connection).execute(statement)
        if way is not None:
            self._end()
            raise AnswerLost("the session ended before the answer came")
        if self._looks:
            self.states.append(self._world.look())
        return rows

    def _end(self) -> None:
        """End the session for real, by a signal or by its cable, and wait until the server has rolled back."""
        pid = self._connection.info.backend_pid
        if len(self.names) % 2:
            self._world.db.execute("SELECT pg_terminate_backend(%s)", [pid])
        else:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as cut:
                cut.shutdown(socket.SHUT_RDWR)
        self._world.wait_for_end(pid)


class AsyncSession(ABC):
    """An async connection whose task is cancelled while a statement of it is under way."""

    @staticmethod
    def at(point: Point, world: World) -> AsyncSession:
        """Return a session by the point's way to end."""
        return (_OnPsycopg if point.way is Way.CANCELLED else _OnAsyncpg)(world, point)

    def __init__(self, world: World, point: Point) -> None:
        self._world, self._point = world, point
        self.names: list[str] = []

    def attempt(self, make: Make, *, alone: bool) -> Any:
        """Run the operation as its callers do."""
        return self._world.loop.run(self._attempt(make, alone=alone))

    async def _attempt(self, make: Make, *, alone: bool) -> Any:
        driver, pid, close = await self._connected(autocommit=alone)
        try:
            operation = make()
            await self._reach(BEGIN.name, lambda: self._begin(driver), skipped=alone)
            result = await arun(
                operation,
                lambda statement: self._reach(statement.name, lambda: driver.execute(statement)),
            )
            await self._reach(COMMIT.name, driver.commit, skipped=alone)
            return result
        finally:
            with suppress(Exception):  # a cancelled statement leaves it in a state that is not worth knowing
                await close()
            self._world.wait_for_end(pid)

    async def _reach(self, name: str, send: Callable[[], Any], *, skipped: bool = False) -> Any:
        if skipped:
            return None
        self.names.append(name)
        if self._point.number != len(self.names):
            return await send()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: the loop runs one
        # Once the statement has been sent and the task waits for its answer.
        asyncio.get_running_loop().call_soon(task.cancel)
        found = await send()
        await asyncio.sleep(0)  # nothing was waited for: this is
        return found

    @abstractmethod
    async def _connected(self, *, autocommit: bool) -> tuple[AsyncDriver, int, Callable[[], Any]]:
        """Return a driver, the process that serves it, and what closes it."""

    @abstractmethod
    async def _begin(self, driver: AsyncDriver) -> None:
        """Begin a transaction."""


class _OnPsycopg(AsyncSession):
    async def _connected(self, *, autocommit: bool) -> tuple[AsyncDriver, int, Callable[[], Any]]:
        connection = await psycopg.AsyncConnection.connect(self._world.url, autocommit=autocommit)
        return AsyncPsycopgDriver(connection), connection.info.backend_pid, connection.close

    async def _begin(self, driver: AsyncDriver) -> None:
        await driver.execute(Statement("nothing", "SELECT 1"))  # psycopg begins before it


class _OnAsyncpg(AsyncSession):
    async def _connected(self, *, autocommit: bool) -> tuple[AsyncDriver, int, Callable[[], Any]]:
        connection = await self._world.engine.connect()
        if autocommit:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
        raw: Any = (await connection.get_raw_connection()).driver_connection
        return AsyncSqlalchemyDriver(connection), raw.get_server_pid(), connection.close

    async def _begin(self, driver: AsyncDriver) -> None:
        await driver.execute(Statement("nothing", "SELECT 1"))  # SQLAlchemy begins before it
