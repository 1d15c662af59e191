"""Outcomes of a batch, and the rounds in which a key's messages go out."""

from __future__ import annotations

from fencepost.errors import Permanent
from fencepost.publishers.batching import BEHIND, Outcomes, rounds
from fencepost.testing import sample_message


def test_a_failure_stops_what_is_behind_it_and_not_what_is_before() -> None:
    keys = ["k", "k", "k", "other", None]
    outcomes = Outcomes([sample_message(ordering_key=key) for key in keys])
    bad = Permanent("too large")
    outcomes.failed(1, bad)
    assert [outcomes.may_go(place) for place in range(5)] == [True, False, False, True, True]
    assert outcomes.as_list()[1] is bad
    assert str(outcomes.as_list()[2]) == BEHIND
    outcomes.failed(0, Permanent("too"))
    assert outcomes.as_list()[1] is bad, "its own failure says more"


def test_a_failure_without_a_key_stops_nothing() -> None:
    outcomes = Outcomes([sample_message(), sample_message()])
    outcomes.failed(0, Permanent("too large"))
    assert outcomes.may_go(1)


def test_rounds_have_a_message_of_a_key_at_most() -> None:
    keys = ["a", None, "a", "b", None, "a", "b"]
    assert rounds([sample_message(ordering_key=key) for key in keys]) == [[0, 1, 3, 4], [2, 6], [5]]
    assert rounds([]) == []
