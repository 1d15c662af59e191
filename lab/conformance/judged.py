"""One step as it is judged: what its session meant, how it ended, and what is left behind."""

from __future__ import annotations

from typing import Any

from fencepost.core.outcome import Action
from fencepost.core.records import Claimed
from fencepost.core.states import Event, State
from lab.conformance import steps as s
from lab.conformance.model_rows import Row, Sight, demand
from lab.conformance.seen import Look
from lab.conformance.store import Ended
from lab.conformance.work import chosen


class Call:
    """A step, and what its session meant by it when it began."""

    def __init__(
        self,
        step: s.Step,
        held: list[Claimed],
        decided: list[tuple[Claimed, Action]],
        rows: list[int],
        version: int,
    ) -> None:
        self.step = step
        self.held = held
        self.decided = decided
        self.rows = rows
        self.version = version


class Judged:
    """A step that ended, and what is needed to judge it."""

    def __init__(self, sight: Sight, call: Call, ended: Ended, after: Look, alone: bool) -> None:
        self.sight = sight
        self.call = call
        self.ended = ended
        self.after = after
        self.alone = alone
        """No other session has a transaction open."""

    @property
    def result(self) -> Any:
        demand(self.ended.error is None, f"{self.ended.error} in {self.call.step}")
        return self.ended.result

    def demand_result(self, expected: object) -> None:
        demand(self.result == expected, f"{self.result}, not {expected}")

    def demand_error(self, name: str) -> None:
        demand(self.ended.error == name, f"{self.ended}, not {name}")

    def same(self, place: int) -> Row | None:
        """Return the message that has the dedupe key of the message at this place of an enqueue."""
        step = self.call.step
        if not isinstance(step, s.Enqueue) or step.dedupe is None:
            return None
        identity = (step.queue, f"{step.dedupe}{place}")
        return next((row for row in self.sight.rows() if (row.queue, row.dedupe) == identity), None)

    def changed_dead(self, places: s.Places, event: Event) -> None:
        """Let an operator's action happen to those that are dead."""
        rows = [row for row_id in chosen(self.call.rows, places) if (row := self.sight.row(row_id))]
        dead = sorted(row.id for row in rows if row.status is State.DEAD)
        demand(self.result == dead, f"{self.result} were dead, not {dead}")
        for row_id in dead:
            self.sight.happen(row_id, event)
