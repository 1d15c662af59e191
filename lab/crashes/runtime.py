"""A real dispatcher and a real worker, cut at each statement that they send, or killed there.

The script of each makes it do everything that it does in its life. A first, undisturbed run counts the statements
of each connection, and the publishes or runs; then there are runs for each of them, before it and after it. Where
only the session ends, the process goes on, as it would: it connects again. Where the process is killed, another
takes its place. Either way everything must come to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from fencepost.core.operation import Rows, Statement
from fencepost.drivers.psycopg import AsyncPsycopgDriver

MOST_OF_ONE = 4
"""How often one statement of one connection is cut at most: a worker looks for work again and again."""

PATIENCE = 90.0
"""Seconds within which everything must come to its end: many leases, on a machine that does other things."""

HANDLER = "handler"
"""The role of what is no statement: a publish, or a job's run."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The nth time that a connection sends a statement, or that a handler is called.

    Args:
        kills: the process ends there, not only the session.
    """

    role: str
    name: str
    nth: int
    is_after: bool
    kills: bool = False

    def __str__(self) -> str:
        who = "the process is killed" if self.kills else "the session ends"
        return f"{who} {'after' if self.is_after else 'before'} {self.name} number {self.nth} of {self.role!r}"


class Script(Protocol):
    """What is played: rows, a process that works on them, and what must have come of it."""

    saboteur: Saboteur

    def prepare(self) -> None:
        """Empty the tables and put the rows there."""

    def running(self, url: str) -> contextlib.AbstractAsyncContextManager[object]:
        """Run the dispatcher or worker until the block ends."""

    def is_over(self) -> bool:
        """Whether everything has come to its end."""

    def problems(self) -> list[str]:
        """Say what did not hold."""

    def close(self) -> None:
        """Close what the script itself has open."""


class Saboteur:
    """Counts what is sent, and ends the session of one statement, or the process."""

    def __init__(self, url: str, cut: Cut | None = None) -> None:
        self._url, self._cut = url, cut
        self.sent: Counter[tuple[str, str]] = Counter()
        self.alone: Counter[str] = Counter()
        """What was sent outside of a transaction of several statements."""
        self.has_cut = False

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        execute = AsyncPsycopgDriver.execute
        saboteur = self

        async def sabotaged(driver: AsyncPsycopgDriver, statement: Statement) -> Rows:
            connection = driver._connection  # noqa: SLF001 - there is no other way to the session
            return await saboteur.around(connection, statement, lambda: execute(driver, statement))

        AsyncPsycopgDriver.execute = sabotaged  # type: ignore[method-assign,assignment]  # taken back below
        try:
            yield
        finally:
            AsyncPsycopgDriver.execute = execute  # type: ignore[method-assign]  # as it was

    @contextlib.contextmanager
    def around_handler(self, name: str) -> Iterator[None]:
        """Be at hand before a publish or a run, and after it."""
        cut = self._counted(HANDLER, name)
        if cut is not None and not cut.is_after:
            _kill()
        try:
            yield
        finally:
            if cut is not None:
                _kill()

    async def around(
        self,
        connection: psycopg.AsyncConnection[Any],
        statement: Statement,
        execute: Callable[[], Awaitable[Rows]],
    ) -> Rows:
        role = connection.info.get_parameters().get("application_name", "").removeprefix("fencepost ")
        self.alone[statement.name] += connection.info.transaction_status == TransactionStatus.IDLE
        cut = self._counted(role, statement.name)
        pid = connection.info.backend_pid
        if cut is not None and not cut.is_after:
            await self._end(pid, cut)
        result = await execute()
        if cut is not None:
            if cut.is_after:
                await self._end(pid, cut)
            raise psycopg.OperationalError("the connection was cut before the answer came")
        return result

    def _counted(self, role: str, name: str) -> Cut | None:
        """Count one more; return the cut where it is this one."""
        self.sent[role, name] += 1
        cut = self._cut
        if cut is None or self.has_cut or (role, name, self.sent[role, name]) != (cut.role, cut.name, cut.nth):
            return None
        self.has_cut = True
        return cut

    async def _end(self, pid: int, cut: Cut) -> None:
        if cut.kills:
            _kill()
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            await connection.execute("SELECT pg_terminate_backend(%s)", [pid])
            alive = "SELECT FROM pg_stat_activity WHERE pid = %s"
            while (await connection.execute(alive, [pid])).rowcount:
                pass


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def play(
    url: str, script: Script, cut: Cut | None = None, *, goes_on: bool = False
) -> tuple[Saboteur, list[str]]:
    """Play a script once; return who cut it, and what did not hold.

    Args:
        goes_on: with what a process has left that was killed.
    """
    if not goes_on:
        script.prepare()
    saboteur = script.saboteur = Saboteur(url, cut)
    with saboteur.at_work():
        async with script.running(url):
            in_time = await _within(script.is_over)
    found = script.problems()
    return saboteur, found if in_time else [f"it did not come to an end within {PATIENCE:g} s", *found]


async def _within(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


def cuts_of(sent: Counter[tuple[str, str]]) -> list[Cut]:
    """Return every boundary of an undisturbed run."""
    return [
        Cut(role, name, nth, is_after, kills)
        for (role, name), count in sorted(sent.items())
        for nth in range(1, min(count, MOST_OF_ONE) + 1)
        for is_after in (False, True)
        for kills in (False, True)
        if kills or role != HANDLER
    ]


@contextlib.asynccontextmanager
async def at_work(process: Any) -> AsyncIterator[None]:
    """Run a dispatcher or a worker until the block ends."""
    async with process:
        task = asyncio.create_task(process.run(handle_signals=False))
        try:
            yield
        finally:
            process.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await task
