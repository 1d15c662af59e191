"""The database server as simulated processes meet it: sessions of the fake store behind a network that fails.

A statement travels, is done, and its answer travels back, each at an instant of its own, in the world and on no
process's loop; so a process that is killed or stopped in between leaves behind what a real one would. The server
keeps the time limits that the shipped code sets: it ends statements, waits for locks, and transactions left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import psycopg

from fencepost.core.operation import Rows, Statement
from lab.fake_store import FakeSession
from lab.simulator.connection import Connection, cut
from lab.simulator.loop import Handle, VirtualLoop

if TYPE_CHECKING:
    from lab.simulator.process import Client
    from lab.simulator.run import Run
    from lab.simulator.statement import Sent

CONNECT_SECONDS = 0.002

_ERRORS: dict[str, Callable[[], psycopg.Error]] = {
    "time-out": lambda: psycopg.errors.QueryCanceled("canceling statement due to statement timeout"),
    "deadlock": lambda: psycopg.errors.DeadlockDetected("deadlock detected"),
    "read-only": lambda: psycopg.errors.ReadOnlySqlTransaction("cannot execute in a read-only transaction"),
}


class Server:
    """Takes connections, unless it is down."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.loop = VirtualLoop(run.world, "server")
        """For what statements wait on."""
        self.down_until = 0.0
        self.sessions: list[ServerSession] = []
        self.held_until: dict[Hashable, float] = {}
        """Until when transactions that the server had to end had locked something, which nobody could take."""

    async def connect(self, process: Client, role: str) -> Connection:
        """Open a connection for a process."""
        await asyncio.sleep(CONNECT_SECONDS)
        session = self.admit(process, role)
        connection = Connection(process, session, asyncio.get_running_loop())
        session.connection = connection
        process.connections.append(connection)
        return connection

    def admit(self, client: Client, role: str) -> ServerSession:
        """Begin a session."""
        if self.run.world.now < self.down_until:
            raise psycopg.OperationalError("connection refused")
        session = ServerSession(self, client, role)
        self.sessions.append(session)
        return session

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
        self._running: Sent | None = None
        self._limits: dict[str, float] = {}
        self._idle: Handle | None = None
        self._transaction: Handle | None = None

    def take(self, request: Sent) -> None:
        """A statement arrives."""
        if self.is_over:
            request.fail(cut())
            return
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._running = request
        if request.fault is None:
            request.start()
            return
        kind = request.fault.kind
        if kind == "cut before":
            self.end()
            request.fail(cut())
        elif kind == "hole before":
            self._running = None
        elif kind in _ERRORS and not self._is_set_up(request.statement):
            self._refused(request, _ERRORS[kind]())
        else:
            request.start()

    async def at_once(self, statement: Statement) -> Rows:
        """Do a statement for somebody who stands beside the server: nothing travels."""
        rows = self.store.execute(statement)
        self.server.run.writer = self
        return await rows

    def done(self, request: Sent, rows: Rows | None, error: BaseException | None) -> None:
        """A statement has been done."""
        self._running = None
        if self._is_left or (isinstance(error, psycopg.OperationalError) and self.store.is_lost):
            self.end()
        kind = "" if request.fault is None else request.fault.kind
        if kind == "cut after":
            self.end()
            request.fail(cut())
        elif kind == "crash after":
            self.process.crash("crash after a statement")
        elif kind == "hole after":
            pass
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
            self._running.fail(cut())
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

    def _refused(self, request: Sent, error: psycopg.Error) -> None:
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
        world = self.server.run.world
        self._idle = world.call_later(self.limit("idle"), self._too_long)
        if self._transaction is None:
            self._transaction = world.call_later(self.limit("transaction"), self._too_long)

    def _too_long(self) -> None:
        run = self.server.run
        run.trace("server", "ends a transaction that takes too long", self.process.name, self.role)
        self.server.held_until.update(dict.fromkeys(self.store.held, run.world.now))
        self.end()
        self.tell_cut()
