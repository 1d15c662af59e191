"""Order through the shipped dispatcher: one message of a key after another, whatever happens to the first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Defer, Delivery, Message, Permanent, Retryable
from fencepost.runtime import reaper
from tests.runtime.box import Box, locked, running, until
from tests.runtime.journal import SHORT, Journal, Step, hangs, waits_for

LONG_POLL = timedelta(seconds=5)
"""So long that nothing in these tests may have waited for it."""


def attempts(box: Box, ids: list[int]) -> list[int]:
    return [box.row(each)["attempts"] for each in ids]


def states(box: Box, ids: list[int]) -> list[str]:
    return [box.row(each)["status"] for each in ids]


async def all_done(box: Box, ids: list[int]) -> None:
    await until(lambda: set(states(box, ids)) == {"done"}, f"the delivery of {len(ids)} messages")


# --- runs ------------------------------------------------------------------------------------------------


async def test_keys_go_in_parallel_and_each_one_message_after_another(box: Box) -> None:
    keys = ["a", "b", "c"]
    ids: dict[str, list[int]] = {key: [] for key in keys}
    for _ in range(10):
        for key in keys:
            ids[key] += box.enqueue(1, ordering_key=key)
    together = asyncio.Barrier(3)

    async def meets(message: Message, delivery: Delivery) -> None:
        await together.wait()  # never opens unless all three keys are being published at once

    journal = Journal({ids[key][0]: [meets] for key in keys}, pause=0.001)
    async with running(box.dispatcher(journal)):
        await until(lambda: box.statuses() == {"done": 30})
    for key in keys:
        assert [each for each in journal.started if journal.keys[each] == key] == ids[key]
        assert journal.most_at_once[key] == 1


async def test_one_claim_takes_a_run(box: Box) -> None:
    ids = box.enqueue(7, ordering_key="k")
    journal = Journal()
    async with box.dispatcher(journal) as dispatcher:
        assert await dispatcher.dispatch_once() == 7
    assert journal.accepted == ids
    assert set(states(box, ids)) == {"done"}


FAILURES: dict[str, Callable[[], Step]] = {
    "retry": lambda: Retryable("later"),
    "defer": lambda: Defer(timedelta(milliseconds=300), "not yet"),
    "permanent": lambda: Permanent("never"),
    "time-out": lambda: hangs,
    "unexpected": lambda: ZeroDivisionError("boom"),
    "system exit": lambda: SystemExit(3),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.parametrize("place", [0, 2])
async def test_where_one_fails_the_rest_of_its_run_goes_back_as_if_never_claimed(
    box: Box, failure: Callable[[], Step], place: int
) -> None:
    ids = box.enqueue(5, ordering_key="k")
    failing = ids[place]
    step = failure()
    journal = Journal({failing: [step]})
    other = box.enqueue(1, ordering_key="other")
    dispatcher = box.dispatcher(journal, publish_timeout=SHORT)
    async with dispatcher:
        await dispatcher.dispatch_once()
        assert [each for each in journal.started if each not in other] == ids[: place + 1]
        assert states(box, ids[:place] + other) == ["done"] * (place + 1)
        assert states(box, ids[place + 1 :]) == ["pending"] * (4 - place)
        assert attempts(box, ids[place + 1 :]) == [0] * (4 - place)
        assert dispatcher.counters.released == 4 - place
    async with running(box.dispatcher(journal, publish_timeout=SHORT)):
        if isinstance(step, Permanent):
            await until(lambda: states(box, ids[place + 1 :]) == ["blocked"] * (4 - place))
            assert journal.started.count(failing) == 1
            with box.conn.transaction():
                box.outbox.retry_dead(box.conn, [failing], "ann")
        await all_done(box, ids)
    assert journal.accepted.index(failing) < min(journal.started.index(each) for each in ids[place + 1 :])
    assert journal.first_acceptances("k") == ids
    assert attempts(box, ids[place + 1 :]) == [1] * (4 - place)
    assert journal.most_at_once["k"] == 1


async def test_what_is_parked_behind_a_delayed_head_comes_after_it(box: Box) -> None:
    (head,) = box.enqueue(1, ordering_key="k", delay=timedelta(milliseconds=500))
    followers = box.enqueue(20, ordering_key="k")
    journal = Journal()
    dispatcher = box.dispatcher(journal, batch=4, poll_interval=LONG_POLL)
    async with running(dispatcher):
        await until(lambda: states(box, followers) == ["blocked"] * 20)
        assert journal.started == []
        await all_done(box, [head, *followers])
    assert dispatcher.counters.parked == 20
    assert journal.started == [head, *followers]
    assert attempts(box, followers) == [1] * 20


async def test_a_manual_time_out_in_a_run_is_left_to_a_person_and_so_is_what_follows(box: Box) -> None:
    ids = box.enqueue(4, ordering_key="k", recovery="manual")
    journal = Journal({ids[1]: [hangs]})
    async with running(box.dispatcher(journal, publish_timeout=SHORT)):
        await until(lambda: states(box, ids) == ["done", "dead", "blocked", "blocked"])
        assert box.row(ids[1])["outcome"] == "unknown_outcome"
        with box.conn.transaction():
            box.outbox.skip_dead(box.conn, [ids[1]], "ann")
        await all_done(box, ids)
    assert journal.accepted == [ids[0], ids[2], ids[3]]


async def test_past_its_age_a_failing_head_is_dead_and_blocks_its_key(box: Box) -> None:
    ids = box.enqueue(3, ordering_key="k")
    box.conn.execute("UPDATE outbox SET created_at = now() - interval '2 days' WHERE id = %s", [ids[0]])
    journal = Journal({ids[0]: [Retryable("no")]})
    async with running(box.dispatcher(journal, max_age=timedelta(days=1))):
        await until(lambda: states(box, ids) == ["dead", "blocked", "blocked"])
    assert box.row(ids[0])["outcome"] == "expired"
    assert journal.started == ids[:1]


async def test_numbers_of_a_sequenced_queue_reach_the_publisher(box: Box) -> None:
    box.outbox.set_queue(box.conn, "counted", "ann", sequenced=True)
    for _ in range(3):
        box.enqueue(1, queue="counted", ordering_key="k")
        box.enqueue(1, queue="counted", ordering_key="l")
        box.enqueue(1, queue="counted")
    journal = Journal()
    async with running(box.dispatcher(journal)):
        await until(lambda: box.statuses() == {"done": 9})
    numbers: dict[str | None, list[int | None]] = {"k": [], "l": [], None: []}
    for message in journal.messages:
        numbers[message.ordering_key].append(message.key_sequence)
    assert numbers == {"k": [1, 2, 3], "l": [1, 2, 3], None: [None] * 3}


# --- dead heads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["retry", "skip"])
async def test_a_dead_head_blocks_its_key_only_until_somebody_frees_it(box: Box, action: str) -> None:
    ids = box.enqueue(30, ordering_key="k")
    journal = Journal({ids[0]: [Permanent("no")]})
    async with running(box.dispatcher(journal, batch=10, poll_interval=LONG_POLL)):
        await until(lambda: states(box, ids) == ["dead"] + ["blocked"] * 29)
        others = box.enqueue(10, ordering_key="free") + box.enqueue(10)
        await all_done(box, others)
        assert [each for each in journal.started if each in ids] == ids[:1]
        free = box.outbox.retry_dead if action == "retry" else box.outbox.skip_dead
        started = time.monotonic()
        with box.conn.transaction():
            assert free(box.conn, [ids[0]], "ann") == [ids[0]]
        await all_done(box, ids)
        assert time.monotonic() - started < 2  # it was not left to the poll
    assert journal.first_acceptances("k") == (ids if action == "retry" else ids[1:])


async def test_keys_of_two_types_of_aggregate_with_one_id_are_two(box: Box) -> None:
    orders = box.enqueue(2, aggregate=("order", "1"), ordered=True)
    invoices = box.enqueue(2, aggregate=("invoice", "1"), ordered=True)
    unordered = box.enqueue(2, aggregate=("order", "1"))
    journal = Journal({orders[0]: [Permanent("no")]})
    async with running(box.dispatcher(journal)):
        await all_done(box, invoices + unordered)
        await until(lambda: states(box, orders) == ["dead", "blocked"])


async def test_what_somebody_deleted_a_head_from_goes_on_by_itself(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "STRANDED_PAUSE", 0.05)
    ids = box.enqueue(5, ordering_key="k")
    journal = Journal({ids[0]: [Permanent("no")]})
    async with running(box.dispatcher(journal)):
        await until(lambda: states(box, ids) == ["dead"] + ["blocked"] * 4)
        box.conn.execute("DELETE FROM outbox WHERE id = %s", [ids[0]])
        await all_done(box, ids[1:])
    assert journal.accepted == ids[1:]


# --- several workers, lost leases ------------------------------------------------------------------------


async def test_two_dispatchers_on_one_hot_key(box: Box) -> None:
    ids = box.enqueue(100, ordering_key="k")
    journal = Journal({each: [Retryable("once")] for each in ids[::17]})
    one, two = (box.dispatcher(journal, owner=f"w{n}", batch=8) for n in range(2))
    async with running(one), running(two):
        await all_done(box, ids)
    assert journal.accepted == ids
    assert journal.most_at_once["k"] == 1
    assert one.counters.lost_leases + two.counters.lost_leases == 0
    failed = set(ids[::17])
    assert attempts(box, ids) == [2 if each in failed else 1 for each in ids]


async def notices_the_loss_and_delivers(message: Message, delivery: Delivery) -> None:
    await delivery.lost


async def notices_the_loss_and_fails(message: Message, delivery: Delivery) -> None:
    await delivery.lost
    raise Retryable("lost")


@pytest.mark.parametrize("step", [notices_the_loss_and_delivers, notices_the_loss_and_fails])
async def test_a_lost_lease_in_a_run_lets_nothing_overtake(box: Box, step: Callable[..., Any]) -> None:
    ids = box.enqueue(4, ordering_key="k")
    journal = Journal({ids[0]: [step]})
    dispatcher = box.dispatcher(journal, publish_timeout=timedelta(seconds=1.9))
    async with dispatcher:
        first = asyncio.create_task(dispatcher.dispatch_once())
        await until(lambda: journal.started)
        box.expire(ids[0])
        (stolen,) = box.outbox.claim(box.conn, "thief")
        assert stolen.id == ids[0]
        before = box.row(ids[0])
        await first
        assert box.row(ids[0]) == before
        assert dispatcher.counters.lost_leases == 1
        # Were they published now, none of them could be closed before the one that is in other hands.
        assert journal.started == ids[:1]
        assert states(box, ids[1:]) == ["pending"] * 3
        assert attempts(box, ids[1:]) == [0] * 3
    with box.conn.transaction():
        assert box.outbox.mark_done(box.conn, stolen) == []
    async with running(box.dispatcher(journal)):
        await all_done(box, ids)
    done_at = [box.row(each)["done_at"] for each in ids]
    assert done_at == sorted(done_at)
    expected = ids if step is notices_the_loss_and_delivers else ids[1:]
    assert journal.first_acceptances("k") == expected


async def test_a_message_put_back_by_hand_comes_before_the_one_in_flight(box: Box) -> None:
    ids = box.enqueue(2, ordering_key="k")
    gate = asyncio.Event()
    journal = Journal({ids[1]: [waits_for(gate)]})
    async with running(box.dispatcher(journal, publish_timeout=timedelta(seconds=1.9))):
        await until(lambda: states(box, ids) == ["done", "processing"] and ids[1] in journal.started)
        box.conn.execute(
            "UPDATE outbox SET status = 'pending', outcome = NULL, done_at = NULL WHERE id = %s", [ids[0]]
        )
        gate.set()
        await all_done(box, ids)
    rows = [box.row(each) for each in ids]
    assert rows[0]["done_at"] <= rows[1]["done_at"]
    # The second one, too late in the first round, was published again in its turn.
    assert journal.started == [ids[0], ids[1], ids[0], ids[1]]


@pytest.mark.parametrize("place", [0, 3])
async def test_a_row_that_somebody_locks_holds_up_its_key_from_there_on_and_nothing_else(
    box: Box, place: int
) -> None:
    ids = box.enqueue(6, ordering_key="k")
    journal = Journal()
    async with contextlib.AsyncExitStack() as stack:
        with locked(box, ids[place]):
            await stack.enter_async_context(running(box.dispatcher(journal, batch=10)))
            others = box.enqueue(10, ordering_key="other") + box.enqueue(10)
            await all_done(box, others + ids[:place])
            assert [each for each in journal.started if each in ids] == ids[:place]
        await all_done(box, ids)
    assert journal.first_acceptances("k") == ids


# --- stops and slow keys ---------------------------------------------------------------------------------


async def test_a_stop_in_mid_run_gives_the_rest_back(box: Box) -> None:
    ids = box.enqueue(10, ordering_key="k")
    gate = asyncio.Event()
    journal = Journal({ids[2]: [waits_for(gate)]})
    dispatcher = box.dispatcher(journal, publish_timeout=timedelta(seconds=1.9))
    async with running(dispatcher) as task:
        await until(lambda: journal.started == ids[:3])
        dispatcher.stop()
        gate.set()
        assert await task
    assert journal.accepted == ids[:3]
    assert states(box, ids) == ["done"] * 3 + ["pending"] * 7
    assert attempts(box, ids) == [1] * 3 + [0] * 7


async def test_a_run_that_is_cut_off_at_the_end_of_the_grace_time(box: Box) -> None:
    ids = box.enqueue(5, ordering_key="k")
    journal = Journal({ids[1]: [hangs]})
    dispatcher = box.dispatcher(journal, publish_timeout=timedelta(seconds=1.9), grace=timedelta(0))
    async with running(dispatcher) as task:
        await until(lambda: journal.started == ids[:2])
        dispatcher.stop()
        assert not await task
    assert states(box, ids) == ["done"] + ["pending"] * 4
    assert attempts(box, ids) == [1, 1, 0, 0, 0]


async def test_a_key_that_hangs_delays_no_other_one(box: Box) -> None:
    slow = box.enqueue(5, ordering_key="slow")
    others = [row_id for n in range(10) for row_id in box.enqueue(3, ordering_key=f"k{n}")]
    gate = asyncio.Event()
    journal = Journal({slow[0]: [waits_for(gate)]})
    options = {"lease": timedelta(seconds=30), "publish_timeout": timedelta(seconds=29)}
    async with running(box.dispatcher(journal, concurrency=2, **options)):
        await all_done(box, others)
        assert [each for each in journal.started if each in slow] == slow[:1]
        gate.set()
        await all_done(box, slow)


async def test_with_a_single_slot_a_key_that_hangs_costs_others_one_time_out(box: Box) -> None:
    slow = box.enqueue(3, ordering_key="slow")
    others = box.enqueue(10, ordering_key="k")
    journal = Journal({slow[0]: [hangs]})
    late: dict[str, Any] = {"backoff_base": timedelta(minutes=5), "backoff_cap": timedelta(minutes=10)}
    async with running(box.dispatcher(journal, concurrency=1, publish_timeout=SHORT, **late)):
        await all_done(box, others)
    assert journal.started == slow[:1] + others


async def test_pieces_of_a_long_run_come_back_before_the_lease_is_over(box: Box) -> None:
    """A key of slow messages is claimed in runs of about a second: a stop and other keys get their turn."""
    ids = box.enqueue(40, ordering_key="k")
    journal = Journal(pause=0.1)
    dispatcher = box.dispatcher(journal)
    async with running(dispatcher):
        await until(lambda: len(journal.accepted) >= 12)
        leased = [row_id for row_id, status in zip(ids, states(box, ids), strict=True) if status == "processing"]
        assert len(leased) < 25
    assert journal.accepted == ids[: len(journal.accepted)]
