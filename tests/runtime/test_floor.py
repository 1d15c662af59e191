"""The floor under the scan of a claim: by a clock of the test's own, and under a snapshot that is really held."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fencepost import Retryable
from fencepost.core.operation import run
from fencepost.drivers import driver_for
from fencepost.runtime.floor import EVERYWHERE, LAG, LOOK_EVERYWHERE, SHARE, ScanFloor
from fencepost.store import outbox as store
from tests.runtime.box import QUICK, Box, running, until
from tests.runtime.journal import Journal

# --- by the clock ----------------------------------------------------------------------------------------


def test_the_first_claim_looks_everywhere() -> None:
    assert ScanFloor().choose(1000.0) == EVERYWHERE


def test_the_floor_follows_the_claims_and_lags_behind() -> None:
    floor = ScanFloor()
    floor.looked(EVERYWHERE, 10, began=0.0, ended=0.001)
    assert floor.choose(0.002) == EVERYWHERE  # nothing is old enough yet
    floor.looked(EVERYWHERE, 20, began=0.05, ended=0.051)
    assert floor.choose(0.001 + LAG) == 10
    assert floor.choose(0.052 + LAG) == 20
    assert floor.choose(0.5) == 20


def test_after_a_while_a_claim_looks_everywhere_whatever_the_others_found() -> None:
    floor = ScanFloor()
    floor.looked(EVERYWHERE, 10, began=0.0, ended=0.001)
    for n in range(1, 20):
        floor.looked(10, 11, began=n / 20, ended=n / 20 + 0.001)
    assert floor.choose(LOOK_EVERYWHERE) == 11
    assert floor.choose(0.002 + LOOK_EVERYWHERE) == EVERYWHERE


def test_slow_looks_everywhere_take_a_share_of_the_time_at_most() -> None:
    floor = ScanFloor()
    floor.looked(EVERYWHERE, 10, began=0.0, ended=1.0)
    rest = SHARE * 1.0
    assert floor.choose(1.0 + rest - 0.1) == 10
    assert not floor.may_look_everywhere(1.0 + rest - 0.1)
    assert floor.choose(1.0 + rest) == EVERYWHERE
    assert floor.may_look_everywhere(1.0 + rest)


def test_a_fast_look_that_found_nothing_above_the_floor_may_be_followed_by_one_everywhere() -> None:
    floor = ScanFloor()
    floor.looked(EVERYWHERE, 10, began=0.0, ended=0.001)
    assert not floor.may_look_everywhere(0.005)
    assert floor.may_look_everywhere(0.001 + SHARE * 0.001)


def test_a_reset_looks_everywhere_next_and_forgets_no_floor() -> None:
    floor = ScanFloor()
    floor.looked(EVERYWHERE, 10, began=0.0, ended=0.001)
    assert floor.choose(0.5) == 10
    floor.reset()
    assert floor.choose(0.5) == EVERYWHERE
    floor.looked(EVERYWHERE, 10, began=0.5, ended=0.501)
    assert floor.choose(0.52) == 10


def test_a_claim_that_took_nothing_leaves_the_floor_where_it_is() -> None:
    floor = ScanFloor()
    floor.looked(EVERYWHERE, 10, began=0.0, ended=0.001)
    floor.looked(10, None, began=0.2, ended=0.201)
    assert floor.choose(0.4) == 10


def test_the_floor_goes_down_again_where_something_older_was_found() -> None:
    floor = ScanFloor()
    floor.looked(EVERYWHERE, 50, began=0.0, ended=0.001)
    assert floor.choose(0.2) == 50
    floor.looked(EVERYWHERE, 7, began=0.2, ended=0.201)
    assert floor.choose(0.4) == 7


def test_thousands_of_claims_a_second_are_not_all_remembered() -> None:
    floor = ScanFloor()
    for n in range(10_000):
        floor.looked(1, n, n / 10_000, n / 10_000 + 0.00005)
    assert len(floor._later) < 100


# --- under a held snapshot -------------------------------------------------------------------------------


@contextlib.contextmanager
def snapshot(box: Box) -> Iterator[None]:
    """Hold a snapshot, so that no index entry of what is finished from now on can be removed."""
    with psycopg.connect(box.url) as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox")
        yield
        conn.rollback()


def buffers(box: Box, floor: int) -> int:
    """Return the index and heap pages that one claim from ``floor`` touches, as a dispatcher would send it."""
    catalog = box.outbox.catalog
    terms = store.ClaimTerms("w", QUICK["lease"], 12)
    scan = store.Scan(floor=floor, statements=1)
    statement = next(store.claim(catalog, terms, queues=["default"], batch=10, scan=scan))
    with box.conn.transaction(force_rollback=True):
        box.conn.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off")
        found = box.conn.execute(
            ("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement.sql).encode(), statement.params
        ).fetchone()
    assert found is not None
    plan: dict[str, Any] = found[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def test_a_claim_from_the_floor_does_not_walk_over_what_is_finished(box: Box) -> None:
    with snapshot(box):
        for _ in range(4):
            box.enqueue(2_500)
        async with running(box.dispatcher(Journal(), batch=1_000, concurrency=1_000)) as _:
            await until(lambda: box.statuses() == {"done": 10_000})
        box.enqueue(20)
        row = box.conn.execute(
            "SELECT (extract(epoch FROM min(available_at)) * 1000000)::bigint FROM outbox WHERE done_at IS NULL"
        ).fetchone()
        assert row is not None
        everywhere, above = buffers(box, EVERYWHERE), buffers(box, row[0])
    assert above * 5 < everywhere, (above, everywhere)


async def test_under_a_snapshot_the_dispatchers_claims_do_use_a_floor(box: Box) -> None:
    floors: list[int] = []
    with snapshot(box):
        box.enqueue(300)
        dispatcher = box.dispatcher(Journal(pause=0.02), batch=10, concurrency=10)
        async with running(dispatcher):
            original = ScanFloor.choose

            def choose(self: ScanFloor, now: float) -> int:
                floors.append(original(self, now))
                return floors[-1]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ScanFloor, "choose", choose)
                await until(lambda: box.statuses() == {"done": 300})
    assert sum(floor > EVERYWHERE for floor in floors) > len(floors) / 3


async def test_what_was_inserted_early_and_committed_late_is_found_under_load(box: Box) -> None:
    """It stands below the floor, and other messages keep coming above it all the time."""
    journal = Journal()
    with snapshot(box), psycopg.connect(box.url) as late:
        late_id = box.outbox.enqueue(late, "late", None).id
        async with running(box.dispatcher(journal, batch=10, concurrency=10)) as _:
            began = time.monotonic()
            while time.monotonic() < began + 5 * LAG:
                rows = box.enqueue(5)
                await until(lambda rows=rows: box.row(rows[-1])["status"] == "done")  # type: ignore[misc]
            assert late_id not in journal.accepted
            late.commit()
            committed = time.monotonic()
            while late_id not in journal.accepted:
                assert time.monotonic() < committed + LOOK_EVERYWHERE + 3
                rows = box.enqueue(5)
                await until(lambda rows=rows: box.row(rows[-1])["status"] == "done")  # type: ignore[misc]


async def test_what_is_given_back_or_promoted_below_the_floor_is_found(box: Box) -> None:
    first = box.enqueue(3, ordering_key="k")
    journal = Journal({first[0]: [Retryable("once"), Retryable("twice")]})
    with snapshot(box):
        async with running(box.dispatcher(journal, batch=10, concurrency=10)):
            began = time.monotonic()
            while any(box.row(each)["status"] != "done" for each in first):
                assert time.monotonic() < began + LOOK_EVERYWHERE + 5
                rows = box.enqueue(5)
                await until(lambda rows=rows: box.row(rows[-1])["status"] == "done")  # type: ignore[misc]
    assert journal.first_acceptances("k") == first


def test_what_a_claim_took_tells_where_the_next_one_may_begin(box: Box) -> None:
    ids = box.enqueue(3)
    terms = store.ClaimTerms("w", QUICK["lease"], 12)
    execute = driver_for(box.conn).execute
    result = run(store.claim(box.outbox.catalog, terms, queues=["default"], batch=10), execute)
    available = box.row(ids[0])["available_at"]
    assert result.lowest == int(available.timestamp() * 1_000_000 + 0.5)
    later = box.enqueue(2)
    scan = store.Scan(floor=result.lowest)
    found = run(store.claim(box.outbox.catalog, terms, queues=["default"], batch=10, scan=scan), execute)
    assert [each.id for each in found.claimed] == later
    above = int(box.row(later[0])["available_at"].timestamp() * 1_000_000) + 10_000_000
    box.enqueue(1)
    scan = store.Scan(floor=above)
    assert (
        run(store.claim(box.outbox.catalog, terms, queues=["default"], batch=10, scan=scan), execute).claimed == []
    )
