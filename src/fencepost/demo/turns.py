"""Puts the steps of threads into one order, so that a race comes out the same way every time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

PATIENCE = 20.0


class OutOfOrder(TimeoutError):
    """The order cannot be kept: another thread failed, or a step is missing from the order."""


class Turns:
    """A list of (who, step); a thread that announces a step waits until all steps before it are over."""

    def __init__(self, order: Sequence[tuple[str, str]]) -> None:
        self._order = order
        self._next = 0
        self._changed = threading.Condition()
        self._broken = False

    @contextmanager
    def take(self, who: str, step: str) -> Iterator[None]:
        """Wait for the turn of this step, and end it with the block.

        Raises:
            OutOfOrder: its turn will not come.
        """
        with self._changed:
            came = self._changed.wait_for(lambda: self._broken or self._due() == (who, step), PATIENCE)
            if self._broken or not came:
                raise OutOfOrder(f"{who} waits for its turn to {step}, but it is {self._due()}")
        try:
            yield
        except BaseException:
            self.give_up()
            raise
        with self._changed:
            self._next += 1
            self._changed.notify_all()

    def give_up(self) -> None:
        """Let no thread wait any longer."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()

    def _due(self) -> tuple[str, str] | None:
        return self._order[self._next] if self._next < len(self._order) else None
