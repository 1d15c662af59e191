"""The rows that this process holds under a lease, shared by its event loop and its heartbeat thread."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Generic, TypeVar

from fencepost.core.lease import TrustWindow
from fencepost.core.records import Claimed
from fencepost.publishers.base import Delivery, LostSignal
from fencepost.runtime.terms import Terms

OVERDUE_SECONDS = 1.0
"""What goes on this long after its time-out ignores its cancellation, and is given up on."""


class LateStart(Exception):
    """User code was not begun, as the lease of its row is over."""


def refuse_late(lost: LostSignal, remaining: float) -> None:
    """Look whether a lease lasts, in the last moment before user code begins under it.

    (The process may have stood still since somebody looked, or since a thread was to take it up, with nobody told
    of it yet.)

    Raises:
        LateStart: it does not: somebody else may be at the row.
    """
    if lost or remaining <= 0:
        raise LateStart


class Stage(Enum):
    """How far what is done about a held row has come."""

    WAITING = "claimed, its publish not started"
    PUBLISHING = "its publish, or its handler, runs"
    FINALIZING = "that is over, the result is being written"


@dataclass(slots=True, eq=False)
class HeldRow(ABC):
    """One row under a lease of this process: a message, or a job."""

    window: TrustWindow
    claimed_at: float
    """Monotonic instant before the claim was sent."""
    stage: Stage = field(default=Stage.WAITING, kw_only=True)
    lost: LostSignal = field(default_factory=LostSignal, kw_only=True)
    deadline: float = field(default=math.inf, kw_only=True)
    """Monotonic instant at which its publish or handler is timed out."""
    cancelled_at: float = field(default=math.inf, kw_only=True)
    """Monotonic instant at which it was cancelled for that."""

    @property
    @abstractmethod
    def id(self) -> int:
        """The row's id."""

    @property
    @abstractmethod
    def token(self) -> Hashable:
        """What every later write is fenced by."""

    @property
    @abstractmethod
    def lease(self) -> timedelta:
        """How long a heartbeat extends it."""

    @property
    @abstractmethod
    def beat_every(self) -> float:
        """Seconds between its heartbeats."""

    @property
    def timed_out(self) -> bool:
        """Whether its publish or handler was cancelled, as its time was over."""
        return self.cancelled_at < math.inf

    def is_overdue(self, now: float) -> bool:
        """Tell whether what is done about it goes on although its time-out is well over."""
        return now > self.deadline + OVERDUE_SECONDS

    def ignores_its_time_out(self, now: float) -> bool:
        """Tell whether it goes on well after it was cancelled: a loop that stood still has not told it before."""
        return now > self.cancelled_at + OVERDUE_SECONDS

    def remaining(self) -> float:
        """Return the seconds of lease left."""
        return self.window.remaining(time.monotonic())


@dataclass(slots=True, eq=False)
class Holding(HeldRow):
    """One claimed message in this process."""

    claimed: Claimed
    terms: Terms
    probe: int | None = None
    """The version of its queue's breaker, where it is a probe past that."""

    @property
    def id(self) -> int:
        return self.claimed.id

    @property
    def token(self) -> int:
        return self.claimed.token

    @property
    def lease(self) -> timedelta:
        return self.terms.lease

    @property
    def beat_every(self) -> float:
        return self.terms.beat_every

    def delivery(self) -> Delivery:
        """Describe this attempt to its publisher."""
        claimed = self.claimed
        return Delivery(
            attempt=claimed.attempt,
            max_attempts=claimed.max_attempts,
            token=claimed.token,
            remaining=self.remaining,
            lost=self.lost,
            replay_of=claimed.message.replay_of,
        )


H = TypeVar("H", bound=HeldRow)


class Held(Generic[H]):
    """Everything that this process holds; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By themselves: a row that we lost and claimed anew is another one to us, even where a failover that lost
        # commits has given both the same id and token.
        self._holdings: dict[H, None] = {}

    def __len__(self) -> int:
        return len(self._holdings)

    def add(self, holdings: Iterable[H]) -> None:
        with self._lock:
            self._holdings.update(dict.fromkeys(holdings))

    def remove(self, holdings: Iterable[H]) -> None:
        with self._lock:
            for holding in holdings:
                self._holdings.pop(holding, None)

    def in_stage(self, stage: Stage) -> list[H]:
        with self._lock:
            return [holding for holding in self._holdings if holding.stage is stage]

    def to_beat(self, now: float, early: float) -> list[H]:
        """Return what has a lease that is worth extending and whose next heartbeat is due.

        A publish or handler that should have been timed out long ago is left out: where it blocks the loop,
        or swallows its cancellation, the lease must end so that another worker can take over.

        Args:
            now: this process's monotonic clock.
            early: seconds until somebody asks again: what is due until then is due now.
        """
        with self._lock:
            return [
                each
                for each in self._holdings
                if not each.lost
                and not each.is_overdue(now)
                and now + early >= each.window.sent_at + each.beat_every
            ]

    def renewed(self, holdings: Iterable[H], sent_at: float) -> None:
        """Move the trust windows of confirmed heartbeats, counted from before they were sent."""
        for holding in holdings:
            holding.window = TrustWindow(sent_at, holding.window.lease)

    def lose(self, holdings: Iterable[H]) -> list[H]:
        """Signal the loss to those that are not over; return the ones that did not know yet."""
        told = [holding for holding in holdings if not holding.lost and holding.stage is not Stage.FINALIZING]
        for holding in told:
            holding.lost.set()
        return told

    def expired(self, now: float) -> list[H]:
        """Return those whose window of trust is over without our having been told."""
        with self._lock:
            return [holding for holding in self._holdings if not holding.lost and holding.window.is_over(now)]
