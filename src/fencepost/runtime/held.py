"""The messages that this process holds, shared by its event loop and its heartbeat thread."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from fencepost.core.lease import TrustWindow
from fencepost.core.records import Claimed
from fencepost.publishers.base import Delivery, LostSignal
from fencepost.runtime.terms import Terms

OVERDUE_SECONDS = 1.0
"""A publish that goes on this long after its time-out ignores its cancellation, and is given up on."""


class Stage(Enum):
    """How far a held message has come."""

    WAITING = "claimed, its publish not started"
    PUBLISHING = "its publish runs"
    FINALIZING = "its publish is over, the result is being written"


@dataclass(slots=True, eq=False)
class Holding:
    """One claimed message in this process."""

    claimed: Claimed
    terms: Terms
    window: TrustWindow
    claimed_at: float
    """Monotonic instant before the claim was sent."""
    stage: Stage = Stage.WAITING
    lost: LostSignal = field(default_factory=LostSignal)
    deadline: float = math.inf
    """Monotonic instant at which its publish is timed out."""
    timed_out: bool = False
    probe: int | None = None
    """The version of its queue's breaker, where it is a probe past that."""

    @property
    def key(self) -> tuple[int, int]:
        """Row and token: a row that we lost and claimed anew is another holding."""
        return self.claimed.id, self.claimed.token

    def is_overdue(self, now: float) -> bool:
        """Tell whether the publish goes on although its time-out is well over."""
        return now > self.deadline + OVERDUE_SECONDS

    def remaining(self) -> float:
        """Return the seconds of lease left."""
        return self.window.remaining(time.monotonic())

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


class Held:
    """Every holding of this process; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holdings: dict[tuple[int, int], Holding] = {}

    def __len__(self) -> int:
        return len(self._holdings)

    def add(self, holdings: Iterable[Holding]) -> None:
        with self._lock:
            self._holdings.update((holding.key, holding) for holding in holdings)

    def remove(self, holdings: Iterable[Holding]) -> None:
        with self._lock:
            for holding in holdings:
                self._holdings.pop(holding.key, None)

    def in_stage(self, stage: Stage) -> list[Holding]:
        with self._lock:
            return [holding for holding in self._holdings.values() if holding.stage is stage]

    def to_beat(self, now: float, early: float) -> list[Holding]:
        """Return the holdings whose lease is worth extending and whose next heartbeat is due.

        A publish that should have been timed out long ago is left out: where a publisher blocks the loop,
        or swallows its cancellation, the lease must end so that another worker can take over.

        Args:
            now: this process's monotonic clock.
            early: seconds until somebody asks again: what is due until then is due now.
        """
        with self._lock:
            return [
                each
                for each in self._holdings.values()
                if not each.lost
                and not each.is_overdue(now)
                and now + early >= each.window.sent_at + each.terms.beat_every
            ]

    def renewed(self, holdings: Iterable[Holding], sent_at: float) -> None:
        """Move the trust windows of confirmed heartbeats, counted from before they were sent."""
        for holding in holdings:
            holding.window = TrustWindow(sent_at, holding.window.lease)

    def lose(self, holdings: Iterable[Holding]) -> list[Holding]:
        """Signal the loss to those whose publish is not over; return the ones that did not know yet."""
        told = [holding for holding in holdings if not holding.lost and holding.stage is not Stage.FINALIZING]
        for holding in told:
            holding.lost.set()
        return told

    def expired(self, now: float) -> list[Holding]:
        """Return the holdings whose window of trust is over without our having been told."""
        with self._lock:
            return [
                holding for holding in self._holdings.values() if not holding.lost and holding.window.is_over(now)
            ]
