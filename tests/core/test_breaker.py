"""When failures open a breaker, and how long it waits for its probes."""

from __future__ import annotations

from datetime import timedelta

from fencepost.core.breaker import FailureCount, SlowStart, pause_before_probe

SECOND = timedelta(seconds=1)


def test_as_many_messages_as_the_threshold_open_it() -> None:
    count = FailureCount(3, 3)
    assert [count.failed(n, unavailable=False) for n in (1, 2, 3)] == [False, False, True]


def test_one_message_that_always_fails_never_does() -> None:
    count = FailureCount(3, 3)
    assert not any(count.failed(7, unavailable=False) for _ in range(1_000))


def test_one_message_does_where_the_destination_cannot_be_reached() -> None:
    count = FailureCount(3, 3)
    assert [count.failed(7, unavailable=True) for _ in range(3)] == [False, False, True]


def test_the_two_kinds_are_counted_apart() -> None:
    count = FailureCount(3, 3)
    assert not any([count.failed(1, unavailable=False), count.failed(2, unavailable=False)])
    assert not any([count.failed(1, unavailable=True), count.failed(1, unavailable=True)])
    assert count.failed(3, unavailable=False)


def test_in_a_shared_queue_more_messages_must_fail_but_to_be_out_of_reach_is_the_same() -> None:
    count = FailureCount(2, 8)
    assert [count.failed(n, unavailable=False) for n in range(8)] == [False] * 7 + [True]
    count = FailureCount(2, 8)
    assert [count.failed(n, unavailable=True) for n in range(2)] == [False, True]


def test_a_threshold_of_zero_is_never() -> None:
    count = FailureCount(0, 0)
    assert not any(count.failed(n, unavailable=True) for n in range(100))


def test_a_slow_start_doubles_with_each_round_that_is_delivered_and_halves_with_a_failure() -> None:
    start = SlowStart()
    widths = []
    for _ in range(5):
        widths.append(start.most)
        for _ in range(start.most):
            start.delivered()
    assert widths == [1, 2, 4, 8, 16]
    start.failed()
    assert start.most == 16
    for _ in range(10):
        start.failed()
    assert start.most == 1


def test_pauses_double_from_a_second_to_the_cap_for_any_number_of_probes() -> None:
    cap, long = 30 * SECOND, 300 * SECOND
    pauses = [pause_before_probe(trips, cap, None, long) for trips in (0, 1, 2, 3, 4, 5, 6, 1_000_000_000)]
    assert [each.total_seconds() for each in pauses] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pause_before_probe(0, SECOND / 10, None, long) == SECOND / 10


def test_a_wish_makes_it_longer_never_shorter_and_has_a_bound() -> None:
    cap, long = 30 * SECOND, 300 * SECOND
    assert pause_before_probe(0, cap, 120 * SECOND, long) == 120 * SECOND
    assert pause_before_probe(5, cap, SECOND, long) == 30 * SECOND
    assert pause_before_probe(0, cap, timedelta(days=365), long) == long


def test_more_failures_of_an_open_breaker_keep_it_so_and_take_no_memory() -> None:
    count = FailureCount(3, 3)
    assert [count.failed(n, unavailable=False) for n in range(100)][2:] == [True] * 98
    assert len(count.messages) == 3
