"""The client's end of a connection, whatever has become of the server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import psycopg

from fencepost.core.operation import Rows, Statement
from lab.simulator.plan import Fault
from lab.simulator.statement import Sent

if TYPE_CHECKING:
    from lab.simulator.process import Client
    from lab.simulator.server import ServerSession


def cut() -> psycopg.Error:
    """Return what the client sees of a connection that is gone."""
    return psycopg.OperationalError("server closed the connection unexpectedly")


class Connection:
    """The client's end: what `fencepost.runtime.link` needs of a psycopg connection, and of a driver over it."""

    def __init__(self, process: Client, session: ServerSession, loop: asyncio.AbstractEventLoop) -> None:
        self.process, self._session, self._loop = process, session, loop
        self._run = session.server.run
        self.closed = False
        self.prepare_threshold: int | None = 5
        self._notices = 0
        self._listener: asyncio.Future[None] | None = None

    async def execute(self, statement: Any) -> Rows:
        """Send a statement and wait for its rows."""
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        if not isinstance(statement, Statement):
            self._run.listeners.append(self._session)
            return []
        process, run = self.process, self._run
        if run.keeps_trace:
            run.trace(process.name, self._session.role, statement.name)
        fault = process.next_fault(self._session.role)
        future: asyncio.Future[Rows] = self._loop.create_future()
        request = Sent(self._session, statement, fault, future)
        if fault is None:
            run.world.call_later(run.latency(), self._session.take, request)
        else:
            self._send_faulty(request, fault)
        return await future

    def _send_faulty(self, request: Sent, fault: Fault) -> None:
        process, run = self.process, self._run
        run.fault_happens(fault, process)
        if fault.kind == "crash before":
            process.crash("crash before a statement")
            return
        is_late = fault.kind in ("late", "pause before")
        run.world.call_later(run.latency() + fault.seconds * is_late, self._session.take, request)
        if fault.kind in ("pause before", "pause after"):
            process.pause(fault.seconds)

    async def rollback(self) -> None:
        """Roll back."""
        await self.execute(Statement("ROLLBACK", "ROLLBACK"))

    async def close(self) -> None:
        """Hang up."""
        if not self.closed:
            self.closed = True
            self._run.world.call_later(self._run.latency(), self._session.leave)
        self._wake()

    def cut(self) -> None:
        """Something on the way cuts it."""
        if not self.closed:
            self._session.end()
            self._session.tell_cut()

    def vanish(self, seconds: float) -> None:
        """The process is gone; the server notices after a while."""
        self._run.world.call_later(seconds, self._session.leave)

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
        self._loop.call_later(self._run.latency(), self._heard)

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
