"""A real dispatcher and a real worker in this process, cut at each statement that they send.

The script of each makes it do everything that it does in its life. A first, undisturbed run counts the statements
of each connection; then there is a run for each of them, before it is sent and after it was done. The process goes
on, as it would: it connects again, and everything must come to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from fencepost.core.operation import Rows, Statement
from fencepost.drivers.psycopg import AsyncPsycopgDriver

MOST_OF_ONE = 4
"""How often one statement of one connection is cut at most: a worker looks for work again and again."""

PATIENCE = 30.0
"""Seconds within which everything must come to its end: several leases."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The nth time that a connection sends a statement."""

    role: str
    name: str
    nth: int
    is_after: bool

    def __str__(self) -> str:
        return f"{'after' if self.is_after else 'before'} {self.name} number {self.nth} on the link {self.role!r}"


class Script(Protocol):
    """What is played: rows, a process that works on them, and what must have come of it."""

    def prepare(self, url: str) -> None:
        """Empty the tables and put the rows there."""

    def running(self, url: str) -> contextlib.AbstractAsyncContextManager[object]:
        """Run the dispatcher or worker until the block ends."""

    def is_over(self) -> bool:
        """Whether everything has come to its end."""

    def problems(self) -> list[str]:
        """Say what did not hold."""


class Saboteur:
    """Counts what is sent, and ends the session of one statement."""

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

    async def around(
        self,
        connection: psycopg.AsyncConnection[Any],
        statement: Statement,
        execute: Callable[[], Awaitable[Rows]],
    ) -> Rows:
        role = connection.info.get_parameters().get("application_name", "").removeprefix("fencepost ")
        name = statement.name
        self.sent[role, name] += 1
        self.alone[name] += connection.info.transaction_status == TransactionStatus.IDLE
        cut = self._cut
        mine = (
            cut is not None
            and not self.has_cut
            and (role, name, self.sent[role, name]) == (cut.role, cut.name, cut.nth)
        )
        pid = connection.info.backend_pid
        if mine and cut is not None and not cut.is_after:
            await self._end(pid)
        result = await execute()
        if mine:
            if cut is not None and cut.is_after:
                await self._end(pid)
            raise psycopg.OperationalError("the connection was cut before the answer came")
        return result

    async def _end(self, pid: int) -> None:
        self.has_cut = True
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            await connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


@dataclass
class Played:
    """What came of a script."""

    points: int = 0
    cut: int = 0
    not_reached: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def play(url: str, script: Script, cut: Cut | None = None) -> tuple[Saboteur, list[str]]:
    """Play a script once; return who cut it, and what did not hold."""
    script.prepare(url)
    saboteur = Saboteur(url, cut)
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
        await asyncio.sleep(0.01)
    return True


def cuts_of(sent: Counter[tuple[str, str]]) -> list[Cut]:
    """Return every boundary of an undisturbed run."""
    return [
        Cut(role, name, nth, is_after)
        for (role, name), count in sorted(sent.items())
        for nth in range(1, min(count, MOST_OF_ONE) + 1)
        for is_after in (False, True)
    ]


def played(
    url: str, script: Script, *, every: int = 1, offset: int = 0, tell: Callable[[str], None] = lambda text: None
) -> Played:
    """Play a script undisturbed, and once for every nth boundary of it."""
    return asyncio.run(_played(url, script, every, offset, tell))


async def _played(url: str, script: Script, every: int, offset: int, tell: Callable[[str], None]) -> Played:
    counted, found = await play(url, script)
    cuts = cuts_of(counted.sent)
    result = Played(len(cuts), problems=[f"undisturbed: {each}" for each in found])
    for cut in cuts[offset % every :: every]:
        saboteur, found = await play(url, script, cut)
        if saboteur.has_cut:
            result.cut += 1
        else:
            result.not_reached.append(str(cut))
        result.problems += [f"{cut}: {each}" for each in found]
        tell(f"{type(script).__name__}: {cut}{'' if saboteur.has_cut else ' (not reached)'}")
        for each in found:
            tell(f"  FAILED {each}")
    return result


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
