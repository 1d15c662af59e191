"""One statement on its way to the server, and its answer on the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import psycopg

from fencepost.core.operation import Rows, Statement
from lab.simulator.loop import Handle
from lab.simulator.plan import Fault

if TYPE_CHECKING:
    from lab.simulator.server import ServerSession


class Sent:
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
            world, session = self.session.server.run.world, self.session
            self._timers = [
                world.call_later(
                    session.limit("lock"), self._give_up, psycopg.errors.LockNotAvailable("lock timeout")
                ),
                world.call_later(
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
