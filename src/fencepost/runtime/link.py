"""A worker's own database connection, which survives restarts, failovers and cut cables.

Everything runs in READ COMMITTED, whatever the server's default, under time limits of our own. A connection that
is ours alone gets them once, and each statement is a transaction of its own unless an operation must be atomic.
On a connection that a pooler shares with others, each operation is a transaction that begins with the limits,
and there are no prepared statements: session state would leak, or be somebody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import traceback
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

_BEGIN = Statement("BEGIN", "BEGIN ISOLATION LEVEL READ COMMITTED")
_COMMIT = Statement("COMMIT", "COMMIT")

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

    def statement_for(self, catalog: Catalog, *, local: bool) -> Statement:
        """Return the statement that sets them, for one transaction (``local``) or for the whole session."""
        milliseconds = {
            "statement_ms": self.statement,
            "lock_ms": self.lock,
            "idle_ms": self.idle,
            "transaction_ms": self.transaction,
        }
        params: dict[str, Any] = {key: str(max(1, int(s * 1000))) for key, s in milliseconds.items()}
        return catalog.statement("session", {**params, "local": local})


class Link:
    """One connection; operations take turns on it."""

    def __init__(
        self, url: str, catalog: Catalog, limits: Limits, role: str, on_reconnect: Callable[[], None]
    ) -> None:
        self._url = url
        self._catalog = catalog
        self._role = role
        self._on_reconnect = on_reconnect
        self._set(limits)
        self._turn = asyncio.Lock()
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._is_shared = False
        self.is_out_of_reach = True
        """No transaction can be under way: it is connecting, or pausing after a fault."""
        self._was_connected = False
        self._is_outdated = False

    def limit(self, limits: Limits) -> None:
        """Change the time limits; a connection that lives under other ones is replaced before its next use."""
        if limits != self._limits:
            self._set(limits)
            self._is_outdated = True

    def _set(self, limits: Limits) -> None:
        self._limits = limits
        self._settings = {local: limits.statement_for(self._catalog, local=local) for local in (True, False)}

    async def run(
        self,
        make: Callable[[], Operation[T]],
        *,
        atomic: bool = False,
        tries: int | None = None,
        refusal_is_final: bool = False,
    ) -> T:
        """Run an operation, and again after faults that are not its own.

        Args:
            make: makes the operation anew for each try.
            atomic: all of its statements or none; for operations that cannot be repeated after half of them.
            tries: how often to try at most; None for until it works or the task is cancelled.
            refusal_is_final: do not wait for a missing table or privilege to come back.

        Raises:
            Exception: an error that is the operation's own, or the last fault once ``tries`` are used up.
        """
        pause = _FIRST_PAUSE
        tried = 0
        while True:
            tried += 1
            try:
                return await self._once(make, atomic)
            except Exception as error:
                fault = fault_of(error)
                if tried == tries or fault is Fault.OTHER or (refusal_is_final and fault is Fault.REFUSED):
                    raise
                log.warning("%s: %s; trying again (%s)", self._role, describe(error), fault.name.lower())
            self.is_out_of_reach = True
            # Many workers lose the same server at once: they must not all come back in the same instant.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def open(self) -> None:
        """Connect, for as long as that takes, unless it is connected."""
        await self.run(_nothing)

    async def close(self) -> None:
        """Close the connection; the server rolls back what was not committed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)

    async def _once(self, make: Callable[[], Operation[T]], atomic: bool) -> T:
        async with self._turn:
            try:
                if self._is_outdated:
                    self._is_outdated = self._was_connected = False
                    await self.close()
                if self._connection is None or self._connection.closed:
                    self.is_out_of_reach = True
                    await self._answered(self._connect(), self._limits.connect)
                self.is_out_of_reach = False
                return await self._answered(self._sent(make(), atomic), self._limits.answer)
            except BaseException as error:
                # A cancelled query or a fault leaves the connection in a state that is not worth knowing.
                if not isinstance(error, Exception) or fault_of(error) is not Fault.TRANSIENT:
                    await self.close()
                raise

    async def _answered(self, work: Coroutine[Any, Any, T], limit: float) -> T:
        """Wait for work on the connection within a limit of our own, in seconds.

        The connection is closed *before* its task is cancelled: psycopg answers a cancellation by asking the
        server to cancel, and by waiting for it, which never ends where the server has gone silent.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task], timeout=limit)
            if task.done():
                return task.result()
            raise TimeoutError(f"no answer from the database within {limit:g} s")
        finally:
            if not task.done():
                await self.close()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            retrieve(task)

    async def _sent(self, operation: Operation[T], atomic: bool) -> T:
        connection = self._connection
        assert connection is not None  # noqa: S101 - for the type checker: `_once` has just connected
        driver = AsyncPsycopgDriver(connection)
        if not atomic and not self._is_shared:
            return await arun(operation, driver.execute)
        try:
            await driver.execute(_BEGIN)
            if self._is_shared:
                await driver.execute(self._settings[True])
            result = await arun(operation, driver.execute)
            await driver.execute(_COMMIT)
        except Exception:
            operation.close()
            if not connection.closed:
                await connection.rollback()
            raise
        return result

    async def _connect(self) -> None:
        self._connection = connection = await connect(self._url, self._role, self._limits)
        try:
            await self._prepare(connection)
        except Exception:
            await self.close()
            raise
        if self._was_connected:
            self._on_reconnect()
            log.info("%s: connected again", self._role)
        self._was_connected = True

    async def _prepare(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._is_shared = await is_shared(connection)
        if self._is_shared:
            connection.prepare_threshold = None
        else:
            await AsyncPsycopgDriver(connection).execute(self._settings[False])


def retrieve(task: asyncio.Future[Any]) -> None:
    """Look at how a task ended that failed just as we were cancelled: asyncio complains of those nobody asks."""
    if not task.cancelled():
        task.exception()


def _nothing() -> Operation[None]:
    yield from ()


# A setting that only a session of our own can have: poolers refuse start-up options, or drop them.
_OWN_SESSION = "fencepost.own_session"


async def hang_up(connection: psycopg.AsyncConnection[Any]) -> None:
    """Close a connection on which a statement may still be waited for.

    psycopg asks the event loop to watch the connection's socket, anew ten times a second, and the loop does so at
    the end of its turn. Where the socket is closed in between, uvloop ends the whole process (libuv calls abort),
    so it has to forget the socket first. The two coincide easily where the process was stopped for a while.
    """
    with contextlib.suppress(psycopg.Error):  # it is closed already
        descriptor = connection.fileno()
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
    await connection.close()


async def connect(url: str, role: str, limits: Limits) -> psycopg.AsyncConnection[Any]:
    """Open a connection in autocommit mode whose dead peers are noticed within a lease."""
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
    options = {key: value for key, value in defaults.items() if key not in given}
    marked = f"{given.get('options', '')} -c {_OWN_SESSION}=on".strip()
    try:
        return await _open(url, options | {"options": marked})
    except psycopg.OperationalError as error:
        if "startup parameter" not in str(error):
            raise
        return await _open(url, options)


async def _open(url: str, options: dict[str, Any]) -> psycopg.AsyncConnection[Any]:
    try:
        return await psycopg.AsyncConnection.connect(url, autocommit=True, **options)
    except BaseException as error:
        # An attempt that is cut short lives on in the frames of its traceback until the garbage collector
        # comes by, and its server process waits for us all that time (authentication_timeout: a minute).
        traceback.clear_frames(error.__traceback__)
        raise


async def is_shared(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether a pooler may hand this session to others between our transactions."""
    cursor = await connection.execute("SELECT pg_catalog.current_setting(%s::text, true)", [_OWN_SESSION])
    row = await cursor.fetchone()
    return row is None or row[0] != "on"
