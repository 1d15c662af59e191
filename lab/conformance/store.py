"""What a history needs of a store, and how a step of it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fencepost.core.operation import Operation
from lab.conformance.seen import Look, Rest


@dataclass(frozen=True)
class Ended:
    """What an operation returned, or the name of the error that it raised."""

    result: Any = None
    error: str | None = None


WAITS = None
"""An operation that waits for the other session."""


class Store(Protocol):
    """Two sessions with a database."""

    name: str

    def empty(self, *, jobs: bool) -> None:
        """Begin anew, with a history of jobs or one of messages: it is at those alone that anybody looks."""

    def begin(self, session: int) -> None:
        """Begin a transaction."""

    def end(self, session: int, *, commits: bool) -> None:
        """End it."""

    def start(self, session: int, operation: Operation[Any], *, atomic: bool, will_wait: bool) -> Ended | None:
        """Run an operation, in a transaction of its own where it must be atomic and there is none.

        Args:
            will_wait: another store waits here; what is expected of this one.
        """

    def settle(self, session: int) -> Ended | None:
        """Go on with an operation that waits, now that the other session has ended its transaction."""

    def look(self, session: int) -> Look:
        """Return the messages as a session sees them."""

    def rest(self) -> Rest:
        """Return what stands in the other tables; no transaction is open."""

    def pass_time(self, minutes: int) -> None:
        """Let time pass; no transaction is open."""

    def lose(self, row_id: int) -> None:
        """Delete a message by hand; no transaction is open."""
