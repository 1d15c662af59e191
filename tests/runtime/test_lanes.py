"""Lanes, slots, turns and terms: what decides what is published beside what, without a database."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from fencepost import DispatcherSettings, Message, Route
from fencepost.core.lease import TrustWindow
from fencepost.core.queue import QueueSettings
from fencepost.core.records import Claimed
from fencepost.core.states import Recovery
from fencepost.publishers.callable import Invocable
from fencepost.runtime.held import Holding
from fencepost.runtime.lanes import FAST, LINGER, LONGEST_RUN_SECONDS, Lane, Slots, lanes_of
from fencepost.runtime.queues import MOST_GUESSES, RECENT_SECONDS, Queues
from fencepost.runtime.routes import Router
from fencepost.runtime.terms import Terms, terms_of
from fencepost.testing import sample_message

SETTINGS = DispatcherSettings(owner="w")


def holding(row_id: int, key: str | None = None, event_type: str = "single") -> Holding:
    message = sample_message(event_type, id=row_id, ordering_key=key)
    lease = timedelta(seconds=60)
    claimed = Claimed(message, 1, 1, 12, Recovery.AUTO, lease, 0)
    return Holding(TrustWindow(0.0, 60.0), 0.0, claimed, terms_of(SETTINGS, QueueSettings(queue="default")))


async def single(message: Message) -> None:
    """Take one at a time."""


class Batches:
    async def publish_batch(self, messages: Sequence[Any], deliveries: Sequence[Any]) -> list[None]:
        return [None] * len(messages)


ROUTER = Router([Route("single", single), Route("one", Batches()), Route("two", Batches())])


def shape(lanes: Sequence[Lane]) -> list[tuple[list[int], bool]]:
    return [([each.claimed.id for each in lane.holdings], lane.bulk is not None) for lane in lanes]


# --- lanes -----------------------------------------------------------------------------------------------


def test_unordered_messages_have_a_lane_each_and_a_key_has_one() -> None:
    holdings = [holding(1, "a"), holding(2), holding(3, "b"), holding(4, "a"), holding(5), holding(6, "a")]
    lanes = lanes_of(holdings, ROUTER, 100)
    assert shape(lanes) == [([1, 4, 6], False), ([2], False), ([3], False), ([5], False)]
    assert [lane.width for lane in lanes] == [1, 1, 1, 1]


def test_batches_hold_keys_in_their_order_and_are_as_wide_as_their_messages() -> None:
    holdings = [
        holding(1, "a", "one"),
        holding(2, None, "two"),
        holding(3, "a", "one"),
        holding(4, None, "one"),
        holding(5),
    ]
    lanes = lanes_of(holdings, ROUTER, 100)
    assert shape(lanes) == [([5], False), ([1, 3, 4], True), ([2], True)]
    assert [lane.width for lane in lanes] == [1, 3, 1]


def test_a_key_whose_messages_go_to_several_publishers_is_published_in_turn() -> None:
    holdings = [holding(1, "a", "one"), holding(2, "a", "two"), holding(3, "b", "one"), holding(4, "b", "single")]
    assert shape(lanes_of(holdings, ROUTER, 100)) == [([1, 2], False), ([3, 4], False)]


def test_what_has_no_route_has_a_lane_of_its_own() -> None:
    assert shape(lanes_of([holding(1, "a", "nobody"), holding(2, "a", "one")], ROUTER, 100)) == [([1, 2], False)]


def test_what_is_to_be_verified_first_goes_in_turn_with_all_of_its_key_and_the_rest_in_a_batch() -> None:
    again = holding(2, "a", "one")
    again.claimed = again.claimed._replace(recovery=Recovery.VERIFY, attempt=2)
    holdings = [holding(1, "a", "one"), again, holding(3, None, "one"), holding(4, "b", "one")]
    assert shape(lanes_of(holdings, ROUTER, 100)) == [([1, 2], False), ([3, 4], True)]


def test_batches_are_divided_at_their_width_but_no_key_is() -> None:
    holdings = [holding(n, "k" if 3 <= n <= 7 else None, "one") for n in range(1, 11)]
    assert shape(lanes_of(holdings, ROUTER, 4)) == [([1, 2], True), ([3, 4, 5, 6, 7], True), ([8, 9, 10], True)]


# --- slots -----------------------------------------------------------------------------------------------


def slots(limit: int) -> Slots:
    return Slots(limit, lambda: None, lambda _: None)


def lane(width: int) -> Lane:
    made = [holding(n, None, "one") for n in range(width)]
    publisher = ROUTER.find("default", made[0].claimed)
    assert isinstance(publisher, Invocable)
    return Lane(made, publisher)


def test_before_publishes_are_known_to_be_fast_nothing_is_claimed_ahead() -> None:
    assert slots(10).claimable(100, 0, 0.0) == 10
    fast = slots(10)
    fast.paced(0.001, 1)
    assert fast.claimable(100, 0, 0.0) == 30
    assert fast.claimable(4, 0, 0.0) == 18  # two batches ahead, or as many as have slots


def test_slow_publishes_are_not_claimed_ahead() -> None:
    slow = slots(10)
    slow.paced(0.0, 1)
    for _ in range(10):
        slow.paced(2 * FAST, 1)
    assert slow.claimable(100, 0, 0.0) == 10
    slow.taken = 10
    assert slow.claimable(100, 0, 0.0) == 0


def test_the_longest_run_takes_about_a_second() -> None:
    some = slots(10)
    for seconds in (0.001, 0.1, 0.5, 3.0):
        for _ in range(60):
            some.paced(seconds, 1)
        assert some.longest_run == max(1, int(LONGEST_RUN_SECONDS / seconds)) or seconds < 0.01
    for _ in range(100):
        some.paced(0.0, 1)
    assert 100 <= some.longest_run <= 10_000


def test_a_little_room_lingers_for_more_and_then_is_used() -> None:
    some = slots(100)
    some.taken = 97
    assert some.claimable(100, 0, 5.0) == 0
    assert some.claimable(100, 0, 5.0 + LINGER / 2) == 0
    assert some.claimable(100, 0, 5.0 + LINGER) == 3
    assert some.short_since is None
    some.taken = 0
    assert some.claimable(100, 0, 6.0) == 100


def test_what_is_in_line_or_unwritten_takes_room() -> None:
    some = slots(10)
    some.paced(0.0, 1)
    some.line.append(lane(5))
    assert some.claimable(100, 0, 0.0) == 25
    assert some.claimable(100, 20, 0.0) == 0
    some.taken = 20
    assert some.claimable(100, 0, 0.0) == 0  # there is something to do: no lingering for the rest
    assert some.short_since is None


def test_a_lane_starts_where_it_fits_or_where_nothing_else_goes() -> None:
    some = slots(4)
    some.taken = 2
    assert some.fits(lane(2))
    assert not some.fits(lane(3))
    some.taken = 0
    assert some.fits(lane(9))


def test_beside_publishes_that_do_not_end_others_go_on_until_these_hold_every_slot() -> None:
    some = slots(4)
    some.taken, some.stuck = 2, 2
    assert some.fits(lane(2))
    assert some.fits(lane(4))  # it would wait for ever
    some.threads.abandoned = 1
    assert some.fits(lane(4))
    some.threads.abandoned = 2
    assert some.is_stuck
    assert not some.fits(lane(1))
    some.paced(0.0, 1)
    assert some.claimable(100, 0, 0.0) == 0


# --- terms -----------------------------------------------------------------------------------------------


def terms(**own: Any) -> Terms:
    return terms_of(SETTINGS, QueueSettings(queue="q", **own))


def test_a_queue_without_settings_has_the_worker_s() -> None:
    mine = terms()
    assert (mine.concurrency, mine.lease, mine.publish_timeout, mine.beat_every) == (
        100,
        SETTINGS.lease,
        10.0,
        20.0,
    )
    assert mine.policy == SETTINGS.policy
    assert (mine.paused, mine.weight, mine.problems) == (False, 1, ())


@pytest.mark.parametrize(("batch", "usual"), [(1, 100), (25, 100), (100, 400), (10_000, 10_000)])
def test_where_publishers_take_batches_four_of_them_are_usual(batch: int, usual: int) -> None:
    settings = DispatcherSettings(owner="w", batch=batch)
    queue = QueueSettings(queue="q")
    assert terms_of(settings, queue).concurrency == 100
    assert terms_of(settings, queue, takes_batches=True).concurrency == usual
    told = DispatcherSettings(owner="w", batch=batch, concurrency=7)
    assert terms_of(told, queue, takes_batches=True).concurrency == 7
    own = QueueSettings(queue="q", concurrency=9)
    assert terms_of(told, own, takes_batches=True).concurrency == 9


def test_a_queue_takes_batches_where_all_that_is_in_it_does() -> None:
    bulk = Batches()
    router = Router([Route("a", bulk), Route("b", bulk)], {"single": single, "bulk": bulk})
    assert [router.takes_batches(queue) for queue in ("default", "single", "bulk")] == [True, False, True]
    assert not ROUTER.takes_batches("default")
    assert not Router([Route("a", bulk), Route("b", to="bulk")], {"bulk": bulk}).takes_batches("default")


def test_a_queue_s_own_settings_come_first() -> None:
    second = timedelta(seconds=1)
    mine = terms(
        paused=True,
        weight=7,
        concurrency=3,
        lease=6 * second,
        publish_timeout=2 * second,
        max_attempts=4,
        backoff_base=second,
        backoff_cap=5 * second,
    )
    assert (mine.paused, mine.weight, mine.concurrency) == (True, 7, 3)
    assert (mine.lease, mine.publish_timeout, mine.beat_every) == (6 * second, 2.0, 2.0)
    assert (mine.policy.max_attempts, mine.policy.backoff.base, mine.policy.backoff.cap) == (4, second, 5 * second)
    assert mine.problems == ()


def test_heartbeats_come_at_a_third_of_the_queue_s_lease_or_as_often_as_the_worker_wants() -> None:
    often = DispatcherSettings(owner="w", heartbeat=timedelta(seconds=5))
    assert terms_of(often, QueueSettings(queue="q")).beat_every == 5
    short = QueueSettings(queue="q", lease=timedelta(seconds=12))
    assert terms_of(often, QueueSettings(queue="q", lease=timedelta(seconds=90))).beat_every == 5
    assert terms_of(often, short).beat_every == 4


@pytest.mark.parametrize(
    ("own", "setting"),
    [
        ({"lease": timedelta(seconds=5)}, "publish_timeout"),
        ({"publish_timeout": timedelta(seconds=60)}, "publish_timeout"),
        ({"backoff_base": timedelta(seconds=301)}, "backoff_base"),
        ({"backoff_cap": timedelta(milliseconds=1)}, "backoff_base"),
    ],
    ids=str,
)
def test_what_cannot_work_together_with_the_worker_s_settings_is_said(own: dict[str, Any], setting: str) -> None:
    (problem,) = terms(**own).problems
    assert problem.startswith(setting)


# --- turns -----------------------------------------------------------------------------------------------


def queues(*own: QueueSettings, **options: Any) -> Queues:
    made = Queues(DispatcherSettings(owner="w", **options), lambda queue: False)
    made.learn(own)
    return made


def serve(some: Queues, many: int, batch: int = 10) -> Counter[str]:
    served: Counter[str] = Counter()
    for _ in range(many):
        first = next(some.in_turn())
        some.charge(first, batch)
        served[first.queue] += 1
    return served


def test_queues_are_served_by_weight() -> None:
    some = queues(QueueSettings(queue="b", weight=3))
    some.found_due(["a", "b"])
    assert serve(some, 400) == {"a": 100, "b": 300}


def test_what_counts_are_messages_not_turns() -> None:
    some = queues()
    some.found_due(["large", "small"])
    taken: Counter[str] = Counter()
    for _ in range(110):
        first = next(some.in_turn())
        many = 10 if first.queue == "large" else 1
        some.charge(first, many)
        taken[first.queue] += many
    assert abs(taken["large"] - taken["small"]) <= 10


def test_many_queues_of_any_weight_all_get_their_turn() -> None:
    some = queues(QueueSettings(queue="q0", weight=1_000))
    some.found_due([f"q{n}" for n in range(200)])
    assert len(serve(some, 1_000 + 200)) == 200


def test_who_comes_back_after_a_rest_neither_catches_up_nor_waits() -> None:
    some = queues()
    some.found_due(["a", "b"])
    serve(some, 100)
    some.is_empty(some.terms("b"))
    some.found_due(["a"])
    serve(some, 100)
    some.found_due(["a", "b"])
    assert serve(some, 10) == {"a": 5, "b": 5}


def test_who_had_more_than_its_share_pays_for_it_when_it_comes_back_soon() -> None:
    some = queues()
    some.found_due(["a", "b"])
    some.charge(some.terms("a"), 100)
    some.is_empty(some.terms("a"))
    some.found_due(["a", "b"])
    assert next(some.in_turn()).queue == "b"


def test_a_queue_that_becomes_empty_in_mid_round_is_left_out() -> None:
    some = queues()
    some.found_due(["a", "b", "c"])
    seen = []
    for each in some.in_turn():
        seen.append(each.queue)
        some.is_empty(some.terms("b"))
    assert seen == ["a", "c"]
    assert some.due == ["a", "c"]


def test_paused_queues_have_no_turn_until_they_are_resumed() -> None:
    some = queues(QueueSettings(queue="a", paused=True))
    some.found_due(["a", "b"])
    assert some.due == ["b"]
    assert some.paused == ["a"]
    some.learn([])
    some.found_due(["a", "b"])
    assert some.due == ["a", "b"]
    assert some.paused == []


def test_settings_that_cannot_work_are_said_once_and_again_after_they_were_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    odd = QueueSettings(queue="odd", publish_timeout=timedelta(hours=1))
    some = queues(odd)
    for _ in range(3):
        some.learn([odd])
        some.found_due(["odd", "a"])
        assert some.due == ["a"]
    assert len(caplog.records) == 1
    assert "queue odd is not served" in caplog.text
    some.learn([QueueSettings(queue="odd")])
    some.found_due(["odd", "a"])
    assert some.due == ["odd", "a"]
    some.learn([odd])
    some.found_due(["odd", "a"])
    assert len(caplog.records) == 2


def test_the_shortest_lease_is_that_of_any_queue_that_is_served() -> None:
    def short(queue: str, seconds: float, timeout: float = 1) -> QueueSettings:
        lease = timedelta(seconds=seconds)
        return QueueSettings(queue=queue, lease=lease, publish_timeout=timedelta(seconds=timeout))

    assert queues().shortest_lease == 60
    assert queues(short("a", 5), short("b", 90)).shortest_lease == 5
    assert queues(short("a", 5, timeout=5)).shortest_lease == 60  # it is not served
    assert queues(short("a", 5), queues=["b"]).shortest_lease == 60


def test_queues_that_had_something_a_short_while_ago_are_taken_for_due() -> None:
    some = queues()
    some.found_due(["a", "b"])
    some.is_active(some.terms("a"), 100.0)
    some.found_due([])
    some.guess_due(100.0 + RECENT_SECONDS / 2)
    assert some.due == ["a"]
    some.found_due([])
    some.guess_due(100.0 + RECENT_SECONDS)
    assert some.due == []


def test_with_many_recent_queues_there_is_no_guess() -> None:
    some = queues()
    names = [f"q{n}" for n in range(MOST_GUESSES + 1)]
    some.found_due(names)
    for name in names:
        some.is_active(some.terms(name), 100.0)
    some.found_due([])
    some.guess_due(101.0)
    assert some.due == []


def test_queues_that_are_gone_are_forgotten() -> None:
    some = queues()
    for n in range(1_000):
        some.found_due([f"q{n}"])
        some.floor(f"q{n}").looked(0, 1, 0.0, 0.0)
        some.is_active(some.terms(f"q{n}"), float(n))
        some.found_due([])
        some.guess_due(float(n))
    assert len(some._floors) < 20
    assert len(some._pass) < 20
    assert len(some._recent) < 20


def test_the_run_of_a_key_is_as_long_as_a_batch_publisher_is_fast() -> None:
    """A hundred messages in half a second are five milliseconds each."""
    some = slots(limit=100)
    for _ in range(50):
        some.paced(0.5, 100)
    assert 150 < some.longest_run <= 200
    assert some.claimable(batch=100, unwritten=0, now=0.0) == 100, "batches ahead would wait for half a second"
