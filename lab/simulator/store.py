"""The fake store with somebody who looks at each commit before it becomes visible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lab.fake_store import FakeDatabase
from lab.fake_store.rows import Table
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
        self._commits: list[_Commit] | None = None

    def begin(self) -> Transaction:
        """Begin a transaction whose commit is looked at."""
        self._begun += 1
        transaction = self.active[self._begun] = _Watched(self, self._begun)
        return transaction

    # --- what may be lost ---

    def keep_commits(self) -> None:
        """Keep what each commit changes, from now on, so that it can be lost."""
        self._commits = []

    def note_commit(self, written: Mapping[Table[Any], Mapping[Any, Any]]) -> None:
        """Keep what a commit is about to change."""
        if self._commits is not None:
            before = {
                table: {key: self.committed[table].get(key) for key in rows} for table, rows in written.items()
            }
            self._commits.append(_Commit(self.run.world.now, before, dict(self._drawn)))

    def lose_commits(self, since: float) -> int:
        """Have everything as it stood at an instant, drawn ids included; return how many commits are lost."""
        commits = self._commits or []
        lost = 0
        while commits and commits[-1].at > since:
            lost += 1
            for table, rows in commits.pop().before.items():
                for key, row in rows.items():
                    if row is None:
                        self.committed[table].pop(key, None)
                    else:
                        self.committed[table][key] = row
        self._drawn = dict(commits[-1].drawn) if commits else dict.fromkeys(self._drawn, 0)
        return lost

    def _notice(self, channel: str) -> None:
        run = self.run
        run.listeners = [each for each in run.listeners if not each.is_over]
        for session in run.listeners:
            session.hear()


class _Commit(NamedTuple):
    at: float
    before: Mapping[Table[Any], Mapping[Any, Any]]
    """Rows by table and key as they stood; None where there was none."""
    drawn: Mapping[Table[Any], int]
    """The last id of each table, this commit's included."""


class _Watched(Transaction):
    def commit(self) -> None:
        storage: Storage = self.storage
        assert isinstance(storage, WatchedDatabase)  # noqa: S101 - for the type checker: it began this
        if self.written and not self.is_over:
            session = storage.run.writer
            assert session is not None  # noqa: S101 - for the type checker: somebody commits
            storage.run.watch.committed(session, self.written, storage.committed)
            storage.note_commit(self.written)
        super().commit()
