"""Where a section measures, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psycopg

from fencepost.bench import tables

T = TypeVar("T")

TRIAL_SCALE = 0.1
"""Below this part of the full sizes a run only shows that everything works."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a section is given.

    Args:
        url: a server that is the benchmark's own, with migrated tables.
        directory: for files that processes share.
        say: tells whoever waits what is measured now.
        scale: the part of the full sizes to run.
        full: also what takes many minutes.
        destinations: names and URLs of destinations to publish to.
    """

    url: str
    directory: Path
    say: Callable[[str], None]
    scale: float = 1.0
    full: bool = False
    destinations: Sequence[tuple[str, str]] = ()

    def count(self, full_size: int, *, least: int = 100) -> int:
        """Return a size at this scale."""
        return max(min(least, full_size), round(full_size * self.scale))

    def rounds(self, full_number: int) -> int:
        """Return how often to repeat; in a trial once."""
        return 1 if self.scale < TRIAL_SCALE else full_number

    def steps(self, steps: Sequence[T]) -> Sequence[T]:
        """Return the steps of a curve; in a trial its ends."""
        return [steps[0], steps[-1]] if self.scale < TRIAL_SCALE and len(steps) > 1 else steps

    @contextmanager
    def emptied(self) -> Iterator[tables.Connection]:
        """A connection in autocommit mode to an outbox without messages."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            tables.empty(connection)
            tables.settle(connection)
            yield connection
