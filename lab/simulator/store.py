"""The fake store with somebody who looks at each commit before it becomes visible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lab.fake_store import FakeDatabase
from lab.fake_store.storage import Storage, Transaction
from lab.fake_store.turn import Answer

if TYPE_CHECKING:
    from lab.simulator.run import Run

TIME_OF_START = 1_750_000_000.0


class WatchedDatabase(FakeDatabase):
    """The database of one schedule."""

    def __init__(self, run: Run, statements: Mapping[str, Answer] | None = None) -> None:
        super().__init__(
            lambda: TIME_OF_START + run.world.now,
            statements=statements,
            new_future=run.server.loop.create_future,
        )
        self.run = run
        self.on_notice.append(self._notice)

    def begin(self) -> Transaction:
        """Begin a transaction whose commit is looked at."""
        self._begun += 1
        transaction = self.active[self._begun] = _Watched(self, self._begun)
        return transaction

    def _notice(self, channel: str) -> None:
        run = self.run
        run.listeners = [each for each in run.listeners if not each.is_over]
        for session in run.listeners:
            session.hear()


class _Watched(Transaction):
    def commit(self) -> None:
        storage: Storage = self.storage
        assert isinstance(storage, WatchedDatabase)  # noqa: S101 - for the type checker: it began this
        if self.written and not self.is_over:
            session = storage.run.writer
            assert session is not None  # noqa: S101 - for the type checker: somebody commits
            storage.run.watch.committed(session, self.written, storage.committed)
        super().commit()
