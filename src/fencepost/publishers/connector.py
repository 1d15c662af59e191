"""One connection of a destination: made when a publish needs it, shared, given up and made anew.

The client libraries' own reconnection is not used, because it would keep messages and send them after their
publish was reported as failed. Nor is their word taken for a deadline: an attempt that does not end in time is
left behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from fencepost.errors import Retryable
from fencepost.publishers.base import own_copy

CLOSE_SECONDS = 0.5
"""For a polite end of a connection; after that it is dropped."""
CONNECT_SHARE = 0.9
"""Of a publish's time, for all attempts to connect: so much earlier they end, to say which failed and why."""


class Link(Protocol):
    """A connection that stands."""

    @property
    def usable(self) -> bool:
        """Whether it still stands, as far as is known."""

    async def end(self) -> None:
        """Say goodbye and close. May hang where the other side is frozen."""

    def abort(self) -> None:
        """Drop the connection at once, with whatever was not sent yet. Never raises, and may come twice."""


AnyLink = TypeVar("AnyLink", bound=Link)
Result = TypeVar("Result")


class Connector(Generic[AnyLink]):
    """Makes connections with ``connect``, at most one at a time.

    Args:
        shown: the destination, for errors.
        timeout: seconds that an attempt may take.
        connect: makes one; it raises `Retryable` for what it understands.
    """

    def __init__(self, shown: str, timeout: float, connect: Callable[[], Awaitable[AnyLink]]) -> None:
        self._shown, self._timeout, self._connect = shown, timeout, connect
        self._attempt: asyncio.Task[AnyLink] | None = None
        self._ending: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def open(self) -> None:
        """Allow connections again after `close`."""
        self._is_closed = False

    def check_open(self) -> None:
        """Make sure that a publish still under way leaves no connection behind that nobody closes.

        Raises:
            Retryable: the publisher was closed.
        """
        if self._is_closed:
            raise Retryable(f"{self._shown}: not sent: the publisher was closed")

    async def get(self, deadline: float) -> AnyLink:
        """Return the connection; where there is none it is made, and concurrent publishes share the attempt.

        Raises:
            Retryable: there is none before the deadline (of the monotonic clock), or the attempt failed.
        """
        self.check_open()
        task = self._attempt
        if task is None or (task.done() and not _stands(task)):
            task = self._attempt = asyncio.create_task(self._try())
            task.add_done_callback(retrieve)
        if not task.done():
            # Not awaited directly: one publish that gives up must not cancel the attempt for the others.
            await asyncio.wait({task}, timeout=max(0.0, deadline - time.monotonic()))
        if not task.done():
            raise Retryable(f"{self._shown}: not sent: no connection before the deadline", unavailable=True)
        if task.cancelled():
            raise Retryable(f"{self._shown}: not sent: the publisher was closed")
        failure = task.exception()
        if isinstance(failure, Retryable):
            raise own_copy(failure)
        return task.result()

    def discard(self, link: AnyLink) -> None:
        """Drop a connection that does not answer: what it has not sent yet is not sent any more."""
        link.abort()
        self.end(link)

    def end(self, link: AnyLink) -> None:
        """End a connection in the background."""
        task = asyncio.create_task(_end(link))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End the connection, politely where the other side answers soon."""
        self._is_closed = True
        task, self._attempt = self._attempt, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                self.end(task.result())
        while self._ending:
            await asyncio.wait(self._ending)

    async def _try(self) -> AnyLink:
        try:
            return await within(self._timeout, self._connect(), self.discard)
        except TimeoutError:
            raise Retryable(f"{self._shown}: cannot connect: no answer in time", unavailable=True) from None


class Talks:
    """Tasks that talk to a destination. Whoever waits for one may leave it behind; `end` ends them all."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run it in a task of its own: a client library may swallow the cancellation of who waits for it."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def end(self) -> None:
        """Cancel all of them, and wait a moment for their end."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_SECONDS)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        retrieve(task)


async def until(deadline: float, gone: asyncio.Future[None], *work: asyncio.Future[Any]) -> None:
    """Wait until all of it is done, the connection is gone, or the deadline. Cancels nothing."""
    if not work:
        return
    everything: asyncio.Future[Any] = asyncio.gather(*work, return_exceptions=True)
    left = max(0.0, deadline - time.monotonic())
    await asyncio.wait({everything, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)


async def within(seconds: float, work: Awaitable[Result], too_late: Callable[[Result], None]) -> Result:
    """Return what ``work`` returns, or leave it behind: a client library may swallow the cancellation.

    Args:
        seconds: how long to wait.
        work: what to wait for; cancelled when the time is over.
        too_late: gets the result that comes all the same.

    Raises:
        TimeoutError: the time is over.
    """
    # A task of its own, or our own cancellation would wait for the client's.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.add_done_callback(lambda done: _left_behind(done, too_late))
            task.cancel()


def _left_behind(task: asyncio.Future[Result], too_late: Callable[[Result], None]) -> None:
    if not task.cancelled() and task.exception() is None:
        too_late(task.result())


async def _end(link: Link) -> None:
    ending = asyncio.create_task(link.end())
    ending.add_done_callback(retrieve)
    try:
        await asyncio.wait({ending}, timeout=CLOSE_SECONDS)
    finally:
        link.abort()
        ending.cancel()


def _stands(task: asyncio.Task[AnyLink]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().usable


def retrieve(future: asyncio.Future[Any]) -> None:
    """Look at a result that perhaps nobody waits for any more, so that asyncio does not complain about it."""
    if not future.cancelled():
        future.exception()
