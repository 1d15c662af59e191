"""What one statement sees and may do: READ COMMITTED, row by row.

It sees what was committed when it began, and its own transaction's writes. Whatever it locks it gets as it stands
then, and looks at it again: somebody may have changed it in between (PostgreSQL's EvalPlanQual).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import Any

from fencepost.core.operation import Row
from lab.fake_store.checks import CHECKS
from lab.fake_store.rows import R, Table
from lab.fake_store.storage import Storage, Transaction

Params = Mapping[str, Any]


class Turn:
    """One statement of a transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.storage: Storage = transaction.storage
        self.now = self.storage.now()
        """The statement's own instant, whatever it waits for."""
        self._seen: dict[Table[Any], dict[Any, Any]] | None = None

    # --- reading ---

    def rows(self, table: Table[R]) -> list[R]:
        """Return the rows that the statement sees, in the order of their keys."""
        found = self._visible(table)
        return [found[key] for key in sorted(found)]

    def get(self, table: Table[R], key: Any) -> R | None:
        """Return one row as the statement sees it."""
        return self._visible(table).get(key)

    def newest(self, table: Table[R], key: Any) -> R | None:
        """Return one row as it stands now: committed, or written by this transaction."""
        own: dict[Any, R | None] = self.transaction.written.get(table, {})
        found: R | None = own[key] if key in own else self.storage.committed[table].get(key)
        return found

    def _visible(self, table: Table[R]) -> dict[Any, R]:
        if self._seen is not None:
            return self._seen[table]
        return self._with_own(table)

    def _with_own(self, table: Table[R]) -> dict[Any, R]:
        committed: dict[Any, R] = self.storage.committed[table]
        own: dict[Any, R | None] | None = self.transaction.written.get(table)
        if not own:
            return committed
        both = committed | own
        return {key: row for key, row in both.items() if row is not None}

    def _keep_sight(self) -> None:
        # Until it waits for the first time, nothing can change under a statement. (Each reads before it writes.)
        if self._seen is None:
            self._seen = {table: dict(self._with_own(table)) for table in self.storage.committed}

    # --- locking ---

    async def lock(self, table: Table[R], key: Any, still: Callable[[R], bool], *, skip: bool = False) -> R | None:
        """Lock a row that the statement has found, and return it as it stands now.

        None where it is gone, where it does not fit any more, or, with ``skip``, where somebody else has it.
        """
        while not self.transaction.try_lock((table.name, key)):
            if skip:
                return None
            await self._wait_for(self.storage.locks[table.name, key])
        row = self.newest(table, key)
        return row if row is not None and still(row) else None

    async def lock_all(
        self,
        table: Table[R],
        found: Iterable[R],
        still: Callable[[R], bool],
        *,
        skip: bool = False,
        limit: int | None = None,
    ) -> list[R]:
        """Lock rows one after the other, as `lock` does, until there are enough of them."""
        locked: list[R] = []
        for row in found:
            if limit is not None and len(locked) >= limit:
                break
            held = await self.lock(table, table.key(row), still, skip=skip)
            if held is not None:
                locked.append(held)
        return locked

    async def update(
        self, table: Table[R], found: Iterable[R], still: Callable[[R], bool], change: Callable[[R], R]
    ) -> list[R]:
        """Change rows as an UPDATE does: in order, each behind its lock; that stays also where it does not fit."""
        changed: list[R] = []
        for row in found:
            name = (table.name, table.key(row))
            had_it = self.transaction.has_lock(name)
            held = await self.lock(table, table.key(row), still)
            if held is not None:
                changed.append(self.put(table, change(held)))
            elif not had_it and self.newest(table, table.key(row)) is None:
                self.transaction.unlock(name)  # it is gone: there is nothing to lock
        return changed

    async def advisory(self, what: Hashable) -> None:
        """Take a lock on something that is not a row, until the transaction ends."""
        while not self.transaction.try_lock(("advisory", what)):
            await self._wait_for(self.storage.locks["advisory", what])

    def try_advisory(self, what: Hashable) -> bool:
        """Take such a lock where nobody has it."""
        return self.transaction.try_lock(("advisory", what))

    async def _wait_for(self, other: Transaction) -> None:
        self._keep_sight()
        await self.transaction.wait_for(other)

    async def conflict(self, table: Table[R], is_same: Callable[[R], bool]) -> R | None:
        """Return the row that stands in the way of an insert, as of now; wait for whoever is writing one."""
        while True:
            writer = self._writer_of(table, is_same)
            if writer is None:
                break
            await self._wait_for(writer)
        return next(filter(is_same, self._with_own(table).values()), None)

    def _writer_of(self, table: Table[R], is_same: Callable[[R], bool]) -> Transaction | None:
        for other in self.storage.active.values():
            written: dict[Any, R | None] = other.written.get(table, {})
            if other is self.transaction or not written:
                continue
            before = (self.storage.committed[table].get(key) for key in written)
            if any(row is not None and is_same(row) for row in (*written.values(), *before)):
                return other
        return None

    async def inserted_or_locked(self, table: Table[R], new: R) -> R:
        """Lock the row that has the key of ``new``, and return it; where there is none, insert that one."""
        key = table.key(new)
        while True:
            if await self.conflict(table, lambda row: bool(table.key(row) == key)) is None:
                return self.put(table, new)
            held = await self.lock(table, key, lambda _: True)
            if held is not None:
                return held

    # --- writing ---

    def put(self, table: Table[R], row: R) -> R:
        """Write a row that the transaction has locked, or a new one, which it has then."""
        key = table.key(row)
        if not self.transaction.try_lock((table.name, key)):
            raise AssertionError(f"{table.name} {key} is written without its lock")
        check = CHECKS.get(table)
        if check is not None:
            check(row)
        self.transaction.written.setdefault(table, {})[key] = row
        return row

    def put_all(self, table: Table[R], rows: Iterable[R]) -> list[R]:
        """Write rows."""
        return [self.put(table, row) for row in rows]

    def delete(self, table: Table[R], key: Any) -> None:
        """Delete a row that the transaction has locked."""
        self.transaction.written.setdefault(table, {})[key] = None

    # --- notices ---

    def notify(self, channel: str | None) -> None:
        """Send a notice with the commit: one sender at a time in each quarter of a second, once a transaction."""
        if channel is None or channel in self.transaction.notices:
            return
        slot = self.storage.now() // 250_000
        if self.try_advisory(("notice", channel, slot)):
            self.transaction.notices[channel] = None


Answer = Callable[[Turn, Params], Awaitable[list[Row]]]
"""What answers a statement."""
