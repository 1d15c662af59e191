"""The store as a whole: its rows, what it can answer, and the sessions with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from lab.fake_store.session import FakeSession
from lab.fake_store.statements import STATEMENTS
from lab.fake_store.storage import Storage
from lab.fake_store.turn import Answer


class FakeDatabase(Storage):
    """A database whose sessions answer statements.

    Args:
        clock: seconds since 1970, for all sessions.
        statements: what answers each statement, by name; None for all that there are.
        new_future: makes what a statement waits on; None takes the running event loop's.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        statements: Mapping[str, Answer] | None = None,
        new_future: Callable[[], asyncio.Future[None]] | None = None,
    ) -> None:
        super().__init__(clock, new_future)
        self._statements = STATEMENTS if statements is None else statements

    def session(self, name: str = "") -> FakeSession:
        """Open a session."""
        return FakeSession(self, self._statements, name)
