"""What a publisher is, what it is told about the delivery it makes, and how a failure is classified.

A publisher translates its client's errors into `Retryable`, `Permanent` or `Defer` (`fencepost.errors`).
Returning normally means *delivered*: the destination acknowledged this very message.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from fencepost.core.records import Message
from fencepost.errors import Retryable
from fencepost.publishers.address import masked

LEASE_MARGIN = 0.25
"""Seconds of lease that a publish leaves untouched, so that its result can still be written under the lease."""


class LostSignal:
    """Tells a running publish that its lease is lost; safe to set from any thread.

    ``if delivery.lost`` tests it, ``await delivery.lost`` waits for it on the event loop, and
    ``delivery.lost.wait(seconds)`` waits for it in a thread.
    """

    __slots__ = ("_is_set", "_waiters")

    # One signal is made for every message, and hardly one is ever waited for: they share a lock.
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: Sequence[Callable[[], object]] = ()

    def set(self) -> None:
        """Signal the loss and wake everyone who waits for it."""
        with self._lock:
            self._is_set = True
            waiters, self._waiters = self._waiters, ()
        for wake in waiters:
            wake()

    def __bool__(self) -> bool:
        return self._is_set

    def call(self, wake: Callable[[], object]) -> None:
        """Have ``wake`` called at the loss, in whatever thread notices it; now, where it is lost already."""
        if not self._registered(wake):
            wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the lease is lost, at most ``timeout`` seconds; return whether it is."""
        woken = threading.Event()
        if self._registered(woken.set):
            woken.wait(timeout)
        return self._is_set

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if self._registered(lambda: _wake(loop, future)):
            await future

    def _registered(self, wake: Callable[[], object]) -> bool:
        """Have ``wake`` called at the loss; return False where it is lost already."""
        with self._lock:
            if not self._is_set:
                self._waiters = (*self._waiters, wake)
            return not self._is_set


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    # A loop that was closed meanwhile has nobody left to wake.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to publish one message.

    Args:
        attempt: 1 for the first attempt, counted at claim.
        max_attempts: the limit in force at the claim.
        token: the fencing token; it rises with every claim, so a receiver can refuse an older attempt.
        remaining: seconds of lease left, by this process's monotonic clock.
        lost: set when the lease is lost; somebody else may be publishing this message now.
        replay_of: the message id that an operator replayed into this message.
    """

    attempt: int
    max_attempts: int
    token: int
    remaining: Callable[[], float]
    lost: LostSignal = field(default_factory=LostSignal)
    replay_of: str | None = None


def publish_budget(delivery: Delivery, timeout: float) -> float:
    """Return how many seconds this publish may take: ``timeout``, or less where the lease ends earlier.

    Raises:
        Retryable: so little of the lease is left that the message should not be sent at all.
    """
    budget = min(timeout, delivery.remaining() - LEASE_MARGIN)
    if budget <= 0:
        raise Retryable("not sent: its lease is about to end")
    return budget


def own_copy(failure: Retryable) -> Retryable:
    """Return a failure of its own for each message that it concerns, or their tracebacks would pile up in one."""
    return Retryable(str(failure), delay=failure.delay, unavailable=failure.unavailable)


@runtime_checkable
class Publisher(Protocol):
    """Anything with an async ``publish``; a plain function or coroutine function is accepted as well.

    ``publish`` may also be a plain method: it then runs in a thread of its own. So may ``verify``, for messages
    with ``recovery="verify"``: it takes the same, and returns a `Verdict` on earlier attempts.
    """

    async def publish(self, message: Message, delivery: Delivery) -> None:
        """Publish and return once the destination acknowledged it.

        Raises:
            Retryable, Permanent, Defer: the classified failures.
        """


class DestinationPublisher(ABC):
    """The base of publishers that are made from a URL and hold a client.

    ``open`` and ``close`` are called once by the dispatcher, on its event loop. A publisher opens lazily or
    in ``open``; it must be able to publish again after the destination went away and came back, and after
    ``close`` followed by ``open``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        """As configured, secrets included: show ``repr(publisher)`` or ``masked(url)`` instead."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {masked(self.url)}>"

    async def open(self) -> None:  # noqa: B027 - optional: a publisher may open lazily
        """Prepare the client. Must not fail because the destination is down: `publish` reports that."""

    @abstractmethod
    async def publish(self, message: Message, delivery: Delivery) -> None:
        """See `Publisher.publish`."""

    async def close(self) -> None:  # noqa: B027 - optional: a publisher may hold nothing
        """Give back what `open` took; what was acknowledged stays acknowledged."""
