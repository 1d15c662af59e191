"""The book of a run's faults: what was done and what had nobody to hit, and what has to be ended when."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable

from fencepost.testing.fault_proxy import FaultProxy
from lab.chaos.schedule import Planned
from lab.checker.recording import Recorder

FIRE_SECONDS = 2.0
"""How long a trap on a path stays set."""
TRAP_SECONDS = 0.1
"""Between two looks at it."""


class Book:
    """Writes faults down, and ends those that last.

    Args:
        recorder: the conductor's.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self.trapped: set[FaultProxy] = set()
        """Paths under a fault that has an end."""
        self.applied: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()

    def begin(self, name: str, target: str, **more: str) -> str:
        """Write a fault down, before it is done; return its id."""
        fault_id = f"f{next(self._numbers)}"
        self._recorder.write("fault", fault_id=fault_id, fault=name, target=target, **more)
        return fault_id

    def end(self, fault_id: str) -> None:
        """Write down that a fault is over."""
        self._recorder.write("fault_end", fault_id=fault_id)

    def later(self, delay: float, end: Callable[[], None]) -> None:
        """Have something done after so many seconds."""
        heapq.heappush(self._ends, (time.monotonic() + delay, next(self._numbers), end))

    def end_what_is_due(self, *, everything: bool = False) -> None:
        """End the faults whose time is over, or all of them."""
        while self._ends and (everything or self._ends[0][0] <= time.monotonic()):
            heapq.heappop(self._ends)[2]()

    def trap(self, proxy: FaultProxy, planned: Planned, fault_id: str, sprung: Callable[[], bool]) -> None:
        """Leave a trap set until it springs, a while at most; one that did not spring was no fault."""
        gives_up_at = time.monotonic() + FIRE_SECONDS
        self.trapped.add(proxy)

        def look() -> None:
            has_sprung = sprung()
            if not has_sprung and time.monotonic() < gives_up_at:
                self.later(TRAP_SECONDS, look)
                return
            self.trapped.discard(proxy)
            proxy.heal()
            self.end(fault_id)
            if not has_sprung:
                self.applied[planned.kind] -= 1
                self.missed[planned.kind] += 1

        self.later(TRAP_SECONDS, look)
