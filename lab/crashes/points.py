"""Where a session ends, and in which way."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """How a session ends at a statement."""

    BEFORE = "before"
    """It is gone before the statement."""
    AFTER = "after"
    """The statement was done, and its answer does not come."""
    CANCELLED = "cancelled on psycopg in"
    """The task that waits for it is cancelled, on an async connection of psycopg: it was done, or it was not."""
    CANCELLED_ASYNCPG = "cancelled on asyncpg in"
    """The same on one of SQLAlchemy and asyncpg."""

    @property
    def is_sync(self) -> bool:
        return self in (Way.BEFORE, Way.AFTER)


@dataclass(frozen=True, slots=True)
class Point:
    """Where a session ends, and what comes then.

    Args:
        number: of the statement, which counts from 1.
        way: how it ends there.
        takeover: another worker takes over, instead of a repeat.
    """

    number: int
    way: Way
    takeover: bool = False

    def told(self, names: list[str]) -> str:
        where = f"{self.way} statement {self.number} ({names[self.number - 1]})"
        return f"{where}, then {'a takeover' if self.takeover else 'a repeat'}"

    @property
    def places(self) -> tuple[int, ...]:
        """After how many of the statements what stands may be as it is."""
        if self.way is Way.BEFORE:
            return (self.number - 1,)
        return (self.number,) if self.way is Way.AFTER else (self.number - 1, self.number)
