"""Writes results back, many at a time: while one batch is being written, the next one gathers."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from fencepost.core.operation import Operation
from fencepost.core.outcome import Action
from fencepost.runtime.held import H, Held, Stage
from fencepost.runtime.link import Link

LARGEST_BATCH = 1_000

W = TypeVar("W")


class Results(ABC, Generic[H, W]):
    """How the results of one kind of rows are written, and what is told about them."""

    @abstractmethod
    def operation(self, batch: Sequence[tuple[H, Action]]) -> Operation[W]:
        """Write every decision behind its fence; each row stands in the batch once."""

    @abstractmethod
    def needs_transaction(self, batch: Sequence[tuple[H, Action]]) -> bool:
        """Tell whether the operation is all or nothing."""

    @abstractmethod
    def written(self, batch: Sequence[tuple[H, Action]], found: W) -> None:
        """Told once the batch stands in the database."""

    @abstractmethod
    def failed(self, holding: H, error: Exception) -> None:
        """Told of a result that cannot be written: its lease is left to expire."""


class Finalizer(Generic[H]):
    """Takes decisions with `submit`; `run` writes them until it is cancelled."""

    def __init__(self, link: Link, held: Held[H], results: Results[H, Any]) -> None:
        self._link, self._held, self._results = link, held, results
        self._waiting: deque[tuple[H, Action]] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def backlog(self) -> int:
        """Decisions not yet written."""
        return len(self._waiting)

    def submit(self, holding: H, action: Action) -> None:
        """Queue one decision; its lease is kept alive until it is written."""
        holding.stage = Stage.FINALIZING
        holding.deadline = math.inf
        self._waiting.append((holding, action))
        self._idle.clear()
        self._arrived.set()

    @property
    def is_drained(self) -> bool:
        """Whether everything submitted is written."""
        return self._idle.is_set()

    async def drained(self) -> None:
        """Wait until everything submitted is written."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                await self._write(self._next_batch())
            self._idle.set()

    def _next_batch(self) -> list[tuple[H, Action]]:
        """Take what waits, each row once: a row lost and claimed anew waits for the next batch."""
        batch: dict[int, tuple[H, Action]] = {}
        while self._waiting and len(batch) < LARGEST_BATCH:
            row_id = self._waiting[0][0].id
            if row_id in batch:
                break
            batch[row_id] = self._waiting.popleft()
        return list(batch.values())

    async def _write(self, batch: Sequence[tuple[H, Action]]) -> None:
        try:
            found = await self._link.run(
                lambda: self._results.operation(batch), atomic=self._results.needs_transaction(batch)
            )
        except asyncio.CancelledError:
            # Put back in front: whoever drains us may still try.
            self._waiting.extendleft(reversed(batch))
            raise
        except Exception as error:  # noqa: BLE001 - a row that fails must not end the loop
            await self._write_one_by_one(batch, error)
            return
        self._held.remove(holding for holding, _ in batch)
        self._results.written(batch, found)

    async def _write_one_by_one(self, batch: Sequence[tuple[H, Action]], error: Exception) -> None:
        """One row that the database refuses must not keep its neighbours from being finalized."""
        if len(batch) > 1:
            for decision in batch:
                await self._write([decision])
            return
        holding, _ = batch[0]
        self._held.remove([holding])
        self._results.failed(holding, error)
