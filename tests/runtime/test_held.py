"""What a process holds: which leases are worth a heartbeat, and how a loss is told, without a database."""

from __future__ import annotations

from fencepost.core.lease import TrustWindow
from fencepost.runtime.held import OVERDUE_SECONDS, Held, Holding, Stage
from tests.runtime.holdings import BEAT, holding


def held(*holdings: Holding) -> Held[Holding]:
    made: Held[Holding] = Held()
    made.add(holdings)
    return made


def test_a_heartbeat_is_due_a_beat_after_the_last_one_or_where_nobody_asks_again_in_time() -> None:
    one = holding()
    assert held(one).to_beat(BEAT - 0.1, early=0.0) == []
    assert held(one).to_beat(BEAT, early=0.0) == [one]
    assert held(one).to_beat(BEAT - 0.1, early=0.2) == [one]


def test_what_ignores_its_time_out_has_no_more_heartbeats() -> None:
    one = holding()
    one.deadline = BEAT
    assert held(one).to_beat(BEAT + OVERDUE_SECONDS, early=0.0) == [one]
    assert held(one).to_beat(BEAT + OVERDUE_SECONDS + 0.1, early=0.0) == []


def test_a_lost_lease_is_told_once_and_has_no_more_heartbeats() -> None:
    lost, kept = holding(1), holding(2)
    all_of_them = held(lost, kept)
    assert all_of_them.lose([lost]) == [lost]
    assert bool(lost.lost)
    assert not kept.lost
    assert all_of_them.lose([lost]) == []
    assert all_of_them.to_beat(BEAT, early=0.0) == [kept]


def test_rows_with_the_same_id_and_token_are_two_after_a_failover_that_lost_the_first() -> None:
    lost, claimed = holding(1), holding(1)
    all_of_them = held(lost, claimed)
    assert all_of_them.to_beat(BEAT, early=0.0) == [lost, claimed]
    all_of_them.remove([lost])
    assert all_of_them.to_beat(BEAT, early=0.0) == [claimed]


def test_what_is_being_written_is_not_told_of_a_loss_since_its_write_will_be() -> None:
    one = holding()
    one.stage = Stage.FINALIZING
    assert held(one).lose([one]) == []
    assert not one.lost


def test_a_confirmed_heartbeat_moves_the_window_to_when_it_was_sent() -> None:
    one = holding()
    all_of_them = held(one)
    all_of_them.renewed([one], 30.0)
    assert one.window == TrustWindow(30.0, 60.0)
    assert all_of_them.to_beat(30.0, early=0.0) == []
    assert all_of_them.expired(89.9) == []
    assert all_of_them.expired(90.0) == [one]


def test_a_window_that_is_over_is_found_until_its_loss_is_told() -> None:
    one = holding()
    all_of_them = held(one)
    assert all_of_them.expired(59.9) == []
    assert all_of_them.expired(60.0) == [one]
    all_of_them.lose([one])
    assert all_of_them.expired(60.0) == []


def test_a_row_that_was_lost_and_claimed_anew_is_another_one() -> None:
    old, new = holding(token=1), holding(token=2)
    all_of_them = held(old, new)
    assert len(all_of_them) == 2
    all_of_them.remove([old])
    assert all_of_them.in_stage(Stage.WAITING) == [new]
