"""How far each schedule has come, as operations: look, hold, move on, and who looks after it.

A tick is enqueued in the transaction that holds its schedule's row and moves it on. So each one is enqueued once,
wherever a worker dies; and an instant at or before ``last_tick`` never comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fencepost.core.job import JobDraft
from fencepost.core.operation import Operation, Row
from fencepost.core.records import instant
from fencepost.core.ticks import Due
from fencepost.errors import DedupeConflict
from fencepost.store import jobs
from fencepost.store.catalog import Catalog

SEEN_EVERY = timedelta(seconds=15)
"""Between two signs of life of the workers that a schedule's definition is from."""

UNSEEN_AFTER = timedelta(seconds=60)
"""A definition without a sign of life for so long is nobody's: a worker with another one puts its own there."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a schedule is: its task and when."""

    task: str
    expression: str
    timezone: str

    def has_ticks_of(self, other: Definition) -> bool:
        """Whether both come at the same instants."""
        return (self.expression, self.timezone) == (other.expression, other.timezone)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as it stands in the database.

    Args:
        last_tick: every tick up to here is enqueued, or was missed; where it was defined anew, that instant.
        seen_at: the last sign of life of a worker with this definition.
        now: the database's clock.
    """

    name: str
    definition: Definition
    last_tick: datetime
    seen_at: datetime
    now: datetime

    @property
    def is_unseen(self) -> bool:
        """Whether no worker with this definition is left."""
        return self.now - self.seen_at > UNSEEN_AFTER

    @property
    def seems_unseen(self) -> bool:
        """Whether a sign of life is due; also where the clock was stepped back behind the last one."""
        return not timedelta(0) <= self.now - self.seen_at < SEEN_EVERY


@dataclass(frozen=True, slots=True)
class Ticked:
    """What one step of a schedule did.

    Args:
        enqueued: jobs that it added.
        held_back: ticks without a job, as an open one has the schedule's unique key.
        has_more: the step was full; more may be due.
    """

    stored: StoredSchedule
    enqueued: int = 0
    held_back: int = 0
    has_more: bool = False


def look(catalog: Catalog, names: Sequence[str] | None) -> Operation[list[StoredSchedule]]:
    """Return these schedules, or all of them, by name; those that were never registered are missing."""
    rows = yield catalog.statement("cron_look", {"names": None if names is None else list(names)})
    return [_stored(row) for row in rows]


def register(catalog: Catalog, name: str, definition: Definition) -> Operation[None]:
    """Begin a schedule from now on, unless there is one of this name."""
    yield catalog.statement("cron_register", {"name": name} | _columns(definition))


def sign(catalog: Catalog, names: Sequence[str]) -> Operation[None]:
    """Give a sign of life for schedules that have had none for a while."""
    yield catalog.statement("cron_sign", {"names": list(names), "every": SEEN_EVERY.total_seconds()})


def step(
    catalog: Catalog,
    name: str,
    definition: Definition,
    *,
    adopts: bool,
    due: Callable[[datetime, datetime], Due],
    draft: Callable[[datetime], JobDraft],
    notify: bool,
) -> Operation[Ticked | None]:
    """Enqueue what is due of a schedule and move it on. It needs a transaction around it.

    Args:
        definition: ours; where another one stands there, ours takes its place if it may.
        adopts: it may, as this worker has just started; otherwise only where nobody is left with the other one.
        due: returns what is due of ours between the last tick and now.
        draft: makes the job of a tick.

    Returns:
        None where somebody else holds it, or where it has another definition that is not ours to change.
    """
    rows = yield catalog.statement("cron_hold", {"name": name})
    if not rows:
        return None
    stored = _stored(rows[0])
    last_tick = stored.last_tick
    if stored.definition != definition:
        if not (adopts or stored.is_unseen):
            return None
        if not stored.definition.has_ticks_of(definition):
            # From now on; where the others are gone, from then on.
            since = stored.now if adopts else min(stored.seen_at, stored.now)
            last_tick = max(last_tick, since)
    found = due(last_tick, stored.now)
    added = 0
    for tick in found.ticks:
        added += yield from _enqueue(catalog, draft(tick), notify=notify)
    if found.last_tick > stored.last_tick or stored.definition != definition:
        moved = {"name": name, "last_tick": found.last_tick.isoformat()}
        yield catalog.statement("cron_move", moved | _columns(definition))
    return Ticked(
        replace(stored, definition=definition, last_tick=max(stored.last_tick, found.last_tick)),
        enqueued=added,
        held_back=len(found.ticks) - added,
        has_more=found.has_more,
    )


def _enqueue(catalog: Catalog, job: JobDraft, *, notify: bool) -> Operation[bool]:
    try:
        receipt = yield from jobs.enqueue(catalog, job, notify=notify)
    except DedupeConflict:
        return False  # an open one, from before the arguments were changed
    return receipt.created


def _columns(definition: Definition) -> dict[str, str]:
    return {"task": definition.task, "expression": definition.expression, "timezone": definition.timezone}


def _stored(row: Row) -> StoredSchedule:
    name, task, expression, timezone, last_tick, seen_at, now = row
    return StoredSchedule(
        name, Definition(task, expression, timezone), instant(last_tick), instant(seen_at), instant(now)
    )
