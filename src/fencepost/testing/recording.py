"""A publisher that sends nothing, remembers everything and fails as scripted."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fencepost.core.records import Message
from fencepost.publishers.base import Delivery

Step = BaseException | type[BaseException] | Callable[[Message, Delivery], Any] | None
"""What one call does: raise this, run this (and await it if need be), or deliver (None)."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call of ``publish``, as it ended."""

    message: Message
    attempt: int
    token: int
    started_at: float
    """Seconds on the monotonic clock."""
    error: BaseException | None
    """What the call raised; None means delivered."""

    @property
    def message_id(self) -> UUID:
        return self.message.message_id

    @property
    def event_type(self) -> str:
        return self.message.event_type


class RecordingPublisher:
    """Records each call in the order in which the calls ended.

    ``RecordingPublisher({"order.paid": [Retryable("down"), None]})`` fails the first ``order.paid`` it sees and
    delivers the second. A script that has run out, and an event type without one, delivers. For a
    failure that lasts, give an endless iterable: ``itertools.repeat(Permanent("no"))``.

    Args:
        script: for each event type, one step a call.
    """

    def __init__(self, script: Mapping[str, Iterable[Step]] | None = None) -> None:
        self.calls: list[Recorded] = []
        self._script: dict[str, Iterator[Step]] = {kind: iter(steps) for kind, steps in (script or {}).items()}
        self._changed = asyncio.Condition()

    @property
    def delivered(self) -> list[Recorded]:
        """The calls that ended in delivery."""
        return [call for call in self.calls if call.error is None]

    @property
    def failed(self) -> list[Recorded]:
        """The calls that raised."""
        return [call for call in self.calls if call.error is not None]

    async def publish(self, message: Message, delivery: Delivery) -> None:
        """Do the next scripted step for this event type.

        Raises:
            BaseException: what the script says.
        """
        started_at = time.monotonic()
        error: BaseException | None = None
        try:
            await self._step(message, delivery)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.calls.append(Recorded(message, delivery.attempt, delivery.token, started_at, error))
            async with self._changed:
                self._changed.notify_all()

    async def wait_for(self, count: int, *, timeout: float = 10.0) -> list[Recorded]:
        """Return the calls once there are at least ``count``, delivered or not.

        Args:
            count: how many calls.
            timeout: seconds to wait.

        Raises:
            TimeoutError: there were fewer; the text says how many.
        """
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: len(self.calls) >= count)
        except TimeoutError:
            raise TimeoutError(f"{len(self.calls)} of {count} calls after {timeout} s") from None
        return list(self.calls)

    async def _step(self, message: Message, delivery: Delivery) -> None:
        step = next(self._script.get(message.event_type, iter(())), None)
        if step is None:
            return
        if isinstance(step, BaseException):
            raise step.with_traceback(None)  # it may have been raised before, by an endless script
        if isinstance(step, type):
            raise step()
        result = step(message, delivery)
        if inspect.isawaitable(result):
            await result
