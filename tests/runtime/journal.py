"""A publisher that keeps a journal: what began, what was accepted, and how much of a key was under way at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from fencepost import Delivery, Message

Step = BaseException | Callable[[Message, Delivery], Any] | None
"""What one attempt does: raise this, await this, or deliver (None)."""


class Journal:
    """Publishes by script; an attempt without a step is delivered after ``pause`` seconds.

    Args:
        script: by message id, the steps of its attempts.
    """

    def __init__(self, script: Mapping[int, list[Step]] | None = None, pause: float = 0.0) -> None:
        self.script = {row_id: list(steps) for row_id, steps in (script or {}).items()}
        self.pause = pause
        self.started: list[int] = []
        self.accepted: list[int] = []
        self.attempts: dict[int, list[int]] = {}
        self.keys: dict[int, str | None] = {}
        self.messages: list[Message] = []
        self.most_at_once: Counter[str | None] = Counter()
        self._under_way: Counter[str | None] = Counter()

    async def publish(self, message: Message, delivery: Delivery) -> None:
        key = message.ordering_key
        self.begin(message, delivery)
        try:
            await self._step(message, delivery)
        finally:
            self._under_way[key] -= 1
        self.accepted.append(message.id)

    def begin(self, message: Message, delivery: Delivery) -> None:
        key = message.ordering_key
        self.started.append(message.id)
        self.messages.append(message)
        self.attempts.setdefault(message.id, []).append(delivery.attempt)
        self.keys[message.id] = key
        self._under_way[key] += 1
        self.most_at_once[key] = max(self.most_at_once[key], self._under_way[key])

    async def _step(self, message: Message, delivery: Delivery) -> None:
        steps = self.script.get(message.id)
        step = steps.pop(0) if steps else None
        if step is None:
            await asyncio.sleep(self.pause)
        elif isinstance(step, BaseException):
            raise step
        else:
            await step(message, delivery)

    def first_acceptances(self, key: str | None) -> list[int]:
        """Return the ids of a key in the order in which they were accepted for the first time."""
        return [row_id for row_id in dict.fromkeys(self.accepted) if self.keys[row_id] == key]


def waits_for(gate: asyncio.Event) -> Callable[[Message, Delivery], Any]:
    """Return a step that is delivered once the gate is open."""

    async def step(message: Message, delivery: Delivery) -> None:
        await gate.wait()

    return step


async def hangs(message: Message, delivery: Delivery) -> None:
    """A step that no answer ever comes to."""
    await asyncio.Event().wait()


SHORT = timedelta(milliseconds=200)
"""A publish time-out for those that must come."""
