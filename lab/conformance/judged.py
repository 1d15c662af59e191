"""One step as it is judged: what its session meant, how it ended, and what is left behind."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fencepost.core.job import ClaimedJob
from fencepost.core.outcome import Action
from fencepost.core.records import Claimed
from fencepost.core.states import Event, State
from lab.conformance import steps as s
from lab.conformance.job_steps import FinishJobs
from lab.conformance.model_rows import STEP_TAKES, Row, Sight, demand
from lab.conformance.seen import Look
from lab.conformance.store import Ended
from lab.conformance.work import Work, chosen


@dataclass(frozen=True)
class Call:
    """A step, and what its session meant by it when it began."""

    step: s.Step
    held: list[Claimed]
    decided: list[tuple[Claimed, Action]]
    rows: list[int]
    version: int
    jobs: list[ClaimedJob]
    decided_jobs: list[tuple[ClaimedJob, str]]
    job_rows: list[int]
    counts: bool
    """Its queue counted. (Whoever waits for a key goes by what it saw before.)"""
    began: int
    """When: what a statement writes has that instant, however long it waits before it can."""
    newest: int
    """The last message, and the last job, that was there. (Who waits has drawn its id before others do.)"""
    newest_job: int
    beside: bool
    """Another session had a transaction open. (It may have ended since, where this one waited for it.)"""

    @classmethod
    def of(cls, step: s.Step, work: Work, sight: Sight, *, beside: bool) -> Call:
        """Note what a step names just now."""
        places = getattr(step, "claims", ())
        return cls(
            step,
            work.held(places),
            work.decided(step) if isinstance(step, s.Finalize) else [],
            list(work.rows),
            (work.probes or [1])[-1],
            work.jobs.held(places),
            work.jobs.decided(step) if isinstance(step, FinishJobs) else [],
            list(work.jobs.rows),
            sight.queue(getattr(step, "queue", None) or "").sequenced,
            sight.now + STEP_TAKES,
            max((row.id for row in sight.of("row")), default=0),
            max((job.id for job in sight.of("job")), default=0),
            beside,
        )


class Judged:
    """A step that ended, and what is needed to judge it."""

    def __init__(
        self, sight: Sight, call: Call, ended: Ended, after: Look, *, alone: bool, locked: Collection[Any]
    ) -> None:
        self.sight = sight
        self.call = call
        self.ended = ended
        self.after = after
        self.alone = alone
        """No other session has a transaction open."""
        self.locked = locked
        """What another session has written and not committed, by its keys in the model."""

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
