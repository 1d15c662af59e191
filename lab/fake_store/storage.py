"""What is committed, who is at it, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from typing import Any
from uuid import UUID

import psycopg

from lab.fake_store.rows import SECOND, TABLES, R, Table


class Storage:
    """The committed rows, the transactions under way, and the clock.

    Args:
        clock: seconds since 1970, for all sessions.
        new_future: makes what a statement waits on; None takes the running event loop's.
    """

    def __init__(
        self, clock: Callable[[], float], new_future: Callable[[], asyncio.Future[None]] | None = None
    ) -> None:
        self._clock = clock
        self.new_future = new_future or (lambda: asyncio.get_running_loop().create_future())
        self.committed: dict[Table[Any], dict[Any, Any]] = {table: {} for table in TABLES}
        self.active: dict[int, Transaction] = {}
        self.locks: dict[Hashable, Transaction] = {}
        self.on_notice: list[Callable[[str], None]] = []
        """Called with the channel of each notice, once its transaction has committed."""
        self._drawn: dict[Table[Any], int] = dict.fromkeys(TABLES, 0)
        self._begun = 0
        self._uuids = 0

    def now(self) -> int:
        """Return the clock, in microseconds."""
        return round(self._clock() * SECOND)

    def draw(self, table: Table[Any]) -> int:
        """Draw the next id; a rollback does not give it back."""
        self._drawn[table] += 1
        return self._drawn[table]

    def fresh_uuid(self) -> str:
        """Return a uuid that nobody has."""
        self._uuids += 1
        return str(UUID(int=self._uuids, version=4))

    def rows(self, table: Table[R]) -> list[R]:
        """Return what is committed, in the order of its keys: for whoever looks on from outside."""
        found: dict[Any, R] = self.committed[table]
        return [found[key] for key in sorted(found)]

    def edit(self, table: Table[R], key: Any, **columns: Any) -> None:
        """Change a committed row behind everybody's back, as a test does with plain SQL."""
        self.committed[table][key] = self.committed[table][key]._replace(**columns)

    def begin(self) -> Transaction:
        """Begin a transaction."""
        self._begun += 1
        transaction = self.active[self._begun] = Transaction(self, self._begun)
        return transaction


class Transaction:
    """What one transaction has written and holds, until it ends."""

    def __init__(self, storage: Storage, number: int) -> None:
        self.storage = storage
        self.number = number
        self.written: dict[Table[Any], dict[Any, Any]] = {}
        """Rows by key; None where it is deleted."""
        self.notices: dict[str, None] = {}
        self.waits_for: Transaction | None = None
        """Whose end a statement of this one waits for."""
        self._waits_on: asyncio.Future[None] | None = None
        self._held: dict[Hashable, None] = {}
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_over(self) -> bool:
        return self.number not in self.storage.active

    # --- locks ---

    def try_lock(self, what: Hashable) -> bool:
        """Take a lock until the end; return False where somebody else has it."""
        holder = self.storage.locks.setdefault(what, self)
        if holder is self:
            self._held[what] = None
        return holder is self

    @property
    def held(self) -> Collection[Hashable]:
        """What it has locked: a row by the name of its table and its key."""
        return self._held.keys()

    def has_lock(self, what: Hashable) -> bool:
        """Tell whether a lock is ours."""
        return what in self._held

    def unlock(self, what: Hashable) -> None:
        """Let go of a lock before the end; who waits for us looks again."""
        del self._held[what]
        self.storage.locks.pop(what, None)
        self._wake_waiters()

    async def wait_for(self, other: Transaction) -> None:
        """Wait until another transaction has ended.

        Raises:
            DeadlockDetected: that one waits for us. (The server lets any of those in the circle fail; here it is
                whoever closes it.)
            OperationalError: our connection was lost meanwhile.
        """
        found: Transaction | None = other
        while found is not None:
            if found is self:
                raise psycopg.errors.DeadlockDetected("deadlock detected")
            found = found.waits_for
        self.waits_for, self._waits_on = other, self.storage.new_future()
        other._waiters.append(self._waits_on)
        try:
            await self._waits_on
        finally:
            self.waits_for = self._waits_on = None
        if self.is_over:
            raise psycopg.OperationalError("the connection is lost")

    @property
    def is_waiting(self) -> bool:
        """Whether a statement of it waits for another transaction."""
        return self._waits_on is not None

    # --- the end ---

    def commit(self) -> None:
        """Make what was written visible, and let go of everything."""
        if self.is_over:
            return
        for table, rows in self.written.items():
            committed = self.storage.committed[table]
            for key, row in rows.items():
                if row is None:
                    committed.pop(key, None)
                else:
                    committed[key] = row
        self._end()
        for channel in self.notices:
            for hear in self.storage.on_notice:
                hear(channel)

    def rollback(self) -> None:
        """Forget what was written, and let go of everything; a statement of it that waits is woken, and fails."""
        if not self.is_over:
            self._end()
            if self._waits_on is not None:
                _wake(self._waits_on)

    def _end(self) -> None:
        del self.storage.active[self.number]
        for what in self._held:
            self.storage.locks.pop(what, None)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
