"""Real workers, killed and frozen around a publish: what verify sees, and what the ledger tells of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import AsyncOutbox, Message, Permanent, Retryable
from fencepost.core.ledger import Attempt, AttemptResult, Cause
from fencepost.runtime import retention
from tests.runtime.box import Box, running, until, wait_until
from tests.runtime.journal import SHORT, Journal, Step, hangs
from tests.runtime.processes import Worker, worker
from tests.runtime.worker import PUBLISHED

DELIVERED, LOST = AttemptResult.DELIVERED, AttemptResult.LOST


@pytest.fixture
def shop(box: Box) -> Box:
    """A box whose publishes are recorded, and whose queue keeps a ledger."""
    box.conn.execute(PUBLISHED)
    box.outbox.set_queue(box.conn, "default", "ann", ledger=True)
    return box


def rows(box: Box, table: str, where: str = "true") -> list[tuple[Any, ...]]:
    return box.conn.execute(f"SELECT id, token FROM {table} WHERE {where} ORDER BY at").fetchall()


def told(box: Box, row_id: int) -> list[tuple[AttemptResult | None, bool, Cause | None]]:
    return [(each.result, each.lease_lost, each.cause) for each in box.outbox.attempts(box.conn, row_id)]


def kill_once(box: Box, condition: Callable[[], object], **options: Any) -> None:
    """Run a worker whose publishes hang, and kill it when it has come that far."""
    with worker(box.url, "victim", publish_timeout=1.9, **options) as victim:
        victim.ready()
        wait_until(condition)
        victim.send(signal.SIGKILL)
        victim.process.wait()


def finish(box: Box, owner: str = "healthy", **options: Any) -> None:
    with worker(box.url, owner, **options) as healthy:
        healthy.ready()
        wait_until(lambda: not {"pending", "processing"} & set(box.statuses()))


def test_killed_between_publish_and_result_it_is_verified_and_not_published_again(shop: Box) -> None:
    (row_id,) = shop.enqueue(event_type="hang", recovery="verify")
    kill_once(shop, lambda: rows(shop, "published"))
    finish(shop)
    assert rows(shop, "published") == [(row_id, 1)]
    assert rows(shop, "reached", "what = 'verify'") == [(row_id, 2)]
    assert shop.row(row_id)["outcome"] == "delivered"
    assert told(shop, row_id) == [(LOST, False, None), (AttemptResult.VERIFIED, False, Cause.WORKER_LOST)]


def test_killed_before_the_receiver_had_it_it_is_published_exactly_once(shop: Box) -> None:
    (row_id,) = shop.enqueue(event_type="late", recovery="verify")
    kill_once(shop, lambda: rows(shop, "reached"))
    finish(shop)
    assert rows(shop, "published") == [(row_id, 2)]
    assert rows(shop, "reached", "what = 'verify'") == [(row_id, 2)]
    assert told(shop, row_id) == [(LOST, False, None), (DELIVERED, False, Cause.WORKER_LOST)]


def test_killed_while_it_asks_the_next_one_asks_again(shop: Box) -> None:
    (row_id,) = shop.enqueue(event_type="hang", recovery="verify")
    kill_once(shop, lambda: rows(shop, "published"))
    kill_once(shop, lambda: rows(shop, "reached", "what = 'verify'"))
    finish(shop)
    assert rows(shop, "published") == [(row_id, 1)]
    assert rows(shop, "reached", "what = 'verify'") == [(row_id, 2), (row_id, 3)]
    assert [result for result, _, _ in told(shop, row_id)] == [LOST, LOST, AttemptResult.VERIFIED]


def test_killed_at_every_attempt_it_is_left_to_a_person(shop: Box) -> None:
    (row_id,) = shop.enqueue(event_type="hang", recovery="verify")
    kill_once(shop, lambda: rows(shop, "published"), max_attempts=2)
    kill_once(shop, lambda: rows(shop, "reached"), max_attempts=2)
    finish(shop, max_attempts=2)
    row = shop.row(row_id)
    assert (row["status"], row["outcome"], row["attempts"]) == ("dead", "unknown_outcome", 2)
    assert rows(shop, "published") == [(row_id, 1)]


def test_by_hand_it_is_left_to_a_person_at_the_first_crash(shop: Box) -> None:
    (row_id,) = shop.enqueue(event_type="hang", recovery="manual")
    kill_once(shop, lambda: rows(shop, "published"))
    finish(shop)
    assert shop.row(row_id)["outcome"] == "unknown_outcome"
    assert rows(shop, "published") == [(row_id, 1)]
    assert told(shop, row_id) == [(LOST, False, None)]


def test_frozen_past_its_lease_its_late_answer_stands_in_the_ledger_and_the_duplicate_has_its_cause(
    shop: Box,
) -> None:
    (row_id,) = shop.enqueue(event_type="hang")
    with worker(shop.url, "victim", publish_timeout=1.9) as victim:
        victim.ready()
        wait_until(lambda: rows(shop, "published"))
        victim.send(signal.SIGSTOP)
        finish(shop)
        assert told(shop, row_id) == [(LOST, False, None), (DELIVERED, False, Cause.WORKER_LOST)]
        victim.send(signal.SIGCONT)
        victim.send(signal.SIGTERM)
        assert victim.result()["lost_leases"] == 1
    assert rows(shop, "published") == [(row_id, 1), (row_id, 2)]
    first, second = shop.outbox.attempts(shop.conn, row_id)
    assert (first.result, first.lease_lost) == (AttemptResult.UNKNOWN, True)
    assert (second.cause, second.is_repeat) == (Cause.LEASE_LOST, True)


NAMED = {Cause.LEASE_LOST, Cause.WORKER_LOST, Cause.NO_ANSWER}


@pytest.mark.timeout(240)
def test_under_kills_and_freezes_every_publish_has_its_attempt_and_every_duplicate_its_cause(shop: Box) -> None:
    """I15. The receiver's own list is held against the ledger."""
    seed = int(os.environ.get("SEED", "20261130"))
    moments = random.Random(seed)  # noqa: S311 - a seed that is printed with every failure
    options: dict[str, Any] = {
        "batch": 10,
        "concurrency": 5,
        "lease": 1.0,
        "publish_timeout": 0.3,
        "max_attempts": 100,
    }
    shop.enqueue(150, event_type="slow")
    shop.enqueue(30, event_type="slow", recovery="verify")
    shop.enqueue(5, event_type="hang")
    with worker(shop.url, "frozen", **options) as frozen:
        frozen.ready()
        for turn in range(6):
            with worker(shop.url, f"victim{turn}", **options) as victim:
                victim.ready()
                wait_until(lambda t=turn: len(rows(shop, "published")) > 15 * t)  # type: ignore[misc]  # of this turn
                frozen.send(signal.SIGSTOP)
                shop.enqueue(20, event_type="slow")
                many = len(rows(shop, "published")) + moments.randint(1, 20)
                wait_until(
                    lambda v=victim, m=many: len(rows(shop, "published")) >= m or not waiting(shop, v)  # type: ignore[misc]  # of this turn
                )
                victim.send(signal.SIGKILL)
                victim.process.wait()
            frozen.send(signal.SIGCONT)
        finish(shop, **options)
        frozen.send(signal.SIGTERM)
        frozen.result()
    attempts: dict[int, list[Attempt]] = defaultdict(list)
    published = rows(shop, "published")
    for row_id in {row_id for row_id, _ in published}:
        attempts[row_id] = shop.outbox.attempts(shop.conn, row_id)
    seen: dict[int, set[int]] = defaultdict(set)
    duplicates = 0
    for row_id, token in published:
        made = {int(each.token): each for each in attempts[row_id]}
        where = f"message {row_id}, token {token}, seed {seed}: {attempts[row_id]}"
        assert token in made, where
        assert token not in seen[row_id], where
        if seen[row_id]:
            # Of two publishes, the one with the higher token is the repeat: a frozen worker's may come after it.
            duplicates += 1
            repeat = made[max(token, *seen[row_id])]
            assert repeat.is_repeat, where
            assert repeat.cause in NAMED, where
        seen[row_id].add(token)
    assert duplicates > 0, f"nothing arrived twice, seed {seed}"
    assert set(shop.statuses()) == {"done"}


def waiting(box: Box, victim: Worker) -> bool:
    """Whether there is anything left for a worker to do."""
    return victim.process.poll() is None and bool({"pending", "processing"} & set(box.statuses()))


# --- in one process --------------------------------------------------------------------------------------


async def test_every_end_of_a_publish_is_told(shop: Box) -> None:
    delivered, failed, timed_out, refused = (shop.enqueue(1, event_type=name)[0] for name in "abcd")
    script: dict[int, list[Step]] = {
        failed: [Retryable("busy")],
        timed_out: [hangs],
        refused: [Permanent("never")],
    }
    async with running(shop.dispatcher(Journal(script), publish_timeout=SHORT)):
        await until(lambda: not {"pending", "processing"} & set(shop.statuses()), "all closed")
    assert told(shop, delivered) == [(DELIVERED, False, None)]
    assert told(shop, failed) == [(AttemptResult.FAILED, False, None), (DELIVERED, False, Cause.FAILED)]
    assert told(shop, timed_out) == [(AttemptResult.UNKNOWN, False, None), (DELIVERED, False, Cause.NO_ANSWER)]
    assert told(shop, refused) == [(AttemptResult.REFUSED, False, None)]
    assert shop.outbox.attempts(shop.conn, failed)[0].error == "busy"


async def test_the_async_twin_tells_the_same(shop: Box) -> None:
    (row_id,) = shop.enqueue()
    outbox = AsyncOutbox(allow_autocommit=True)
    async with await psycopg.AsyncConnection.connect(shop.url, autocommit=True) as conn:
        held = await outbox.claim(conn, "w")
        await outbox.reschedule(conn, held, timedelta(0), "busy")
        assert await outbox.release(conn, await outbox.claim(conn, "w")) == []
        assert await outbox.mark_done(conn, await outbox.claim(conn, "w")) == []
        found = await outbox.attempts(conn, row_id)
        assert found == await outbox.attempts(conn, held[0].message.message_id)
    assert found == shop.outbox.attempts(shop.conn, row_id)
    assert [each.result for each in found] == [AttemptResult.FAILED, AttemptResult.RELEASED, DELIVERED]
    assert [each.cause for each in found] == [None, Cause.FAILED, Cause.FAILED]


async def test_a_setting_that_changes_under_way_reaches_the_next_claims(box: Box) -> None:
    seen: list[int] = []

    async def publish(message: Message) -> None:
        seen.append(message.id)

    async with running(box.dispatcher(publish)):
        (before,) = box.enqueue()
        await until(lambda: box.row(before)["status"] == "done")
        box.outbox.set_queue(box.conn, "default", "ann", ledger=True)
        (after,) = box.enqueue()
        await until(lambda: box.row(after)["status"] == "done")
        box.outbox.set_queue(box.conn, "default", "ann", ledger=False)
        (last,) = box.enqueue()
        await until(lambda: box.row(last)["status"] == "done")
    assert [told(box, row_id) for row_id in (before, after, last)] == [[], [(DELIVERED, False, None)], []]


async def test_a_dispatcher_purges_the_ledger_while_a_queue_keeps_one(
    shop: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "REST_SECONDS", 0.05)
    ids = shop.enqueue(10)
    async with running(shop.dispatcher(Journal(), ledger_retention=timedelta(days=30))):
        await until(lambda: shop.statuses() == {"done": 10})
        shop.conn.execute(
            "UPDATE outbox_attempt SET started_at = now() - interval '31 days' WHERE row_id < %s", [ids[4]]
        )
        await until(lambda: [len(told(shop, row_id)) for row_id in ids] == [0] * 4 + [1] * 6)
    shop.outbox.set_queue(shop.conn, "default", "ann", ledger=False)
    shop.conn.execute("UPDATE outbox_attempt SET started_at = now() - interval '31 days'")
    dispatcher = shop.dispatcher(Journal(), ledger_retention=timedelta(days=30))
    async with running(dispatcher):
        await asyncio.sleep(0.3)  # several rests
        assert dispatcher._purge_link.is_out_of_reach  # it never even connected
