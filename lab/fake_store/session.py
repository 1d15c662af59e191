"""One connection's session: a transaction of its own for each statement, unless it has begun one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

import psycopg

from fencepost.core.operation import Rows, Statement
from lab.fake_store.rows import R, Table
from lab.fake_store.storage import Storage, Transaction
from lab.fake_store.turn import Answer, Turn


class FakeSession:
    """Sends statements, one at a time."""

    def __init__(self, storage: Storage, statements: Mapping[str, Answer], name: str) -> None:
        self.name = name
        self.is_lost = False
        self._storage = storage
        self._statements = statements
        self._transaction: Transaction | None = None
        self._running: Transaction | None = None
        self._has_failed = False

    @property
    def held(self) -> Collection[Hashable]:
        """What its open transaction has locked."""
        return () if self._transaction is None else self._transaction.held

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was begun and has not ended."""
        return self._transaction is not None

    @property
    def is_waiting(self) -> bool:
        """Whether its statement waits for what another session holds."""
        return self._running is not None and self._running.is_waiting

    def begin(self) -> None:
        """Begin a transaction."""
        self._refuse_lost()
        if self._transaction is None:
            self._transaction = self._storage.begin()

    async def execute(self, statement: Statement) -> Rows:
        """Answer a statement; where another session is in its way, once that one has ended its transaction.

        ``BEGIN``, ``COMMIT`` and ``ROLLBACK`` do what their methods do.

        Raises:
            psycopg.Error: what the driver would raise.
            NotImplementedError: this store does not know the statement.
        """
        self._refuse_lost()
        match statement.name:
            case "BEGIN":
                self.begin()
            case "COMMIT":
                await self.commit()
            case "ROLLBACK":
                self.rollback()
            case name:
                return await self._answered(name, statement)
        return []

    async def _answered(self, name: str, statement: Statement) -> Rows:
        if self._has_failed:
            raise psycopg.errors.InFailedSqlTransaction("current transaction is aborted")
        answer = self._statements.get(name)
        if answer is None:
            raise NotImplementedError(f"the fake store does not know {name!r}")
        transaction = self._running = self._transaction or self._storage.begin()
        try:
            rows = await answer(Turn(transaction), statement.params)
        except BaseException:
            if self._transaction is None:
                transaction.rollback()
            self._has_failed = self._transaction is not None
            raise
        finally:
            self._running = None
        if self._transaction is None:
            transaction.commit()
        return rows

    async def commit(self) -> None:
        """Commit; a transaction that has failed is rolled back instead, without a word, as the server does."""
        self._refuse_lost()
        transaction, has_failed = self._taken()
        if transaction is not None:
            transaction.rollback() if has_failed else transaction.commit()

    def rollback(self) -> None:
        """Roll back."""
        transaction, _ = self._taken()
        if transaction is not None:
            transaction.rollback()

    def view(self, table: Table[R]) -> list[R]:
        """Return the rows that this session sees, in the order of their keys."""
        if self._transaction is None:
            return self._storage.rows(table)
        return Turn(self._transaction).rows(table)

    def abort(self) -> None:
        """Have the transaction fail, as a statement of it does that the server refuses."""
        self._has_failed = self._transaction is not None

    def drop(self) -> None:
        """Lose the connection: what was not committed is rolled back, and a statement that waits fails."""
        self.is_lost = True
        if self._running is not None:
            self._running.rollback()
        self.rollback()

    def _taken(self) -> tuple[Transaction | None, bool]:
        found, has_failed = self._transaction, self._has_failed
        self._transaction, self._has_failed = None, False
        return found, has_failed

    def _refuse_lost(self) -> None:
        if self.is_lost:
            raise psycopg.OperationalError("the connection is lost")
