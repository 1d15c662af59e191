"""Schedules as operations: each tick once, never back, and whose definition stands there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from fencepost.core.job import JobDraft
from fencepost.core.ticks import CatchUp, Due, due
from fencepost.store import schedules
from fencepost.store.schedules import SEEN_EVERY, UNSEEN_AFTER, Definition, StoredSchedule, Ticked
from tests.store.job_rows import CATALOG, JOBS, do
from tests.store.rows import Connection, value

MINUTE = timedelta(minutes=1)
OURS = Definition("plain", "* * * * *", "UTC")
OTHER_TASK = Definition("manual", "* * * * *", "UTC")
OTHER_TICKS = Definition("plain", "*/2 * * * *", "UTC")


def each_minute(after: datetime) -> Iterator[datetime]:
    tick = after.replace(second=0, microsecond=0)
    while True:
        tick += MINUTE
        yield tick


def step(
    db: Connection, definition: Definition = OURS, *, adopts: bool = False, found: Due | None = None, **job: Any
) -> Ticked | None:
    """Enqueue what is due, or what was ``found``; a job has its tick as arguments unless the test says more."""

    def draft(tick: datetime) -> JobDraft:
        options = {each: job[each] for each in job if each != "args"}
        return JOBS._draft(definition.task, job.get("args", tick.isoformat()), options)  # type: ignore[arg-type]  # its own options

    ticked: Ticked | None = do(
        db,
        schedules.step(
            CATALOG,
            "nightly",
            definition,
            adopts=adopts,
            due=lambda last, now: found or due(each_minute, last, now, CatchUp.ALL),
            draft=draft,
            notify=False,
        ),
    )
    return ticked


def stored(db: Connection) -> StoredSchedule:
    (found,) = do(db, schedules.look(CATALOG, ["nightly"]))
    assert isinstance(found, StoredSchedule)
    return found


@pytest.fixture
def schedule(db: Connection) -> None:
    """Registered a little more than three minutes ago, so that three ticks are due."""
    do(db, schedules.register(CATALOG, "nightly", OURS))
    db.execute("UPDATE outbox_cron SET last_tick = date_trunc('minute', now()) - interval '3 minutes'")


def ticks(db: Connection) -> list[str]:
    found: list[str] = value(db, "SELECT coalesce(array_agg(args #>> '{}' ORDER BY id), '{}') FROM outbox_job")
    return found


def test_it_begins_when_it_is_registered_and_only_once(db: Connection) -> None:
    assert do(db, schedules.look(CATALOG, None)) == []
    do(db, schedules.register(CATALOG, "nightly", OURS))
    first = stored(db)
    assert first.definition == OURS
    assert timedelta(0) <= first.now - first.last_tick < MINUTE
    do(db, schedules.register(CATALOG, "nightly", OTHER_TICKS))
    assert stored(db).definition == OURS
    assert [each.name for each in do(db, schedules.look(CATALOG, None))] == ["nightly"]


def test_each_tick_is_enqueued_once_and_the_schedule_stands_there(db: Connection, schedule: None) -> None:
    begin = stored(db).last_tick
    found = step(db)
    assert found is not None
    assert found.enqueued >= 3
    assert not found.has_more
    assert ticks(db)[:3] == [(begin + n * MINUTE).isoformat() for n in (1, 2, 3)]
    assert stored(db).last_tick == found.stored.last_tick == begin + found.enqueued * MINUTE
    again = step(db)
    assert again is not None
    assert len(ticks(db)) == found.enqueued + again.enqueued
    assert len(set(ticks(db))) == len(ticks(db))


def test_whoever_comes_while_another_is_at_it_goes_by(db: Connection, db2: Connection, schedule: None) -> None:
    with db2.transaction(), db.transaction():
        db2.execute("SELECT FROM outbox_cron FOR UPDATE")
        db.execute("SET LOCAL lock_timeout = '5s'")
        assert step(db) is None
    assert ticks(db) == []


def test_it_never_goes_back(db: Connection, schedule: None) -> None:
    """Whatever the clock does: a definition that is put there writes the row in any case."""
    begin = stored(db).last_tick
    found = step(db, OTHER_TASK, adopts=True, found=Due((), begin - timedelta(hours=1)))
    assert found is not None
    assert found.stored.last_tick == stored(db).last_tick == begin
    assert stored(db).definition == OTHER_TASK


def test_a_step_writes_nothing_where_nothing_is_due(db: Connection) -> None:
    do(db, schedules.register(CATALOG, "nightly", OURS))
    db.execute("UPDATE outbox_cron SET last_tick = now() + interval '1 hour'")
    before = value(db, "SELECT xmin::text FROM outbox_cron")
    found = step(db)
    assert found is not None
    assert found.enqueued == 0
    assert value(db, "SELECT xmin::text FROM outbox_cron") == before


def test_another_definition_is_left_alone_while_its_workers_live(db: Connection, schedule: None) -> None:
    assert step(db, OTHER_TASK) is None
    assert stored(db).definition == OURS
    assert ticks(db) == []


def test_who_has_just_started_puts_its_own_there_from_now_on(db: Connection, schedule: None) -> None:
    found = step(db, OTHER_TICKS, adopts=True)
    assert found is not None
    assert found.enqueued == 0  # the ticks of the other one are not ours
    after = stored(db)
    assert after.definition == OTHER_TICKS
    assert timedelta(0) <= after.now - after.last_tick < MINUTE


def test_with_the_same_ticks_what_is_due_stays_due(db: Connection, schedule: None) -> None:
    found = step(db, OTHER_TASK, adopts=True)
    assert found is not None
    assert found.enqueued >= 3
    assert stored(db).definition == OTHER_TASK


def test_what_nobody_declares_any_more_is_taken_over_from_its_last_sign_of_life(
    db: Connection, schedule: None
) -> None:
    db.execute(
        "UPDATE outbox_cron SET last_tick = now() - interval '1 day', seen_at = now() - interval '1 s' * %s",
        [2 * UNSEEN_AFTER.total_seconds()],
    )
    assert stored(db).is_unseen
    found = step(db, OTHER_TICKS)
    assert found is not None
    assert 1 <= found.enqueued <= 3
    assert stored(db).definition == OTHER_TICKS
    assert not stored(db).is_unseen


def test_a_tick_waits_for_none_where_an_open_job_has_its_unique_key(db: Connection, schedule: None) -> None:
    found = step(db, unique_key="one", args="always")
    assert found is not None
    assert (found.enqueued, ticks(db)) == (1, ["always"])
    assert found.held_back >= 2
    db.execute("UPDATE outbox_cron SET last_tick = date_trunc('minute', now()) - interval '1 minute'")
    changed = step(db, unique_key="one", args="changed meanwhile")
    assert changed is not None
    assert (changed.enqueued, changed.held_back >= 1, ticks(db)) == (0, True, ["always"])


def test_signs_of_life_are_given_now_and_then(db: Connection, schedule: None) -> None:
    def seen() -> str:
        text: str = value(db, "SELECT seen_at::text FROM outbox_cron")
        return text

    first = seen()
    assert not stored(db).seems_unseen
    do(db, schedules.sign(CATALOG, ["nightly"]))
    assert seen() == first
    for shift in (-SEEN_EVERY, timedelta(hours=1)):  # the last one is long ago; the clock was stepped back
        db.execute("UPDATE outbox_cron SET seen_at = now() + %s", [shift])
        assert stored(db).seems_unseen
        do(db, schedules.sign(CATALOG, ["others", "nightly"]))
        assert not stored(db).seems_unseen
