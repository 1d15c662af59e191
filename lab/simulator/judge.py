"""What every watch of a schedule does: it sees each commit before it is visible, and says what is broken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lab.fake_store.rows import Table

if TYPE_CHECKING:
    from lab.simulator.process import Process
    from lab.simulator.run import Run
    from lab.simulator.server import ServerSession

Label = tuple[str, int]
"""A process: its name, and the how manieth of that name."""


class Judge(ABC):
    """The guarantees of one schedule."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.violations: list[str] = []

    def violated(self, guarantee: str, what: str) -> None:
        """Note that a guarantee was broken, and end the schedule."""
        if self._run.is_over:
            return
        self._run.trace("watch", "VIOLATION", guarantee, what)
        self.violations.append(f"{guarantee}: {what}")
        self._run.is_finished = True

    @abstractmethod
    def committed(
        self, session: ServerSession, written: Mapping[Table[Any], Mapping[Any, Any]], committed: Mapping[Any, Any]
    ) -> None:
        """Look at what a transaction is about to make visible.

        Args:
            session: that commits.
            written: rows by table and key; None where it is deleted.
            committed: what stood there until now.
        """

    @abstractmethod
    def is_drained(self) -> bool:
        """Tell whether everything has come to its end."""

    @abstractmethod
    def left(self) -> str:
        """Name what is still open."""

    @abstractmethod
    def is_told_to_stop(self, process: Process) -> None:
        """A process is told to stop."""

    @abstractmethod
    def has_stopped(self, process: Process) -> None:
        """A process has ended as it was told to."""

    @abstractmethod
    def finish(self) -> None:
        """Judge what is left at the end."""

    @abstractmethod
    def duplicates(self) -> Counter[str]:
        """Count what happened more than once, by cause."""
