"""The life of what works under leases: it connects, runs until it is told to stop, drains, and is gone in time.

The dispatcher and the job worker both live so. What they do meanwhile is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar, Generic, Self

from fencepost.embedded import open_store
from fencepost.errors import FencepostError, SchemaError
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.held import H, Held
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.shutdown import Stop, signals_to
from fencepost.runtime.wakeup import Wakeup
from fencepost.store import schema
from fencepost.store.catalog import Catalog

log = logging.getLogger("fencepost.lifecycle")

EXIT_RESERVE = 0.8
"""Seconds after the grace time for the last writes; the process is gone within a second of it."""


class UnexpectedFailure(FencepostError):
    """User code raised an unclassified exception, and ``on_unexpected`` is ``"stop"``; see its cause."""


class LeaseHolder(ABC, Generic[H]):
    """Claims rows, works on them and writes the results, from ``async with`` to the end of its drain.

    Args:
        store: the database's address, ``postgresql://…`` or ``embedded:``.
        catalog: its SQL.
        grace: how long a shutdown waits for what is in flight.
        limits: of its connections.
    """

    _kind: ClassVar[str]
    """What it is, for errors and the log."""

    _single_step: ClassVar[str]
    """The name of its method that does one step instead of running on."""

    _held: Held[H]
    _finalizer: Finalizer[H]

    def __init__(self, store: str, catalog: Catalog, grace: timedelta, limits: Limits) -> None:
        self._store, self._catalog, self._grace = store, catalog, grace.total_seconds()
        self._limits = limits
        self._stack: AsyncExitStack | None = None
        self._stop = Stop()
        self._is_entered = False
        self._is_busy = False
        self._close_by: float | None = None
        self._background: list[asyncio.Task[None]] = []

    # --- what it does ------------------------------------------------------------------------------------

    @abstractmethod
    async def _set_up(self, stack: AsyncExitStack) -> None:
        """Connect and start what runs beside the loops; ``stack`` closes it."""

    @abstractmethod
    def _loops(self) -> Mapping[asyncio.Task[None], Link]:
        """Start the loops that claim, each with the link it claims over."""

    @abstractmethod
    def _stopping(self) -> None:
        """End every wait of the loops: a stop was asked for."""

    @abstractmethod
    async def _landed(self) -> None:
        """Give back what is not started, and wait for what is in flight."""

    @abstractmethod
    async def _cut_off(self, patience: float) -> None:
        """Cancel what is in flight and give back what is held, waiting at most ``patience`` seconds."""

    @abstractmethod
    async def _settled(self) -> None:
        """Wait for what else is to be written once every result stands in the database."""

    @abstractmethod
    def _raise_unexpected(self) -> None:
        """Raise what user code raised, where that is to stop it."""

    @abstractmethod
    def _count_reconnect(self) -> None:
        """Count a connection that was made anew."""

    # --- set-up and closing ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect, check the schema, and start beating.

        Raises:
            SchemaError: the tables are missing or not up to date.
        """
        if self._is_entered:
            raise FencepostError(f"this {self._kind} is running already: make one for each run")
        self._is_entered = True
        self._close_by = None
        try:
            async with AsyncExitStack() as stack:
                await self._set_up(stack)
                self._stack = stack.pop_all()
        except BaseException:
            self._is_entered = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        try:
            if stack is not None:
                async with stack:
                    await self._give_back_what_is_held()
        finally:
            self._stop = Stop()
            self._is_entered = False

    async def _give_back_what_is_held(self) -> None:
        """After a single step that was cancelled: cut off what is in flight and write that down."""
        if self._held and self._close_by is None:  # else a drain has had its time for that
            await self._cut_off(patience=EXIT_RESERVE / 3)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_RESERVE):
                    await self._finalizer.drained()

    async def _open_store(self, stack: AsyncExitStack) -> str:
        """Return the address that connections go to, for as long as the stack is open."""
        opener = open_store(self._store)
        url = await asyncio.to_thread(opener.__enter__)
        stack.push_async_callback(asyncio.to_thread, opener.__exit__, None, None, None)
        return url

    async def _check_schema(self, link: Link) -> None:
        problems = await link.run(lambda: schema.check(self._catalog), refusal_is_final=True)
        if problems:
            raise SchemaError("; ".join(problems))

    def _link(self, stack: AsyncExitStack, url: str, role: str) -> Link:
        link = Link(url, self._catalog, self._limits, role, self._count_reconnect)
        stack.push_async_callback(link.close)
        return link

    def _run_beside(
        self,
        stack: AsyncExitStack,
        wakeup: Wakeup,
        channel: str,
        listen_url: str | None,
        **work: Coroutine[Any, Any, None],
    ) -> None:
        """Start what runs beside the loops, under its name; and listen for notices where there is an address."""
        if listen_url is not None:
            work["listen"] = wakeup.listen(listen_url, channel, self._limits)
        self._background = [asyncio.create_task(each, name=name) for name, each in work.items()]
        stack.push_async_callback(end, self._background)
        stack.push_async_callback(wakeup.close)

    # --- running -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        if self._is_busy:
            raise FencepostError(f"this {self._kind} is busy: one run or {self._single_step} at a time")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def run(self, *, handle_signals: bool = True, exit_by_force: bool = False) -> bool:
        """Work until cancelled or told to stop by SIGTERM or SIGINT, then drain.

        What is not started goes back at once with its attempt; what is in flight has the grace time. A second
        signal ends the grace time.

        Args:
            handle_signals: install handlers while it runs (only in the main thread).
            exit_by_force: end the process when the grace time is over by nearly a second, even if user code
                blocks the event loop; for programs that do nothing else.

        Returns:
            True when everything in flight was finished, False when the grace time ended first.

        Raises:
            UnexpectedFailure: with ``on_unexpected="stop"``, after the drain.
            SchemaError: the tables are missing or not up to date.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(self._busy())
            if handle_signals:
                exit_after = self._grace + EXIT_RESERVE + 0.1 if exit_by_force else None
                stack.enter_context(signals_to(self._stop.ask, exit_after=exit_after))
            if self._stack is None and not await self._entered_unless_stopped(stack):
                return True
            drained = await self._run_until_stopped()
            self._raise_unexpected()
            return drained

    def stop(self) -> None:
        """Begin the drain, from the event loop's thread; a second call ends the grace time."""
        self._stop.ask()

    async def _entered_unless_stopped(self, stack: AsyncExitStack) -> bool:
        """Connect, for as long as that takes, unless a stop is asked for first; return whether we are set up."""
        stack.push_async_exit(self.__aexit__)
        entering = asyncio.create_task(self.__aenter__())
        asked = asyncio.create_task(self._stop.asked.wait())
        try:
            await asyncio.wait([entering, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end([asked, entering])
        if entering.cancelled():
            return False
        entering.result()
        return True

    async def _run_until_stopped(self) -> bool:
        loops = self._loops()
        cancelled: asyncio.CancelledError | None = None
        watched = [*loops, *self._background]
        asked = asyncio.create_task(self._stop.asked.wait())
        try:
            await asyncio.wait([asked, *watched], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        self._stop.asked.set()
        self._stopping()
        drain = asyncio.create_task(self._drain(loops))
        while not drain.done():
            try:
                await asyncio.shield(drain)
            except asyncio.CancelledError as error:
                cancelled = error
                self._stop.hurried.set()
        asked.cancel()
        if cancelled is not None:
            raise cancelled
        raise_first_bug(watched)
        return drain.result()

    # --- stopping ----------------------------------------------------------------------------------------

    async def _drain(self, claim_loops: Mapping[asyncio.Task[None], Link]) -> bool:
        """Finish what is in flight within the grace time; return whether everything was finished."""
        deadline = time.monotonic() + self._grace
        self._close_by = deadline
        drained = await self._within(deadline, self._drain_calmly(claim_loops))
        if drained:
            return True
        last = time.monotonic() + EXIT_RESERVE
        # A claim that is under way may be committed already: without its answer nobody could give its rows back.
        claiming = [loop for loop, link in claim_loops.items() if not loop.done() and not link.is_out_of_reach]
        if claiming:
            await asyncio.wait(claiming, timeout=EXIT_RESERVE / 3)
        for loop in claim_loops:
            loop.cancel()
        await self._cut_off(patience=EXIT_RESERVE / 3)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, last - time.monotonic())):
                await self._finalizer.drained()
        log.warning("the grace time ended before everything in flight was finished")
        return False

    async def _drain_calmly(self, claim_loops: Mapping[asyncio.Task[None], Link]) -> None:
        while running := [loop for loop in claim_loops if not loop.done()]:
            for loop in running:
                if claim_loops[loop].is_out_of_reach:
                    loop.cancel()  # it would try for as long as the database is gone, and holds nothing
            await asyncio.wait(running, timeout=0.05)
        await self._landed()
        # What is still held now was given up on, or lost by a fault of ours: not left to its lease either way.
        await self._cut_off(patience=0)
        await self._finalizer.drained()
        await self._settled()

    async def _within(self, deadline: float, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work`` until the deadline or until somebody hurries; return whether it came to its end."""
        task = asyncio.create_task(work)
        hurried = asyncio.create_task(self._stop.hurried.wait())
        await asyncio.wait(
            [task, hurried],
            timeout=max(0.0, deadline - time.monotonic()),
            return_when=asyncio.FIRST_COMPLETED,
        )
        finished = task.done()
        await end([task, hurried])
        return finished


async def tend(work: Iterable[Coroutine[Any, Any, None]], look: Callable[[], None], every: float) -> None:
    """Run loops that never end by themselves, and look after something every so many seconds."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        while not any(task.done() for task in tasks):
            look()
            await asyncio.wait(tasks, timeout=every, return_when=asyncio.FIRST_COMPLETED)
        raise_first_bug(tasks)
    finally:
        await end(tasks)


async def end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def raise_first_bug(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Raise what ended a loop of ours: that is a bug, and must not be taken for a clean stop."""
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            task.result()
