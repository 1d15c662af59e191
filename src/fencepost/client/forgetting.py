"""What inboxes and fences share in forgetting what is old."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fencepost.core.operation import Operation
from fencepost.store.forget import Forgotten


@dataclass(slots=True)
class Place:
    """Where the next step of a purge begins: where the last one ended, and anew once there was no more."""

    after: int = 0

    def step(self, purge: Callable[[int], Operation[Forgotten]]) -> Operation[int]:
        """Make one step from here; return how many rows it forgot."""
        forgotten = yield from purge(self.after)
        self.after = forgotten.after or 0
        return forgotten.count
