"""`core.states.TRANSITIONS` against the SQL: every event of the table, and every event where it is not allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from fencepost import Claimed, Outbox
from fencepost.core.job_states import JOB_TRANSITIONS
from fencepost.core.operation import run
from fencepost.core.outcome import (
    Cancelled,
    Deferred,
    Delivered,
    Failed,
    Refused,
    Result,
    RetryPolicy,
    Routed,
    TimedOut,
    Unstarted,
    Verified,
    decide,
)
from fencepost.core.states import TRANSITIONS, Event, Recovery, State, attempts_after
from fencepost.drivers import driver_for
from fencepost.store.finalize import finalize
from fencepost.store.order import promote
from tests.store.rows import LEASE, OUTBOX, Connection, Seen, add, claim, claim_one, expire, row

LIMIT = 5


@dataclass
class Case:
    """One row in some state, and whoever holds it."""

    db: Connection
    row_id: int
    recovery: Recovery
    key: str | None = None

    @property
    def seen(self) -> Seen:
        return row(self.db, self.row_id)

    def holder(self) -> Claimed:
        """Whoever knows the row's present token, whether it is still theirs or not."""
        shown = OUTBOX.show(self.db, self.row_id)
        assert shown is not None
        return Claimed(
            shown.message, shown.token, shown.attempts, 12, self.recovery, LEASE, 86_400_000_000, owner="w"
        )


# --- how a row gets into each state, with two attempts behind it ------------------------------------------


def pending(db: Connection, recovery: Recovery, key: str | None) -> Case:
    (row_id,) = add(db, recovery=str(recovery), ordering_key=key)
    for _ in range(2):
        OUTBOX.reschedule(db, claim_one(db), delay=timedelta(0), error="before")
    return Case(db, row_id, recovery, key)


def processing(db: Connection, recovery: Recovery, key: str | None) -> Case:
    case = pending(db, recovery, key)
    claim_one(db)
    return case


def done(db: Connection, recovery: Recovery, key: str | None) -> Case:
    case = processing(db, recovery, key)
    OUTBOX.mark_done(db, case.holder())
    return case


def dead(db: Connection, recovery: Recovery, key: str | None) -> Case:
    case = processing(db, recovery, key)
    OUTBOX.mark_dead(db, case.holder(), error="dead", outcome="expired")
    return case


def blocked(db: Connection, recovery: Recovery, key: str | None) -> Case:
    """Parked behind a dead message of its key."""
    head, follower = add(db, 2, recovery=str(recovery), ordering_key=key)
    change = "attempts = 2, last_error = 'before', lease_version = 2"
    db.execute(f"UPDATE outbox SET {change} WHERE id = %s".encode(), [follower])
    OUTBOX.mark_dead(db, claim_one(db, batch=1), error="dead")
    assert row(db, head).status == State.DEAD
    assert claim(db) == []
    return Case(db, follower, recovery, key)


REACH: dict[State, Callable[[Connection, Recovery, str | None], Case]] = {
    State.PENDING: pending,
    State.PROCESSING: processing,
    State.BLOCKED: blocked,
    State.DONE: done,
    State.DEAD: dead,
}

# --- how each event is made to happen ---------------------------------------------------------------------


DEFAULTS = RetryPolicy()
OLD = RetryPolicy(max_age=timedelta(hours=1))


def finished(
    result: Result, policy: RetryPolicy = DEFAULTS, attempt: int = 3, is_outage: bool = False
) -> Callable[[Case], None]:
    """A publish that ended so, decided by the core and written by the store."""

    def happen(case: Case) -> None:
        held = case.holder()
        action = decide(
            result,
            policy,
            attempt=attempt,
            recovery=held.recovery,
            age=timedelta(days=1),
            fraction=0.0,
            is_outage=is_outage,
        )
        run(finalize(OUTBOX.catalog, [(held, action)]), driver_for(case.db).execute)

    return happen


def claims(case: Case, limit: int = LIMIT) -> None:
    """Where it is parked, a message of its key that is due leads to it, once those before it are gone."""
    if case.seen.status == State.BLOCKED:
        remove_those_before(case)
        add(case.db, ordering_key=case.key)
    claim(case.db, outbox=Outbox(), max_attempts=limit, queues=["default"])


def claims_over_the_limit(case: Case) -> None:
    claims(case, limit=2)


def remove_those_before(case: Case) -> None:
    case.db.execute("DELETE FROM outbox WHERE id < %s", [case.row_id])


def reclaims(case: Case) -> None:
    expire(case.db)
    claim(case.db, outbox=Outbox(), max_attempts=LIMIT, queues=["default"])


def reaps(case: Case) -> None:
    expire(case.db)
    OUTBOX.reap(case.db, max_attempts=3)


def parks(case: Case) -> None:
    """A dead message of its key stands before it, and there is a claim."""
    case.db.execute(
        """
        INSERT INTO outbox (id, event_type, payload, ordering_key, status, outcome, dead_at, available_at)
        OVERRIDING SYSTEM VALUE
        VALUES (%s - 2, 'e', '1', %s, 'dead', 'permanent', now(), '9999-12-31 00:00:00+00')
        """,
        [case.row_id, case.key],
    )
    claim(case.db, outbox=Outbox(), max_attempts=LIMIT, queues=["default"])


def promotes(case: Case) -> None:
    remove_those_before(case)
    run(promote(OUTBOX.catalog, [("default", case.key or "")]), driver_for(case.db).execute)


CASES_OF_VERIFY: dict[Event, Callable[[Case], None]] = {
    Event.RECLAIM: reclaims,
    Event.REAP_UNKNOWN: reaps,
    Event.RETRY: finished(TimedOut("no answer")),
    Event.CANCELLED: finished(Cancelled()),
    Event.EXHAUST: finished(Failed("no"), attempt=12),
    Event.DELIVERED: finished(Verified()),
    Event.UNKNOWN_OUTCOME: finished(TimedOut("no answer"), attempt=12),
}
"""What happens where recovery is ``verify``, as far as that makes a difference."""

EVENTS: dict[Event, tuple[Callable[[Case], None], Recovery]] = {
    Event.CLAIM: (claims, Recovery.AUTO),
    Event.CLAIM_OVER_LIMIT: (claims_over_the_limit, Recovery.AUTO),
    Event.RECLAIM: (reclaims, Recovery.AUTO),
    Event.PARK: (parks, Recovery.AUTO),
    Event.PROMOTE: (promotes, Recovery.AUTO),
    Event.REAP_CRASHED: (reaps, Recovery.AUTO),
    Event.REAP_UNKNOWN: (reaps, Recovery.MANUAL),
    Event.DELIVERED: (finished(Delivered()), Recovery.AUTO),
    Event.RETRY: (finished(Failed("no")), Recovery.AUTO),
    Event.EXPAND: (finished(Routed(("kafka", "hook"))), Recovery.AUTO),
    Event.OUTAGE: (finished(Failed("no"), attempt=12, is_outage=True), Recovery.AUTO),
    Event.EXHAUST: (finished(Failed("no"), attempt=12), Recovery.AUTO),
    Event.DEFER: (finished(Deferred(timedelta(hours=1), "later")), Recovery.AUTO),
    Event.EXPIRE: (finished(Deferred(timedelta(hours=1), "later"), OLD), Recovery.AUTO),
    Event.PERMANENT_FAILURE: (finished(Refused("no")), Recovery.AUTO),
    Event.UNROUTABLE: (finished(Refused("no", unroutable=True)), Recovery.AUTO),
    Event.UNKNOWN_OUTCOME: (finished(TimedOut("no answer")), Recovery.MANUAL),
    Event.RELEASE: (finished(Unstarted()), Recovery.AUTO),
    Event.CANCELLED: (finished(Cancelled()), Recovery.AUTO),
    Event.OPERATOR_RETRY: (lambda case: void(OUTBOX.retry_dead(case.db, [case.row_id], actor="a")), Recovery.AUTO),
    Event.OPERATOR_SKIP: (lambda case: void(OUTBOX.skip_dead(case.db, [case.row_id], actor="a")), Recovery.AUTO),
}


def void(_: object) -> None:
    """For a lambda whose result does not matter."""


MESSAGE_EVENTS = sorted({event for _, event in TRANSITIONS})
"""What can happen to a message; jobs share most of these events, and have some of their own."""


def test_every_event_of_the_table_is_tried() -> None:
    assert set(EVENTS) == set(MESSAGE_EVENTS)
    of_jobs = {event for _, event in JOB_TRANSITIONS}
    assert set(Event) == set(MESSAGE_EVENTS) | of_jobs


CASES = [
    (state, event, key)
    for state in REACH
    for event in MESSAGE_EVENTS
    for key in (None, "k")
    # A claim is one or the other by the state of the row that it meets.
    if (state, event) != (State.PENDING, Event.RECLAIM)
    # What has no key waits for nothing, and is claimed.
    if key is not None or (state is not State.BLOCKED and (state, event) != (State.PENDING, Event.PARK))
]


@pytest.mark.parametrize(("state", "event", "key"), CASES)
def test_the_database_does_what_the_table_says_and_nothing_else(
    db: Connection, state: State, event: Event, key: str | None
) -> None:
    happen, recovery = EVENTS[event]
    case = REACH[state](db, recovery, key)
    before = case.seen
    assert before.status == state

    happen(case)

    after = case.seen
    rule = TRANSITIONS.get((state, event))
    if rule is None:
        if after.xmin != before.xmin:  # an expiry that the test itself wrote is no transition
            assert state is State.PROCESSING
        assert (after.status, after.outcome, after.attempts, after.token, after.reclaim_count) == (
            before.status,
            before.outcome,
            before.attempts,
            before.token,
            before.reclaim_count,
        )
        return
    assert after.status == rule.to
    assert after.outcome == rule.outcome
    assert after.attempts == attempts_after(before.attempts, rule.attempts)
    assert after.token == before.token + rule.raises_token
    assert (after.lease_left is not None) == (rule.to is State.PROCESSING)
    assert after.reclaim_count == (1 if event is Event.RECLAIM else 0)
    assert (after.due_in > 10**9) == (rule.to in {State.DEAD, State.BLOCKED} or event is Event.OPERATOR_SKIP)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("event", CASES_OF_VERIFY)
def test_what_is_to_be_verified_goes_through_the_same_table(db: Connection, event: Event, key: str | None) -> None:
    case = processing(db, Recovery.VERIFY, key)
    before = case.seen
    CASES_OF_VERIFY[event](case)
    after, rule = case.seen, TRANSITIONS[State.PROCESSING, event]
    assert (after.status, after.outcome) == (rule.to, rule.outcome)
    assert after.attempts == attempts_after(before.attempts, rule.attempts)
    assert after.token == before.token + rule.raises_token
    assert case.holder().is_to_verify


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(("state", "event"), [pair for pair, rule in TRANSITIONS.items() if rule.fenced])
def test_every_fenced_event_bounces_off_a_raised_token(
    db: Connection, state: State, event: Event, key: str | None
) -> None:
    happen, recovery = EVENTS[event]
    case = REACH[state](db, recovery, key)
    held = case.holder()
    case.holder = lambda: held  # type: ignore[method-assign]  # it does not hear of what comes
    db.execute("UPDATE outbox SET lease_version = lease_version + 1")
    before = case.seen
    happen(case)
    assert case.seen.xmin == before.xmin
