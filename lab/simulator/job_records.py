"""What must be written down about jobs: attempts in the ledger, ticks of schedules, effects behind the inbox."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fencepost.core.ledger import Attempt, Cause, Kind
from fencepost.core.operation import arun
from fencepost.store import ledger
from lab.fake_store.rows import ATTEMPT, CRON, INBOX, JOB, SECOND, AttemptRow, CronRow, JobRow, Table, instant_of
from lab.simulator.job_starts import EFFECT

if TYPE_CHECKING:
    from lab.simulator.job_run import JobRun
    from lab.simulator.job_watch import JobWatch
    from lab.simulator.server import ServerSession

Written = Mapping[Table[Any], Mapping[Any, Any]]

TICKS = 2
"""That are waited for."""

MAY_REPEAT = frozenset({Cause.LEASE_LOST, Cause.WORKER_LOST, Cause.NO_ANSWER, Cause.OPERATOR_RETRY, Cause.FAILED})
"""Why an effect may be there twice."""


class Records:
    """Beside the rows of the jobs themselves."""

    def __init__(self, run: JobRun, watch: JobWatch) -> None:
        self._run, self._watch = run, watch
        self.ticks: dict[int, int] = {}
        """Row ids by the tick, in seconds."""
        self._first_tick: int | None = None
        self._effects: Counter[str] = Counter()

    def committed(self, session: ServerSession, written: Written, committed: Mapping[Any, Any]) -> None:
        """Look at what a transaction is about to make visible; see `Judge.committed`."""
        rows: Mapping[int, JobRow | None] = written.get(JOB) or {}
        for row_id, after in rows.items():
            before = committed[JOB].get(row_id)
            if after is not None and before is not None and self._run.plan.task(after.task).ledger:
                self._is_kept(session, before, after, written)
        for row in written.get(EFFECT) or ():
            self._had_effect(row, written)
        self._moved(written.get(CRON) or {})

    # --- the ledger ---

    def _is_kept(self, session: ServerSession, before: JobRow, after: JobRow, written: Written) -> None:
        """A claim begins an attempt, and its holder's result ends it, in the same transaction."""
        attempts = [row for row in (written.get(ATTEMPT) or {}).values() if row.row_id == after.id]
        ours = [row for row in attempts if row.token == str(after.fence)]
        is_claimed = before.status == "queued" and after.status == "processing"
        was_held = before.status == "processing" and after.attempt_token == before.attempt_token
        if is_claimed and not any(row.ended_at is None for row in ours):
            self._watch.violated("ledger", f"job {after.id} was claimed, and no attempt is written down")
        if was_held and after.status != "processing" and not any(self._ends(row) for row in ours):
            self._watch.violated("ledger", f"job {after.id} is {after.status}, and its attempt has no end")

    def _ends(self, row: AttemptRow) -> bool:
        return row.ended_at is not None and row.result is not None and not row.lease_lost

    def _attempts(self) -> list[Attempt]:
        session = self._run.database.session("judge")
        rows = self._run.database.rows(ATTEMPT)
        ids = {row.row_id for row in rows}
        return _at_once(arun(ledger.attempts(self._run.catalog, Kind.JOB, ids), session.execute))  # type: ignore[no-any-return] # it is what the operation returns

    def _causes(self) -> None:
        """Every repeat has a cause in the ledger; one whose effect is there twice has one that says how."""
        effects: Counter[int] = Counter()
        for each in self._attempts():
            start = self._watch.starts.under(each.row_id, int(each.token))
            if each.cause is Cause.BY_HAND:
                self._watch.violated("ledger", f"attempt {each.token} of job {each.row_id}: by hand, it says")
            if start is None or not start.effects:
                continue
            if effects[each.row_id] and each.cause not in MAY_REPEAT:
                self._watch.violated(
                    "ledger",
                    f"attempt {each.token} of job {each.row_id} is a duplicate, by its cause {each.cause}",
                )
            effects[each.row_id] += 1

    # --- schedules ---

    def inserted(self, session: ServerSession, row: JobRow) -> None:
        """Note a job that is new."""
        tick = json.loads(row.headers).get("scheduled-for")
        if tick is None:
            return
        second = instant_of(tick) // SECOND
        if second in self.ticks:
            self._watch.violated("tick", f"jobs {self.ticks[second]} and {row.id} are both of the tick {tick}")
        self.ticks[second] = row.id

    def have_come(self) -> bool:
        """Tell whether there was time for some ticks."""
        schedule = self._run.plan.schedule
        return schedule is None or self._run.world.now >= self._run.begun_at + TICKS * schedule.every

    def _moved(self, rows: Mapping[str, CronRow]) -> None:
        for row in rows.values():
            if self._first_tick is None:
                self._first_tick = row.last_tick
            known = self._run.database.committed[CRON].get(row.name)
            if known is not None and row.last_tick < known.last_tick:
                self._watch.violated("tick", f"the schedule {row.name} went back")

    def _all_ticks(self) -> None:
        """Each tick since the schedule was there has its job, unless one was open that has its unique key."""
        run, schedule = self._run, self._run.plan.schedule
        for row in run.database.rows(CRON):
            if schedule is None or self._first_tick is None:
                break
            after, last = self._first_tick, row.last_tick
            every = schedule.every * SECOND
            due = {at // SECOND for at in range(after - after % every + every, last + 1, every)}
            if not self.ticks.keys() <= due or (not schedule.is_unique and self.ticks.keys() != due):
                self._watch.violated("tick", f"due were {sorted(due)}, and enqueued {sorted(self.ticks)}")
            late = run.world.now - run.seconds_of(last)
            allowed = schedule.every + 1.0 + run.plan.poll
            if late > allowed and any(each.is_well_since(run.world.now - late) for each in run.processes):
                self._watch.violated("tick", f"the schedule stands {late:.2f} s behind")

    # --- effects in the database ---

    def _had_effect(self, row: Any, written: Written) -> None:
        if not any(each.message_id == row.job_id for each in (written.get(INBOX) or {}).values()):
            self._watch.violated("I8", f"job {row.job_id} had its effect beside the inbox")
        start = self._watch.starts.under(self._watch.rows_of[UUID(row.job_id)], row.fence)
        if start is not None:
            self._watch.effect(start)
        self._effects[row.job_id] += 1
        if self._effects[row.job_id] > 1:
            self._watch.violated("I8", f"job {row.job_id} had its effect twice, behind the inbox")

    def _all_done(self) -> None:
        """What stands as done has had its effect."""
        for row in self._run.database.rows(JOB):
            starts = self._watch.starts.of_row.get(row.id, ())
            if row.status == "done" and not any(each.effects for each in starts):
                self._watch.violated("I1", f"job {row.id} stands as done, and nothing was done")

    def finish(self) -> None:
        """Judge what is left at the end."""
        self._causes()
        self._all_ticks()
        self._all_done()


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run what waits for nobody."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")
