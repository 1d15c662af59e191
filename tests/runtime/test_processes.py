"""Real worker processes, killed, frozen, crashed and told to stop."""

from __future__ import annotations

import os
import random
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fencepost import NewMessage
from tests.runtime.box import Box, wait_until
from tests.runtime.processes import DEFAULTS, Worker, worker
from tests.runtime.worker import PUBLISHED


@pytest.fixture
def shop(box: Box) -> Box:
    """A box whose publishes are recorded in the table ``published``."""
    box.conn.execute(PUBLISHED)
    return box


def published(box: Box, columns: str = "id", where: str = "true") -> list[tuple[Any, ...]]:
    return box.conn.execute(f"SELECT {columns} FROM published WHERE {where} ORDER BY at").fetchall()


def test_a_killed_worker_loses_nothing(shop: Box) -> None:
    hung = shop.enqueue(5, event_type="hang")
    shop.enqueue(20)
    with worker(shop.url, "victim", max_attempts=5) as victim:
        victim.ready()
        wait_until(lambda: len(published(shop, where=f"id = ANY (ARRAY{hung})")) == 5)
        victim.send(signal.SIGKILL)
        victim.process.wait()
    assert shop.statuses().get("processing", 0) >= 5
    with worker(shop.url, "healthy", max_attempts=5) as healthy:
        healthy.ready()
        wait_until(lambda: shop.statuses() == {"done": 25})
    assert {shop.row(each)["lease_version"] for each in hung} == {2}
    assert {shop.row(each)["reclaim_count"] for each in hung} == {1}


def test_a_crashed_workers_messages_are_claimed_within_a_lease_and_a_poll(shop: Box) -> None:
    """I10, with a healthy worker free: claimable within lease + 1 s, claimed within one poll more."""
    (row_id,) = shop.enqueue(1, event_type="hang", queue="first")
    with worker(shop.url, "victim", publish_timeout=1.9, queues=["first"]) as victim:
        victim.ready()
        wait_until(lambda: published(shop))
        with worker(shop.url, "healthy", queues=["first"]) as healthy:
            healthy.ready()
            killed_at = shop.conn.execute("SELECT clock_timestamp()").fetchone()
            victim.send(signal.SIGKILL)
            wait_until(lambda: shop.statuses() == {"done": 1})
    assert killed_at is not None
    (last,) = published(shop, "at", "owner = 'healthy'")
    assert last[0] - killed_at[0] < timedelta(seconds=2 + 1 + 0.05)
    assert shop.row(row_id)["reclaim_count"] == 1


def test_a_frozen_worker_wakes_up_to_a_lost_lease_and_changes_nothing(shop: Box) -> None:
    (row_id,) = shop.enqueue(1, event_type="hang")
    with worker(shop.url, "victim", publish_timeout=1.9) as victim:
        victim.ready()
        wait_until(lambda: published(shop))
        victim.send(signal.SIGSTOP)
        with worker(shop.url, "healthy") as healthy:
            healthy.ready()
            wait_until(lambda: shop.statuses() == {"done": 1})
        before = shop.row(row_id)
        victim.send(signal.SIGCONT)
        victim.send(signal.SIGTERM)
        result = victim.result()
    assert result["lost_leases"] == 1
    assert shop.row(row_id) == before
    assert (before["attempts"], before["lease_version"]) == (2, 2)


def test_a_poison_message_is_dead_after_its_limit_and_takes_nobody_with_it(shop: Box) -> None:
    """It kills its process at every publish, first in a batch of 50; a supervisor restarts the worker."""
    (poison,) = shop.enqueue(1, event_type="poison")
    neighbours = shop.enqueue(49)
    deadline = time.monotonic() + 60
    crashes = 0
    while not (shop.statuses().get("done") == 49 and shop.statuses().get("dead") == 1):
        assert time.monotonic() < deadline, shop.statuses()
        with worker(shop.url, "supervised", max_attempts=3, lease=1.0) as supervised:
            supervised.ready()
            wait_until(
                lambda p=supervised.process: (
                    p.poll() is not None  # type: ignore[misc]  # bound in this turn
                    or (shop.statuses().get("done") == 49 and shop.statuses().get("dead") == 1)
                )
            )
            crashes += supervised.process.poll() == 9
    assert crashes == 3
    row = shop.row(poison)
    assert (row["outcome"], row["attempts"]) == ("crashed", 3)
    assert len(published(shop, where=f"id = {poison}")) == 3
    assert max(shop.row(each)["attempts"] for each in neighbours) <= 3
    # Behind the first crash, whatever was in flight with it is published with nothing else in flight.
    assert {n for (n,) in published(shop, "in_flight", f"id = {poison} AND attempt > 1")} == {1}


def test_a_whole_workers_load_comes_back_fast_once_the_first_few_went_well(shop: Box) -> None:
    hung = shop.enqueue(60, event_type="hang")
    with worker(shop.url, "victim", concurrency=60) as victim:
        victim.ready()
        wait_until(lambda: len(published(shop)) == 60)
        victim.send(signal.SIGKILL)
        victim.process.wait()
    with worker(shop.url, "healthy") as healthy:
        healthy.ready()
        wait_until(lambda: shop.statuses() == {"done": 60})
        healthy.send(signal.SIGTERM)
        result = healthy.result()
    assert result["reclaimed"] == 60
    in_flight = [n for (n,) in published(shop, "in_flight", "owner = 'healthy'")]
    assert in_flight[:3] == [1, 1, 1]
    assert max(in_flight) > 5, "the rest was never published together"
    assert {shop.row(each)["attempts"] for each in hung} == {2}


def test_normal_messages_do_not_wait_behind_suspects(shop: Box) -> None:
    shop.enqueue(3, event_type="hang")
    with worker(shop.url, "victim") as victim:
        victim.ready()
        wait_until(lambda: len(published(shop)) == 3)
        victim.send(signal.SIGKILL)
        victim.process.wait()
    wait_until(lambda: shop.outbox.stats(shop.conn).total("expired") == 3)
    shop.enqueue(30)
    # This worker hangs on the suspects as well, each for a whole publish time-out.
    with worker(shop.url, "victim-too", batch=10, concurrency=10) as second:
        second.ready()
        wait_until(lambda: shop.statuses().get("done") == 30)
        tries = published(shop, "in_flight", "owner = 'victim-too' AND id <= 3")
    assert len(tries) <= 4
    assert {n for (n,) in tries} <= {1}


def test_sigterm_at_a_hundred_random_moments_loses_and_charges_nothing(shop: Box) -> None:
    """After each signal nothing is leased, and only messages whose publish was started were charged."""
    seed = int(os.environ.get("SEED", "20261129"))
    moments = random.Random(seed)  # noqa: S311 - a seed that is printed with every failure
    with worker(shop.url, "w", runs=100, batch=20, concurrency=10) as process:
        for turn in range(100):
            shop.enqueue(30, event_type="slow")
            process.ready()
            time.sleep(moments.uniform(0.0, 0.03))  # the random moment itself; nothing is awaited by it
            process.send(signal.SIGTERM)
            result = process.result()
            where = f"turn {turn}, seed {seed}"
            assert result["drained"], where
            assert "processing" not in shop.statuses(), where
            charged = shop.conn.execute(
                "SELECT count(*) FROM outbox WHERE status = 'pending' AND attempts <> 0"
            ).fetchone()
            assert charged == (0,), where
        assert process.process.wait(10) == 0, process.errors()
    twice = shop.conn.execute("SELECT count(*) - count(DISTINCT id) FROM published").fetchone()
    assert twice == (0,)
    assert shop.statuses().get("dead") is None


def test_sigterm_with_a_publish_that_outlives_the_grace_exits_one(shop: Box) -> None:
    (row_id,) = shop.enqueue(1, event_type="hang")
    (manual_id,) = shop.enqueue(1, event_type="hang", recovery="manual")
    with worker(shop.url, "victim", grace=0.3, publish_timeout=1.9) as victim:
        victim.ready()
        wait_until(lambda: len(published(shop)) == 2)
        started = time.monotonic()
        victim.send(signal.SIGTERM)
        assert victim.process.wait(10) == 1
        assert time.monotonic() - started < 0.3 + 1.0
    row, manual = shop.row(row_id), shop.row(manual_id)
    assert (row["status"], row["attempts"]) == ("pending", 1)
    assert (manual["status"], manual["outcome"]) == ("dead", "unknown_outcome")


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process and not delivered yet (proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask & 1 << (number - 1) for mask in pending)


def test_a_second_sigterm_hurries(shop: Box) -> None:
    shop.enqueue(1, event_type="hang")
    with worker(shop.url, "victim", grace=30.0, publish_timeout=25.0, lease=60.0) as victim:
        victim.ready()
        wait_until(lambda: published(shop))
        started = time.monotonic()
        victim.send(signal.SIGTERM)
        wait_until(lambda: shop.statuses() == {"processing": 1})
        # A signal that is sent while one of its kind is still pending gets lost.
        wait_until(lambda: not is_pending(victim.process.pid, signal.SIGTERM))
        victim.send(signal.SIGTERM)
        assert victim.process.wait(10) == 1
        assert time.monotonic() - started < 5
    assert shop.statuses() == {"pending": 1}


def test_restarts_by_sigterm_never_use_up_attempts(shop: Box) -> None:
    """C05's cousin: a deployment that restarts workers over and over, with a limit of 3."""
    shop.outbox.enqueue_many(shop.conn, [NewMessage(event_type="slow", payload=n) for n in range(400)])
    with worker(shop.url, "w", runs=12, max_attempts=3, batch=20, concurrency=5) as process:
        for _ in range(12):
            process.ready()
            process.send(signal.SIGTERM)
            assert process.result()["drained"]
    assert shop.statuses().get("dead") is None
    highest = shop.conn.execute("SELECT max(attempts) FROM outbox").fetchone()
    assert highest is not None
    assert highest[0] <= 1


def test_worker_class_reports_errors(shop: Box) -> None:
    """The harness itself: a worker that cannot start says why instead of hanging a test."""
    broken = Worker("tests.runtime.worker", shop.url, "w", DEFAULTS | {"batch": 0})
    with pytest.raises(AssertionError, match="batch"):
        broken.ready()
    broken.end()
