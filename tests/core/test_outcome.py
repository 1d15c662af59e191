"""Every way a publish can end, and what it does to the row."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.backoff import Backoff
from fencepost.core.outcome import (
    Action,
    Cancelled,
    Dead,
    Deferred,
    Delivered,
    Disabled,
    Done,
    Failed,
    Foreign,
    Refused,
    Release,
    Reschedule,
    Result,
    RetryPolicy,
    TimedOut,
    Unclear,
    Unstarted,
    Verified,
    decide,
)
from fencepost.core.states import TRANSITIONS, Attempts, Event, Outcome, Recovery, State

SECOND = timedelta(seconds=1)
POLICY = RetryPolicy(max_attempts=3, backoff=Backoff(SECOND, 60 * SECOND), max_age=timedelta(days=1))
UNKNOWN = Dead(Event.UNKNOWN_OUTCOME, Outcome.UNKNOWN_OUTCOME, "x", is_unknown=True)
UNCLEAR = replace(UNKNOWN, is_unknown=False)
"""An earlier attempt may have arrived, and this one published nothing."""
YOUNG, OLD = timedelta(0), timedelta(days=1)


def decided(
    result: Result, *, attempt: int = 1, recovery: Recovery = Recovery.AUTO, age: timedelta = YOUNG
) -> Action:
    return decide(result, POLICY, attempt=attempt, recovery=recovery, age=age, fraction=0.5)


def test_delivered_is_done_and_unstarted_is_released() -> None:
    assert decided(Delivered()) == Done()
    assert decided(Unstarted()) == Release()


def test_delivered_is_done_whatever_else_is_true() -> None:
    assert decided(Delivered(), attempt=99, recovery=Recovery.MANUAL, age=100 * OLD) == Done()


@pytest.mark.parametrize("result", [Foreign("x"), Disabled("x")])
def test_what_is_no_failure_of_the_message_waits_with_all_its_attempts_however_old_it_is(result: Result) -> None:
    kept = Reschedule(Event.DEFER, timedelta(0), "x", refund_attempt=True)
    assert decided(result) == kept
    assert decided(result, attempt=99, age=OLD) == kept


FAILURES: list[tuple[Result, bool]] = [(Failed("x"), False), (TimedOut("x"), True)]
"""What fails, and whether it may have arrived all the same."""


@pytest.mark.parametrize(("result", "unknown"), FAILURES)
def test_a_failure_is_retried_after_half_its_window(result: Result, unknown: bool) -> None:
    assert decided(result, attempt=2) == Reschedule(
        Event.RETRY, 2 * SECOND, "x", refund_attempt=False, is_unknown=unknown
    )


@pytest.mark.parametrize(("result", "unknown"), FAILURES)
@pytest.mark.parametrize("attempt", [3, 4, 5_000])
def test_the_last_attempt_ends_in_exhausted(result: Result, unknown: bool, attempt: int) -> None:
    assert decided(result, attempt=attempt) == Dead(Event.EXHAUST, Outcome.EXHAUSTED, "x", unknown)


def test_past_its_age_a_failure_or_defer_is_expired() -> None:
    expired = Dead(Event.EXPIRE, Outcome.EXPIRED, "x")
    assert decided(Failed("x"), age=OLD) == expired
    assert decided(Deferred(SECOND, "x"), age=OLD) == expired
    assert isinstance(decided(Failed("x"), age=OLD - SECOND), Reschedule)


def test_without_an_age_limit_nothing_expires() -> None:
    action = decide(
        Failed("x"), RetryPolicy(), attempt=1, recovery=Recovery.AUTO, age=timedelta(days=9_999), fraction=0
    )
    assert isinstance(action, Reschedule)


def test_a_defer_gives_the_attempt_back_and_may_repeat_past_the_limit() -> None:
    assert decided(Deferred(7 * SECOND, "not yet"), attempt=99) == Reschedule(
        Event.DEFER, 7 * SECOND, "not yet", refund_attempt=True
    )


def test_a_negative_defer_is_due_at_once() -> None:
    action = decided(Deferred(-SECOND, "x"))
    assert isinstance(action, Reschedule)
    assert action.delay == timedelta(0)


@pytest.mark.parametrize(
    ("wish", "delay"),
    [(None, 1), (timedelta(0), 1), (-5 * SECOND, 1), (10 * SECOND, 10), (timedelta(days=400), 60)],
)
def test_a_receivers_wish_only_ever_slows_down_and_is_capped(wish: timedelta | None, delay: int) -> None:
    action = decided(Failed("429", delay=wish))
    assert isinstance(action, Reschedule)
    assert action.delay == delay * SECOND


def test_refusals_are_dead_at_once() -> None:
    assert decided(Refused("no")) == Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "no")
    assert decided(Refused("no", unroutable=True)) == Dead(Event.UNROUTABLE, Outcome.UNROUTABLE, "no")


@pytest.mark.parametrize("result", [TimedOut("x"), Cancelled("x")])
def test_an_unknown_outcome_under_manual_recovery_is_left_to_a_person(result: Result) -> None:
    assert decided(result, recovery=Recovery.MANUAL) == UNKNOWN
    assert decided(result, recovery=Recovery.MANUAL, attempt=99) == UNKNOWN


@pytest.mark.parametrize("result", [TimedOut("x"), Cancelled("x")])
def test_an_unknown_outcome_to_be_verified_comes_again_and_is_left_to_a_person_at_the_limit(
    result: Result,
) -> None:
    again = decided(result, recovery=Recovery.VERIFY, attempt=2)
    assert isinstance(again, Reschedule)
    assert (again.is_unknown, again.refund_attempt) == (True, False)
    assert decided(result, recovery=Recovery.VERIFY, attempt=3) == UNKNOWN


@pytest.mark.parametrize("result", [Failed("x"), TimedOut("x"), Failed("x", unverified=True)])
def test_an_outage_never_takes_a_message_to_be_verified_back_to_its_first_attempt(result: Result) -> None:
    """The attempt is what tells the next claim to ask."""
    for attempt in range(1, 9):
        action = decide(
            result,
            POLICY,
            attempt=attempt,
            recovery=Recovery.VERIFY,
            age=YOUNG,
            fraction=0.5,
            is_outage=True,
        )
        assert isinstance(action, Reschedule)
        assert action.refund_attempt is (attempt > 1)
        assert action.event is (Event.OUTAGE if attempt > 1 else Event.RETRY)


def test_past_its_age_an_unknown_outcome_to_be_verified_is_left_to_a_person() -> None:
    assert decided(TimedOut("x"), recovery=Recovery.VERIFY, age=OLD) == UNKNOWN
    assert decided(TimedOut("x"), age=OLD) == Dead(Event.EXPIRE, Outcome.EXPIRED, "x", is_unknown=True)


def test_a_failure_to_verify_is_retried_and_left_to_a_person_at_the_limit_or_past_the_age() -> None:
    failure = Failed("x", unverified=True)
    assert decided(failure, recovery=Recovery.VERIFY, attempt=2) == Reschedule(
        Event.RETRY, 2 * SECOND, "x", refund_attempt=False
    )
    assert decided(failure, recovery=Recovery.VERIFY, attempt=3) == UNCLEAR
    assert decided(failure, recovery=Recovery.VERIFY, age=OLD) == UNCLEAR


def test_a_known_failure_of_what_is_to_be_verified_is_as_any_other() -> None:
    dead = Dead(Event.EXHAUST, Outcome.EXHAUSTED, "x")
    assert decided(Failed("x"), recovery=Recovery.VERIFY, attempt=3) == dead


def test_what_is_verified_is_done_and_what_nobody_can_tell_is_left_to_a_person() -> None:
    assert decided(Verified(), recovery=Recovery.VERIFY) == Done(verified=True)
    assert decided(Unclear("x"), recovery=Recovery.VERIFY) == UNCLEAR


def test_a_known_failure_under_manual_recovery_is_an_ordinary_retry() -> None:
    assert isinstance(decided(Failed("x"), recovery=Recovery.MANUAL), Reschedule)


def test_what_was_cut_off_in_flight_is_due_at_once_and_keeps_its_attempt() -> None:
    assert decided(Cancelled("x"), attempt=3) == Reschedule(
        Event.CANCELLED, timedelta(0), "x", refund_attempt=False, is_unknown=True
    )


RESULTS: list[Result] = [
    Delivered(),
    Failed("x"),
    TimedOut("x"),
    Deferred(SECOND, "x"),
    Refused("x"),
    Refused("x", unroutable=True),
    Cancelled("x"),
    Unstarted(),
    Verified(),
    Unclear("x"),
    Failed("x", unverified=True),
]


@given(
    result=st.sampled_from(RESULTS),
    attempt=st.integers(1, 10_000),
    recovery=st.sampled_from(list(Recovery)),
    age=st.timedeltas(timedelta(0), timedelta(days=10_000)),
    fraction=st.floats(0, 1),
)
def test_every_decision_is_a_fenced_transition_of_the_table(
    result: Result, attempt: int, recovery: Recovery, age: timedelta, fraction: float
) -> None:
    action = decide(result, POLICY, attempt=attempt, recovery=recovery, age=age, fraction=fraction)
    step = TRANSITIONS[State.PROCESSING, action.event]
    assert step.fenced
    assert not step.raises_token
    match action:
        case Reschedule(delay=delay, refund_attempt=refund):
            assert step.to is State.PENDING
            assert timedelta(0) <= delay <= POLICY.backoff.cap
            assert refund == (step.attempts is Attempts.REFUNDED)
        case Dead(outcome=outcome):
            assert (step.to, step.outcome) == (State.DEAD, outcome)
        case Done():
            assert step.to is State.DONE
        case Release():
            assert (step.to, step.attempts) == (State.PENDING, Attempts.REFUNDED)
