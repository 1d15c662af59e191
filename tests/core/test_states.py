"""The table is consistent in itself; `tests.store.test_transitions` holds the database to it."""

from __future__ import annotations

import pytest

from fencepost.core.states import (
    DEAD_OUTCOMES,
    DONE_OUTCOMES,
    OPEN_STATES,
    TRANSITIONS,
    Attempts,
    Event,
    Outcome,
    State,
    attempts_after,
    transition,
)

OPERATORS = {Event.OPERATOR_RETRY, Event.OPERATOR_SKIP}
PLACES = {Event.PARK, Event.PROMOTE}


def test_an_outcome_stands_exactly_on_closed_states_and_of_the_right_kind() -> None:
    for rule in TRANSITIONS.values():
        expected = {State.DONE: DONE_OUTCOMES, State.DEAD: DEAD_OUTCOMES}.get(rule.to, frozenset({None}))
        assert rule.outcome in expected
    assert sorted(DONE_OUTCOMES | DEAD_OUTCOMES) == sorted(Outcome)


def test_closed_states_are_left_only_by_operators() -> None:
    leaving = {event for state, event in TRANSITIONS if state not in OPEN_STATES}
    assert leaving == OPERATORS
    assert not [event for state, event in TRANSITIONS if state is State.DONE]


def test_a_write_is_fenced_or_raises_the_token_never_both() -> None:
    """Nobody holds what is parked or promoted, and it stays the same message: nothing is to be fenced off."""
    for (_, event), rule in TRANSITIONS.items():
        assert rule.fenced + rule.raises_token == (0 if event in PLACES else 1)


def test_parking_and_promoting_change_the_place_in_the_queue_and_nothing_else() -> None:
    moves = {(state, event): rule for (state, event), rule in TRANSITIONS.items() if event in PLACES}
    assert {(state, event, rule.to) for (state, event), rule in moves.items()} == {
        (State.PENDING, Event.PARK, State.BLOCKED),
        (State.BLOCKED, Event.PROMOTE, State.PENDING),
    }
    assert {rule.attempts for rule in moves.values()} == {Attempts.KEPT}


def test_only_a_claim_of_a_pending_message_parks() -> None:
    """A follower that is given back goes to pending: whoever blocked it must hold the head's lock."""
    assert {state for (state, _), rule in TRANSITIONS.items() if rule.to is State.BLOCKED} == {State.PENDING}


def test_a_claim_does_to_a_parked_message_what_it_does_to_a_pending_one() -> None:
    for event in (Event.CLAIM, Event.CLAIM_OVER_LIMIT):
        assert transition(State.BLOCKED, event) == transition(State.PENDING, event)


def test_only_the_holder_of_a_lease_is_fenced() -> None:
    assert {state for (state, _), rule in TRANSITIONS.items() if rule.fenced} == {State.PROCESSING}


def test_every_attempt_is_charged_at_a_claim_and_nowhere_else() -> None:
    charging = {event for (_, event), rule in TRANSITIONS.items() if rule.attempts is Attempts.CHARGED}
    assert charging == {Event.CLAIM, Event.RECLAIM}
    refunding = {event for (_, event), rule in TRANSITIONS.items() if rule.attempts is Attempts.REFUNDED}
    assert refunding == {Event.DEFER, Event.OUTAGE, Event.RELEASE}


@pytest.mark.parametrize(
    ("change", "after"), [(Attempts.KEPT, 3), (Attempts.CHARGED, 4), (Attempts.REFUNDED, 2), (Attempts.RESET, 0)]
)
def test_what_a_change_makes_of_three_attempts(change: Attempts, after: int) -> None:
    assert attempts_after(3, change) == after


def test_a_refund_never_goes_below_zero() -> None:
    assert attempts_after(0, Attempts.REFUNDED) == 0


def test_what_the_table_does_not_name_is_an_error() -> None:
    assert transition(State.PENDING, Event.CLAIM).to is State.PROCESSING
    with pytest.raises(KeyError):
        transition(State.DONE, Event.CLAIM)


def test_every_open_state_can_be_left_and_every_state_reached() -> None:
    assert {state for state, _ in TRANSITIONS} >= OPEN_STATES
    assert {rule.to for rule in TRANSITIONS.values()} == set(State)
