"""The database server as simulated processes meet it: sessions of the fake store behind a network that fails.

A statement travels, is done, and its answer travels back, each at an instant of its own, on the server's loop;
so a process that is killed or stopped in between leaves behind what a real one would. The server keeps the time
limits that the shipped code sets: it ends statements, waits for locks, and transactions left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import psycopg

from fencepost.core.operation import Rows, Statement
from lab.fake_store import FakeSession
from lab.simulator.loop import Handle, VirtualLoop
from lab.simulator.plan import Fault

if TYPE_CHECKING:
    from lab.simulator.process import Client
    from lab.simulator.run import Run

FASTEST, SPREAD = 0.0002, 0.0015
"""Seconds that a statement, or an answer, travels."""

CONNECT_SECONDS = 0.002

_ERRORS: dict[str, Callable[[], psycopg.Error]] = {
    "time-out": lambda: psycopg.errors.QueryCanceled("canceling statement due to statement timeout"),
    "deadlock": lambda: psycopg.errors.DeadlockDetected("deadlock detected"),
    "read-only": lambda: psycopg.errors.ReadOnlySqlTransaction("cannot execute in a read-only transaction"),
}


def _cut() -> psycopg.Error:
    return psycopg.OperationalError("server closed the connection unexpectedly")


class Server:
    """Takes connections, unless it is down."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.loop = VirtualLoop(run.world, "server")
        self.down_until = 0.0
        self.sessions: list[ServerSession] = []

    async def connect(self, process: Client, role: str) -> Connection:
        """Open a connection for a process."""
        await asyncio.sleep(CONNECT_SECONDS)
        if self.run.world.now < self.down_until:
            raise psycopg.OperationalError("connection refused")
        session = ServerSession(self, process, role)
        self.sessions.append(session)
        connection = Connection(process, session, asyncio.get_running_loop())
        session.connection = connection
        process.connections.append(connection)
        return connection

    def restart(self, seconds: float) -> None:
        """Drop every session, and refuse new ones for a while."""
        self.down_until = self.run.world.now + seconds
        for session in list(self.sessions):
            session.end()
            session.tell_cut()


class ServerSession:
    """The server's end of a connection."""

    def __init__(self, server: Server, process: Client, role: str) -> None:
        self.server, self.process, self.role = server, process, role
        self.label = process.label
        self.store: FakeSession = server.run.database.session(f"{process.name} {role}")
        self.connection: Connection | None = None
        self.is_over = False
        self._is_left = False
        self._running: _Statement | None = None
        self._limits: dict[str, float] = {}
        self._idle: Handle | None = None
        self._transaction: Handle | None = None

    def take(self, request: _Statement) -> None:
        """A statement arrives."""
        if self.is_over:
            request.fail(_cut())
            return
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._running = request
        fault = request.fault
        kind = "" if fault is None else fault.kind
        if kind == "cut before":
            self.end()
            request.fail(_cut())
        elif kind == "hole before":
            self._running = None
        elif kind in _ERRORS and not self._is_set_up(request.statement):
            self._refused(request, _ERRORS[kind]())
        else:
            request.start()

    def done(self, request: _Statement, rows: Rows | None, error: BaseException | None) -> None:
        """A statement has been done."""
        self._running = None
        if self._is_left or (isinstance(error, psycopg.OperationalError) and self.store.is_lost):
            self.end()
        fault = request.fault
        kind = "" if fault is None else fault.kind
        if kind == "cut after":
            self.end()
            request.fail(_cut())
        elif kind == "hole after":
            pass
        elif kind == "crash after":
            self.process.crash("crash after a statement")
        elif error is not None:
            request.fail(error)
        else:
            request.answer(rows or [])
        if not self.is_over:
            self._watch_transaction()

    def leave(self) -> None:
        """The client has hung up: noticed now, or once what runs is done."""
        if self._running is None:
            self.end()
        else:
            self._is_left = True

    def end(self) -> None:
        """The session is over, with its transaction."""
        if self.is_over:
            return
        self.is_over = True
        self.server.sessions.remove(self)
        for timer in (self._idle, self._transaction):
            if timer is not None:
                timer.cancel()
        self.store.drop()

    def tell_cut(self) -> None:
        """Let the client see at once that the connection is gone, where it waits for an answer or for notices."""
        if self._running is not None:
            self._running.fail(_cut())
        if self.connection is not None:
            self.connection.was_cut()

    def connection_is_lost(self) -> None:
        """The client has learned that the connection is gone."""
        if self.connection is not None:
            self.connection.closed = True

    def hear(self) -> None:
        """There is a notice for whoever listens."""
        if self.connection is not None and not self.is_over:
            self.connection.hear()

    def limit(self, name: str) -> float:
        return self._limits.get(name, 60.0)

    def set_limits(self, statement: Statement) -> None:
        params = statement.params
        self._limits = {
            name: int(params[f"{name}_ms"]) / 1000 for name in ("statement", "lock", "idle", "transaction")
        }

    def _is_set_up(self, statement: Statement) -> bool:
        return statement.name in ("BEGIN", "ROLLBACK")

    def _refused(self, request: _Statement, error: psycopg.Error) -> None:
        self._running = None
        if self.store.in_transaction:
            self.store.abort()
        request.fail(error)

    def _watch_transaction(self) -> None:
        """End a transaction that its client leaves open, or that takes too long."""
        if not self.store.in_transaction:
            if self._transaction is not None:
                self._transaction.cancel()
                self._transaction = None
            return
        loop = self.server.loop
        self._idle = loop.call_later(self.limit("idle"), self._too_long)
        if self._transaction is None:
            self._transaction = loop.call_later(self.limit("transaction"), self._too_long)

    def _too_long(self) -> None:
        self.server.run.trace("server", "ends a transaction that takes too long", self.process.name, self.role)
        self.end()
        self.tell_cut()


class _Statement:
    """One statement on its way, and its answer on the way back."""

    __slots__ = ("_coroutine", "_future", "_timers", "_waits", "fault", "session", "statement")

    def __init__(
        self, session: ServerSession, statement: Statement, fault: Fault | None, future: asyncio.Future[Any]
    ) -> None:
        self.session, self.statement, self.fault, self._future = session, statement, fault, future
        self._coroutine: Coroutine[Any, Any, Rows] | None = None
        self._timers: list[Handle] = []
        self._waits: asyncio.Future[Any] | None = None

    def start(self) -> None:
        if self.statement.name == "session":
            self.session.set_limits(self.statement)
            self.session.done(self, [], None)
            return
        self._coroutine = self.session.store.execute(self.statement)
        self._step(None)

    def _step(self, error: BaseException | None) -> None:
        """Go on with the statement: to its end, or to where it has to wait for another session."""
        coroutine = self._coroutine
        assert coroutine is not None  # noqa: S101 - for the type checker: it has started
        self.session.server.run.writer = self.session
        try:
            waits = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            self._over()
            self.session.done(self, stop.value, None)
        except Exception as failure:  # noqa: BLE001 - it goes to the client
            self._over()
            self.session.done(self, None, failure)
        else:
            self._wait(waits)

    def _wait(self, waits: asyncio.Future[Any]) -> None:
        waits._asyncio_future_blocking = False  # noqa: SLF001 - as asyncio's own tasks do
        self._waits = waits
        if not self._timers:
            loop, session = self.session.server.loop, self.session
            self._timers = [
                loop.call_later(
                    session.limit("lock"), self._give_up, psycopg.errors.LockNotAvailable("lock timeout")
                ),
                loop.call_later(
                    session.limit("statement"), self._give_up, psycopg.errors.QueryCanceled("timeout")
                ),
            ]
        waits.add_done_callback(self._woken)

    def _woken(self, waits: asyncio.Future[Any]) -> None:
        if waits is self._waits:
            self._waits = None
            self._step(None)

    def _give_up(self, error: psycopg.Error) -> None:
        if self._waits is not None:
            self._waits = None
            self._step(error)

    def _over(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._coroutine = None

    # --- the way back ---

    def answer(self, rows: Rows) -> None:
        self._send(self._arrived, rows)

    def fail(self, error: BaseException) -> None:
        self._send(self._failed, error)

    def _send(self, then: Callable[[Any], None], what: Any) -> None:
        fault = self.fault
        seconds = self.session.server.run.latency()
        if fault is not None and fault.kind == "slow":
            seconds += fault.seconds
        self._future.get_loop().call_later(seconds, then, what)

    def _arrived(self, rows: Rows) -> None:
        process, fault = self.session.process, self.fault
        if fault is not None and fault.kind == "crash at answer":
            process.crash("crash at an answer")
        elif not self._future.done():
            self._future.set_result(rows)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
            self.session.connection_is_lost()
        if not self._future.done():
            self._future.set_exception(error)


class Connection:
    """The client's end: what `fencepost.runtime.link` needs of a psycopg connection, and of a driver over it."""

    def __init__(self, process: Client, session: ServerSession, loop: asyncio.AbstractEventLoop) -> None:
        self.process, self._session, self._loop = process, session, loop
        self.closed = False
        self.prepare_threshold: int | None = 5
        self._notices = 0
        self._listener: asyncio.Future[None] | None = None

    async def execute(self, statement: Any) -> Rows:
        """Send a statement and wait for its rows."""
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        if not isinstance(statement, Statement):
            self._session.server.run.listeners.append(self._session)
            return []
        process, run = self.process, self._session.server.run
        fault = process.next_fault()
        if fault is not None:
            run.fault_happens(fault, process)
        run.trace(process.name, self._session.role, statement.name)
        future: asyncio.Future[Rows] = self._loop.create_future()
        request = _Statement(self._session, statement, fault, future)
        seconds = run.latency()
        kind = "" if fault is None else fault.kind
        if fault is not None and kind in ("late", "pause before"):
            seconds += fault.seconds
        if kind == "crash before":
            process.crash("crash before a statement")
            return await future
        self._session.server.loop.call_later(seconds, self._session.take, request)
        if fault is not None and kind in ("pause before", "pause after"):
            process.pause(fault.seconds)
        return await future

    async def rollback(self) -> None:
        """Roll back."""
        await self.execute(Statement("ROLLBACK", "ROLLBACK"))

    async def close(self) -> None:
        """Hang up."""
        if not self.closed:
            self.closed = True
            server = self._session.server
            server.loop.call_later(server.run.latency(), self._session.leave)
        self._wake()

    def cut(self) -> None:
        """Something on the way cuts it."""
        if not self.closed:
            self._session.end()
            self._session.tell_cut()

    def vanish(self, seconds: float) -> None:
        """The process is gone; the server notices after a while."""
        self._session.server.loop.call_later(seconds, self._session.leave)

    # --- notices ---

    async def notifies(self, timeout: float) -> AsyncIterator[None]:
        """Yield for each notice, until there was none for a while."""
        while True:
            if not self._notices:
                self._listener = self._loop.create_future()
                waits = self._loop.call_later(timeout, self._wake)
                await self._listener
                waits.cancel()
                if not self._notices:
                    break
            while self._notices:
                self._notices -= 1
                yield
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")

    def hear(self) -> None:
        self._loop.call_later(self._session.server.run.latency(), self._heard)

    def _heard(self) -> None:
        self._notices += 1
        self._wake()

    def was_cut(self) -> None:
        self._loop.call_soon(self._lost)

    def _lost(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        if self._listener is not None and not self._listener.done():
            self._listener.set_result(None)

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
