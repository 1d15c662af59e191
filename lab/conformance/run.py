"""One history on all of them, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lab.conformance import steps as s
from lab.conformance.job_steps import JobStep
from lab.conformance.judged import Call
from lab.conformance.model import Model
from lab.conformance.model_rows import Disagreement
from lab.conformance.seen import Look, plain
from lab.conformance.store import Ended, Store
from lab.conformance.work import Work

ABORTING = frozenset({"DeadlockDetected", "UniqueViolation"})
"""Errors of the database itself, after which a transaction can only be rolled back."""


class Run:
    """A history under way.

    Args:
        stores: the fake one first: it tells at once whether an operation waits.
        counts: kinds of steps, and what became of them, are counted here.
    """

    def __init__(self, stores: Sequence[Store], counts: Counter[str]) -> None:
        self.stores = stores
        self.counts = counts
        self.model = Model()
        self.works = [Work() for _ in stores]
        self.in_transaction = [False, False]
        self.waiting: dict[int, Call] = {}
        self._uncommitted: dict[int, list[tuple[s.Step, list[Ended]]]] = {0: [], 1: []}

    def history(self, history: s.History) -> None:
        """Run it to its end, where both transactions end.

        Raises:
            Disagreement: the model, or one of the stores, shows something else than the others.
        """
        of_jobs = any(isinstance(step, JobStep) for _, step in history)
        for store in self.stores:
            store.empty(jobs=of_jobs)
        for place, (session, step) in enumerate(history):
            try:
                self.step(session, step)
            except Disagreement as found:
                raise Disagreement(f"step {place}, {step} of session {session}: {found}") from None
        for session in sorted((0, 1), key=lambda session: session in self.waiting):
            self.step(session, s.End(commits=True))
        rests = [store.rest() for store in self.stores]
        self._agree("the other tables", rests)
        self.model.compare(rests[0])

    def step(self, session: int, step: s.Step) -> None:
        """Make one step, unless the session waits."""
        if session in self.waiting:
            self.counts["(left out, as its session waits)"] += 1
            return
        self.counts[type(step).__name__] += 1
        match step:
            case s.Begin():
                self._begin(session)
            case s.End(commits=commits):
                self._end(session, commits)
            case s.Pass() | s.Lose():
                self._between(step)
            case _:
                self._operate(session, step)

    def _begin(self, session: int) -> None:
        if not self.in_transaction[session]:
            self.in_transaction[session] = True
            self.model.begin(session)
            for store in self.stores:
                store.begin(session)

    def _end(self, session: int, commits: bool) -> None:
        if not self.in_transaction[session]:
            return
        self.in_transaction[session] = False
        for step, outcomes in self._uncommitted[session] if commits else ():
            self._remember(step, outcomes)
        self._uncommitted[session].clear()
        self.model.end(session, commits=commits)
        for store in self.stores:
            store.end(session, commits=commits)
        other = 1 - session
        if other in self.waiting:
            self.counts["(waited)"] += 1
            self._finish(other, self.waiting.pop(other), [store.settle(other) for store in self.stores])
        else:
            self.model.look(session, self._look(session))

    def _between(self, step: s.Step) -> None:
        if any(self.in_transaction):
            return
        match step:
            case s.Pass(minutes=minutes):
                self.model.pass_time(minutes)
                for store in self.stores:
                    store.pass_time(minutes)
            case s.Lose(row=row) if row < len(self.works[0].rows):
                row_id = self.works[0].rows[-1 - row]
                self.model.lose(row_id)
                for store in self.stores:
                    store.lose(row_id)

    def _operate(self, session: int, step: s.Step) -> None:
        call = Call.of(step, self.works[0], self.model.sight(session), beside=self.in_transaction[1 - session])
        outcomes: list[Ended | None] = []
        for store, work in zip(self.stores, self.works, strict=True):
            waits = bool(outcomes) and outcomes[0] is None
            atomic = work.is_atomic(step)
            outcomes.append(store.start(session, work.operation(step), atomic=atomic, will_wait=waits))
        if all(outcome is None for outcome in outcomes):
            self.waiting[session] = call
        else:
            self._finish(session, call, outcomes)

    def _finish(self, session: int, call: Call, outcomes: list[Ended | None]) -> None:
        """Compare how an operation ended, and what it left behind."""
        self._agree("what it returned", [_told(outcome) for outcome in outcomes])
        ended = outcomes[0]
        if ended is None:
            raise Disagreement("it still waits, although nobody is in its way")
        if ended.error is not None:
            self.counts[f"({ended.error})"] += 1
        if ended.error in ABORTING:
            self.model.judge_abort(session, call, ended.error)
            self.in_transaction[session] = True
            self._end(session, commits=False)
            return
        look = self._look(session)
        self.model.judge(session, call, ended, look)
        returned = [outcome for outcome in outcomes if outcome is not None and outcome.error is None]
        if self.in_transaction[session]:
            # Nobody else has a claim before it is committed, nor knows of a message.
            self._uncommitted[session].append((call.step, returned))
        else:
            self._remember(call.step, returned)

    def _remember(self, step: s.Step, returned: list[Ended]) -> None:
        """Keep for later steps what a committed one claimed."""
        for outcome, work in zip(returned, self.works, strict=False):
            work.remember(step, outcome.result)

    def _look(self, session: int) -> Look:
        looks = [store.look(session) for store in self.stores]
        self._agree("the messages", looks)
        if not self.in_transaction[session]:
            for work in self.works:
                work.rows = [row.id for row in looks[0].rows]
                work.jobs.rows = [job.id for job in looks[0].jobs]
        return looks[0]

    def _agree(self, what: str, found: Sequence[Any]) -> None:
        for store, other in zip(self.stores[1:], found[1:], strict=True):
            if other != found[0]:
                raise Disagreement(f"{what}: {self.stores[0].name} and {store.name}{apart(found[0], other)}")


def _told(outcome: Ended | None) -> Any:
    if outcome is None:
        return "it waits"
    return outcome.error or plain(outcome.result)


def apart(one: Any, other: Any) -> str:
    """Show what two stores say where they differ."""
    if isinstance(one, Look) and isinstance(other, Look):
        mine = [row for row in one.rows if row not in other.rows]
        theirs = [row for row in other.rows if row not in one.rows]
        return f"\n  {mine}, order {one.order}\n  {theirs}, order {other.order}"
    return f"\n  {one}\n  {other}"
