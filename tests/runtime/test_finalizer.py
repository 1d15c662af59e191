"""How results are gathered and written, whatever they are: over a real connection, into a table of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import psycopg
import pytest

from fencepost.core.operation import Operation, Statement
from fencepost.core.outcome import DONE, Action
from fencepost.runtime.finalizer import Finalizer, Results
from fencepost.runtime.held import Held, Holding
from fencepost.runtime.lifecycle import end
from fencepost.runtime.link import Limits, Link
from fencepost.store.catalog import Catalog
from tests.runtime.box import until
from tests.runtime.holdings import holding

Decisions = Sequence[tuple[Holding, Action]]
WRITE = "INSERT INTO public.written (id, token) VALUES (%(id)s, %(token)s)"
REFUSED = 13
"""An id that the table refuses."""


class Tokens(Results[Holding, int]):
    """Writes id and token of each row; two statements, so that half of a batch can be seen."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int]]] = []
        self.failures: list[int] = []
        self.is_atomic = False

    def operation(self, batch: Decisions) -> Operation[int]:
        for each, _ in batch:
            yield Statement("write", WRITE, {"id": each.id, "token": each.token})
        return len(batch)

    def needs_transaction(self, batch: Decisions) -> bool:
        return self.is_atomic

    def written(self, batch: Decisions, found: int) -> None:
        assert found == len(batch)
        self.batches.append([(each.id, each.token) for each, _ in batch])

    def failed(self, holding: Holding, error: Exception) -> None:
        assert isinstance(error, psycopg.errors.CheckViolation)
        self.failures.append(holding.id)


class Desk:
    """A finalizer with its results, and a look at the table."""

    def __init__(self, url: str) -> None:
        self.conn = psycopg.connect(url, autocommit=True)
        self.conn.execute(f"CREATE TABLE public.written (n serial, id int CHECK (id <> {REFUSED}), token int)")
        self.link = Link(url, Catalog(), Limits.below(timedelta(minutes=5)), "finalize", lambda: None)
        self.held: Held[Holding] = Held()
        self.results = Tokens()
        self.finalizer = Finalizer(self.link, self.held, self.results)

    def submit(self, *holdings: Holding) -> None:
        self.held.add(holdings)
        for each in holdings:
            self.finalizer.submit(each, DONE)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.finalizer.run())
        try:
            yield
        finally:
            await end([task])

    async def write_all(self) -> None:
        async with self.running(), asyncio.timeout(30):
            await self.finalizer.drained()

    def table(self) -> list[tuple[int, int]]:
        return self.conn.execute("SELECT id, token FROM written ORDER BY n").fetchall()

    def waits_for_a_lock(self) -> bool:
        return bool(
            self.conn.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'written'::regclass"
            ).fetchone()
        )


@pytest.fixture
async def desk(database18: str) -> AsyncIterator[Desk]:
    made = Desk(database18)
    yield made
    await made.link.close()
    made.conn.close()


async def test_what_arrives_together_is_written_together_and_not_held_any_more(desk: Desk) -> None:
    desk.submit(*(holding(n) for n in (1, 2, 3)))
    await desk.write_all()
    assert desk.results.batches == [[(1, 1), (2, 1), (3, 1)]]
    assert desk.table() == [(1, 1), (2, 1), (3, 1)]
    assert (len(desk.held), desk.finalizer.backlog, desk.finalizer.is_drained) == (0, 0, True)


async def test_a_row_that_was_lost_and_claimed_anew_is_written_under_both_tokens_one_after_the_other(
    desk: Desk,
) -> None:
    desk.submit(holding(1, token=1), holding(2), holding(1, token=2), holding(3))
    await desk.write_all()
    assert desk.results.batches == [[(1, 1), (2, 1)], [(1, 2), (3, 1)]]
    assert len(desk.held) == 0


async def test_one_that_is_refused_fails_alone_and_its_lease_is_left_to_expire(desk: Desk) -> None:
    desk.results.is_atomic = True
    desk.submit(*(holding(n) for n in (1, REFUSED, 3)))
    await desk.write_all()
    assert desk.results.failures == [REFUSED]
    assert desk.table() == [(1, 1), (3, 1)]
    assert len(desk.held) == 0


@pytest.mark.parametrize("is_atomic", [True, False])
async def test_what_belongs_together_is_written_as_a_whole_or_not_at_all(desk: Desk, is_atomic: bool) -> None:
    desk.results.is_atomic = is_atomic
    desk.submit(holding(1), holding(REFUSED))
    await desk.write_all()
    # Tried together and then one by one: without a transaction the first one was written by the first try already.
    assert desk.table() == [(1, 1)] * (1 if is_atomic else 2)


async def test_a_write_that_is_cut_off_is_done_by_whoever_runs_it_again(desk: Desk) -> None:
    desk.results.is_atomic = True  # else the server ends the INSERT that it is at, though nobody hears of it
    with desk.conn.transaction():
        desk.conn.execute("LOCK TABLE written")
        desk.submit(holding(1), holding(2))
        async with desk.running():
            await until(desk.waits_for_a_lock)
            desk.submit(holding(3))
        assert not desk.finalizer.is_drained
        assert desk.finalizer.backlog == 3
    await desk.write_all()
    assert desk.table() == [(1, 1), (2, 1), (3, 1)]
    assert len(desk.held) == 0
