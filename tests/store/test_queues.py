"""Queues have settings of their own, for all workers: pause, weight and the others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Outbox
from fencepost.config import DispatcherSettings
from fencepost.core.operation import run
from fencepost.core.queue import CHANGEABLE, USUAL_LEASE, USUAL_PUBLISH_TIMEOUT, QueueSettings
from fencepost.drivers import driver_for
from fencepost.errors import ConfigError
from fencepost.store import queues
from tests.store.rows import OUTBOX, Connection, add, claim

SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _no_settings(db: Connection) -> Iterator[None]:
    yield
    db.execute("DELETE FROM outbox_queue; DELETE FROM outbox_key")


def of(db: Connection, queue: str = "mail") -> QueueSettings:
    return {each.queue: each for each in OUTBOX.queues(db)}[queue]


# --- pause and resume ------------------------------------------------------------------------------------


def test_nothing_of_a_paused_queue_is_claimed(db: Connection) -> None:
    add(db, 2, queue="mail")
    add(db, 1, queue="sms")
    assert OUTBOX.pause_queue(db, "mail", "ann")
    assert [each.message.queue for each in claim(db, outbox=Outbox())] == ["sms"]
    assert claim(db, queues=["mail"]) == []
    assert OUTBOX.resume_queue(db, "mail", "ann")
    assert len(claim(db, queues=["mail"])) == 2


def test_it_says_whether_that_changed_anything_and_who_did_it(db: Connection) -> None:
    assert not OUTBOX.resume_queue(db, "mail", "ann")
    assert OUTBOX.pause_queue(db, "mail", "ann")
    paused = of(db)
    assert not OUTBOX.pause_queue(db, "mail", "bob")
    assert of(db) == paused
    assert (paused.paused, paused.changed_by) == (True, "ann")
    assert OUTBOX.resume_queue(db, "mail", "bob")
    assert (of(db).paused, of(db).changed_by) == (False, "bob")
    assert of(db).changed_at is not None


def test_a_pause_keeps_the_other_settings_and_they_keep_the_pause(db: Connection) -> None:
    OUTBOX.set_queue(db, "mail", "ann", weight=7, lease=30 * SECOND)
    OUTBOX.pause_queue(db, "mail", "ann")
    OUTBOX.set_queue(db, "mail", "ann", concurrency=3)
    found = of(db)
    assert (found.paused, found.weight, found.lease, found.concurrency) == (True, 7, 30 * SECOND, 3)


def test_a_claim_that_began_before_the_pause_commits_goes_on_and_none_after_it(
    db: Connection, db2: Connection
) -> None:
    add(db, 10, queue="mail")
    with db.transaction():
        OUTBOX.pause_queue(db, "mail", "ann")
        assert len(claim(db2, batch=3, queues=["mail"])) == 3  # nobody waits for the pause
    assert claim(db2, batch=3, queues=["mail"]) == []
    with db.transaction():
        OUTBOX.resume_queue(db, "mail", "ann")
        assert claim(db2, batch=3, queues=["mail"]) == []
    assert len(claim(db2, batch=3, queues=["mail"])) == 3


def test_crash_suspects_wait_as_well(db: Connection) -> None:
    add(db, 1, queue="mail")
    claim(db)
    db.execute("UPDATE outbox SET lease_until = now() - interval '1 s'")
    OUTBOX.pause_queue(db, "mail", "ann")
    assert claim(db, outbox=Outbox(), queues=["mail"]) == []


def test_a_resume_wakes_the_workers(db: Connection, db2: Connection) -> None:
    db2.execute(f'LISTEN "{OUTBOX.catalog.names.channel}"')
    OUTBOX.pause_queue(db, "mail", "ann")
    Outbox(notify=False).resume_queue(db, "mail", "ann")
    OUTBOX.pause_queue(db, "mail", "ann")
    db.execute("SELECT pg_notify(%s, 'mark')", [OUTBOX.catalog.names.channel])
    OUTBOX.resume_queue(db, "mail", "ann")
    assert [notice.payload for notice in db2.notifies(timeout=20, stop_after=2)] == ["mark", ""]


def test_a_pause_decided_before_the_last_change_is_none(db: Connection) -> None:
    def is_paused(age: float) -> bool:
        pause = queues.set_paused(
            OUTBOX.catalog, "mail", True, actor="w1", notify=False, reason="gone", age=timedelta(seconds=age)
        )
        assert run(pause, driver_for(db).execute) is of(db).paused
        return of(db).paused

    assert is_paused(60)  # made just now, but changed by nobody
    OUTBOX.resume_queue(db, "mail", "ann")
    assert not is_paused(60)
    assert of(db).changed_by == "ann"
    db.execute("UPDATE outbox_queue SET changed_at = changed_at - interval '61 s'")
    assert is_paused(60)


# --- settings --------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "weight": 1_000,
    "concurrency": 10_000,
    "lease": timedelta(days=1),
    "publish_timeout": timedelta(microseconds=1),
    "max_attempts": 1_000_000,
    "backoff_base": timedelta(microseconds=1),
    "backoff_cap": timedelta(days=365),
    "sequenced": True,
    "ledger": True,
    "rate": 0.5,
    "breaker_failures": 0,
    "breaker_cap": timedelta(days=1),
}


def test_what_is_set_stands_and_what_is_not_mentioned_stays(db: Connection) -> None:
    assert set(EVERYTHING) == set(CHANGEABLE)
    expected: dict[str, Any] = {}
    for name, chosen in EVERYTHING.items():
        found = OUTBOX.set_queue(db, "mail", "ann", **{name: chosen})
        expected[name] = chosen
        assert {each: getattr(found, each) for each in expected} == expected
        assert found == of(db)
    for name in EVERYTHING:
        found = OUTBOX.set_queue(db, "mail", "bob", **{name: None})
        assert getattr(found, name) == getattr(QueueSettings(queue="mail"), name)
        assert found.changed_by == "bob"
    assert [each.queue for each in OUTBOX.queues(db)] == ["mail"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rate": 0}, "rate: must be a number of messages a second, from 0.001 to 1000000"),
    ({"rate": True}, "rate: "),
    ({"rate": float("nan")}, "rate: "),
    ({"breaker_failures": -1}, "breaker_failures: must be a whole number from 0 .never open. to 1000000"),
    ({"breaker_cap": timedelta(0)}, "breaker_cap: must be a duration above 0, at most a day"),
    ({"weight": 0}, "weight: must be a whole number from 1 to 1000"),
    ({"weight": 1_001}, "weight: "),
    ({"weight": True}, "weight: "),
    ({"weight": 1.0}, "weight: "),
    ({"concurrency": 0}, "concurrency: must be a whole number from 1 to 10000"),
    ({"concurrency": 10_001}, "concurrency: "),
    ({"lease": timedelta(milliseconds=99)}, "lease: must be a duration from 0.1 s to a day"),
    ({"lease": timedelta(days=1, seconds=1)}, "lease: "),
    ({"lease": 60}, "lease: "),
    ({"publish_timeout": timedelta(0)}, "publish_timeout: must be a duration above 0"),
    ({"max_attempts": 0}, "max_attempts: "),
    ({"max_attempts": 1_000_001}, "max_attempts: "),
    ({"backoff_base": timedelta(0)}, "backoff_base: "),
    ({"backoff_cap": timedelta(days=366)}, "backoff_cap: "),
    ({"sequenced": 1}, "sequenced: must be true or false"),
    ({"ledger": "yes"}, "ledger: must be true or false"),
    ({"lease": SECOND, "publish_timeout": SECOND}, "publish_timeout: a publish may take 1 s but the lease ends"),
    ({"backoff_base": 2 * SECOND, "backoff_cap": SECOND}, "backoff_base: 2 s is above backoff_cap, 1 s"),
    ({"paused": True}, "queues have no setting 'paused'"),
    ({"nosuch": 1}, "queues have no setting 'nosuch'"),
    ({}, "say what to change: weight, concurrency"),
]


@pytest.mark.parametrize(("changes", "says"), BAD)
def test_what_cannot_work_is_refused_before_any_database_work(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        OUTBOX.set_queue(None, "mail", "ann", **changes)


NAMES = ["", "a b", "a/b", "é", "a\x00", "\ud800", "a\n", "x" * 101, None, 7]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_queue_can_have(name: Any) -> None:
    for attempt in (
        lambda: OUTBOX.pause_queue(None, name, "ann"),
        lambda: OUTBOX.resume_queue(None, name, "ann"),
        lambda: OUTBOX.set_queue(None, name, "ann", weight=1),
    ):
        with pytest.raises(ConfigError, match="queue"):
            attempt()


def test_the_longest_name(db: Connection) -> None:
    assert OUTBOX.pause_queue(db, "x" * 100, "ann")


def test_what_cannot_work_with_what_stands_there_changes_nothing(db: Connection) -> None:
    OUTBOX.set_queue(db, "mail", "ann", publish_timeout=20 * SECOND, backoff_cap=SECOND)
    before = of(db)
    for changes in ({"lease": 20 * SECOND}, {"backoff_base": 2 * SECOND}):
        with pytest.raises(ConfigError, match=r"lower publish_timeout or raise lease|above backoff_cap"):
            OUTBOX.set_queue(db, "mail", "bob", **changes)  # type: ignore[arg-type]
    assert of(db) == before
    OUTBOX.set_queue(db, "mail", "bob", lease=5 * SECOND, publish_timeout=None)


def test_the_usual_settings_are_those_of_workers() -> None:
    usual = DispatcherSettings()
    assert (usual.lease, usual.publish_timeout) == (USUAL_LEASE, USUAL_PUBLISH_TIMEOUT)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"lease": 5 * SECOND}, "lease"),
        ({"lease": 10 * SECOND}, "lease"),
        ({"lease": 11 * SECOND}, None),
        ({"publish_timeout": 60 * SECOND}, "publish_timeout"),
        ({"publish_timeout": 59 * SECOND}, None),
        ({"lease": 5 * SECOND, "publish_timeout": SECOND}, None),
        ({}, None),
    ],
)
def test_what_does_not_fit_the_usual_settings_of_workers_is_warned_of(
    settings: dict[str, Any], warned: str | None
) -> None:
    found = QueueSettings(queue="mail", **settings).warnings()
    assert [name for name, _ in found] == ([] if warned is None else [warned])
    for _, text in found:
        assert "does not serve this queue" in text


def test_two_operators_at_once_both_have_their_way(db: Connection, url: str) -> None:
    """The second waits for the first, also where there was no row before, and keeps what it set."""
    with psycopg.connect(url) as second:
        with db.transaction():
            OUTBOX.set_queue(db, "mail", "ann", weight=3)
            second.execute("SET LOCAL lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                OUTBOX.set_queue(second, "mail", "bob", concurrency=5)
            second.rollback()
        OUTBOX.set_queue(second, "mail", "bob", concurrency=5)
    assert (of(db).weight, of(db).concurrency, of(db).changed_by) == (3, 5, "bob")


def test_names_that_no_store_can_keep_stop_nobody(db: Connection) -> None:
    OUTBOX.pause_queue(db, "mail", "\udcff\x00")
    assert of(db).changed_by == "\\udcff\\x00"


# --- numbers of keys -------------------------------------------------------------------------------------


def test_numbers_go_on_where_they_ended_after_a_time_without(db: Connection) -> None:
    def numbers() -> list[int | None]:
        add(db, 2, queue="mail", ordering_key="k")
        return [each.message.key_sequence for each in claim(db) if not OUTBOX.mark_done(db, each)]

    OUTBOX.set_queue(db, "mail", "ann", sequenced=True)
    assert numbers() == [1, 2]
    OUTBOX.set_queue(db, "mail", "ann", sequenced=False)
    assert numbers() == [None, None]
    OUTBOX.set_queue(db, "mail", "ann", sequenced=True)
    assert numbers() == [3, 4]


# --- what else the command line asks ---------------------------------------------------------------------


def test_whether_a_queue_has_open_messages(db: Connection) -> None:
    def has_open(queue: str) -> bool:
        return run(queues.has_open(OUTBOX.catalog, queue), driver_for(db).execute)

    assert not has_open("mail")
    add(db, 1, queue="mail")
    assert has_open("mail")
    assert not has_open("mai")
    OUTBOX.mark_done(db, claim(db))
    assert not has_open("mail")
