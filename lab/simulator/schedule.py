"""What the plan of every schedule has, whatever works in it: dispatchers, or workers of jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, Self

from lab.simulator.plan import Fault


class Schedule(Protocol):
    """A plan, as far as the world around it must know it."""

    @property
    def seed(self) -> int: ...

    @property
    def chances(self) -> str:
        """Seeds what is left to chance: jitter, latencies, turns."""
        ...

    @property
    def processes(self) -> int: ...

    @property
    def lease(self) -> float:
        """The longest that there is, in seconds."""
        ...

    @property
    def poll(self) -> float: ...

    @property
    def spread(self) -> float:
        """The longest that a statement, or its answer, travels."""
        ...

    @property
    def grace(self) -> float: ...

    @property
    def pooled(self) -> bool: ...

    @property
    def notify(self) -> bool: ...

    @property
    def max_attempts(self) -> int:
        """The most that anything is tried."""
        ...

    @property
    def resolves(self) -> bool:
        """An operator does something about what is dead at the end."""
        ...

    @property
    def faults(self) -> Sequence[Fault]: ...

    @property
    def faults_end(self) -> float:
        """Seconds after which nothing goes wrong any more."""
        ...

    @property
    def numbers(self) -> Sequence[int]:
        """Of what is enqueued: messages, or jobs."""
        ...

    def without(
        self, faults: Collection[int] = (), messages: Collection[int] = (), processes: Collection[int] = ()
    ) -> Self:
        """Leave out faults by their place in the list, messages or jobs by number, and so many processes."""
        ...
