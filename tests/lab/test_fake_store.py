"""The fake store's sessions: what they see, whom they wait for, and what they find then."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from lab.fake_store import FakeDatabase, FakeSession
from lab.fake_store.hashing import hashtextextended
from lab.fake_store.rows import OUTBOX
from lab.fake_store.statements import STATEMENTS

from fencepost.core.draft import NewMessage, draft
from fencepost.core.inbox import InboxEntry
from fencepost.core.job import JobDraft
from fencepost.core.job_states import JobState
from fencepost.core.operation import Operation, Statement, arun
from fencepost.core.outcome import Done
from fencepost.core.records import Claimed
from fencepost.core.states import Recovery
from fencepost.embedded import PostgresServer
from fencepost.store import breaker, enqueue, fenced, inbox, job_fenced, jobs, order, outbox
from fencepost.store.catalog import Catalog, _folder

CATALOG = Catalog()
MINUTE = timedelta(minutes=1)

NOT_ANSWERED = (
    # The dispatcher and the worker send these only where somebody asks for them.
    *("doctor_", "schema_", "migration_", "partition", "job_list_", "job_stuck_", "job_show"),
    *("keys_blocked", "inbox_consumers"),
)


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(clock: Clock) -> FakeDatabase:
    return FakeDatabase(clock)


async def do(session: FakeSession, operation: Operation[Any]) -> Any:
    return await arun(operation, session.execute)


async def add(session: FakeSession, count: int = 1, **options: Any) -> None:
    for n in range(count):
        message = draft(NewMessage(event_type="e", payload=n, **options), UUID(int=n, version=4))
        await do(session, enqueue.enqueue(CATALOG, message, notify=True))


async def claim(session: FakeSession, batch: int = 10, owner: str = "w") -> list[Claimed]:
    terms = outbox.ClaimTerms(owner, MINUTE, 12)
    found = await do(session, outbox.claim(CATALOG, terms, queues=["default"], batch=batch))
    claimed: list[Claimed] = found.claimed
    return claimed


def statuses(database: FakeDatabase) -> list[str]:
    return [row.status for row in database.rows(OUTBOX)]


async def begun(work: Any) -> asyncio.Task[Any]:
    """Start work, and let it run as far as it goes."""
    task: asyncio.Task[Any] = asyncio.ensure_future(work)
    for _ in range(5):
        await asyncio.sleep(0)
    return task


def test_every_statement_is_answered_or_left_out_on_purpose() -> None:
    files = {
        file.name.removesuffix(".sql") for file in _folder("postgresql").iterdir() if file.name.endswith(".sql")
    }
    assert STATEMENTS.keys() <= files
    left_out = {name for name in files if name.startswith(NOT_ANSWERED)}
    assert left_out.isdisjoint(STATEMENTS)
    assert files - STATEMENTS.keys() == left_out


async def test_what_is_not_committed_is_seen_by_nobody_else(database: FakeDatabase) -> None:
    one, other = database.session(), database.session()
    one.begin()
    await add(one)
    assert [len(session.view(OUTBOX)) for session in (one, other)] == [1, 0]
    assert await claim(other) == []
    one.rollback()
    assert database.rows(OUTBOX) == []
    one.begin()
    await add(one)
    await one.commit()
    # The id of the one that was rolled back is gone.
    assert [row.id for row in database.rows(OUTBOX)] == [2]


async def test_two_claims_never_take_the_same_row_nor_wait(database: FakeDatabase) -> None:
    one, other = database.session(), database.session()
    await add(one, 3)
    one.begin()
    assert [each.id for each in await claim(one, 2)] == [1, 2]
    assert [each.id for each in await claim(other)] == [3]
    await one.commit()
    assert statuses(database) == ["processing"] * 3


async def test_a_write_waits_for_the_row_and_looks_at_it_again(database: FakeDatabase, clock: Clock) -> None:
    one, other = database.session(), database.session()
    await add(one)
    (held,) = await claim(one)
    clock.seconds += 120
    one.begin()
    terms = outbox.ClaimTerms("thief", MINUTE, 12)
    await do(one, outbox.claim_suspects(CATALOG, terms, queues=["default"]))
    late = await begun(do(other, fenced.mark_done(CATALOG, [held])))
    assert other.is_waiting
    assert not late.done()
    await one.commit()
    assert await late == {1}
    (row,) = database.rows(OUTBOX)
    assert (row.status, row.lease_owner, row.lease_version) == ("processing", "thief", 2)


async def test_a_write_whose_rival_rolled_back_goes_through(database: FakeDatabase, clock: Clock) -> None:
    one, other = database.session(), database.session()
    await add(one)
    (held,) = await claim(one)
    clock.seconds += 120
    one.begin()
    await do(one, outbox.claim_suspects(CATALOG, outbox.ClaimTerms("thief", MINUTE, 12), queues=["default"]))
    late = await begun(do(other, fenced.mark_done(CATALOG, [held])))
    one.rollback()
    assert await late == frozenset()
    assert statuses(database) == ["done"]


async def test_producers_of_one_key_wait_for_each_other_and_finalizers_for_none_of_them(
    database: FakeDatabase,
) -> None:
    one, other = database.session(), database.session()
    one.begin()
    await add(one, ordering_key="k")
    other.begin()
    waiting = await begun(add(other, ordering_key="k"))
    assert other.is_waiting
    third = database.session()
    third.begin()
    await do(third, order.lock_for_finalize(CATALOG, [("default", "k")]))
    await one.commit()
    await waiting
    assert not other.is_waiting


async def test_whoever_closes_a_circle_of_waiting_fails(database: FakeDatabase) -> None:
    one, other = database.session(), database.session()
    for session, key in ((one, "a"), (other, "b")):
        session.begin()
        await do(session, order.lock_for_finalize(CATALOG, [("q", key)]))
    first = await begun(do(one, order.lock_for_finalize(CATALOG, [("q", "b")])))
    with pytest.raises(psycopg.errors.DeadlockDetected):
        await do(other, order.lock_for_finalize(CATALOG, [("q", "a")]))
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        await do(other, order.promote(CATALOG, [("q", "a")]))
    other.rollback()
    await first


async def test_a_lost_connection_lets_go_and_its_statement_fails(database: FakeDatabase) -> None:
    one, other = database.session(), database.session()
    accept = inbox.accept(CATALOG, InboxEntry("c", "m", None, None))
    one.begin()
    assert await do(one, accept)
    again = await begun(do(other, inbox.accept(CATALOG, InboxEntry("c", "m", None, None))))
    other.drop()
    with pytest.raises(psycopg.OperationalError):
        await again
    third = await begun(do(database.session(), inbox.accept(CATALOG, InboxEntry("c", "m", None, None))))
    one.drop()
    # Rolled back: the third one is the first.
    assert await third
    for session in (one, other):
        with pytest.raises(psycopg.OperationalError):
            await claim(session)


async def test_a_notice_comes_with_the_commit_once(database: FakeDatabase) -> None:
    heard: list[str] = []
    database.on_notice.append(heard.append)
    session = database.session()
    session.begin()
    await add(session, 3)
    assert heard == []
    await session.commit()
    assert heard == [CATALOG.names.channel]
    session.begin()
    await add(session)
    session.rollback()
    assert heard == [CATALOG.names.channel]


async def test_an_error_ends_the_transaction_and_a_statement_alone_leaves_nothing(database: FakeDatabase) -> None:
    session = database.session()
    with pytest.raises(NotImplementedError):
        await session.execute(Statement("no_such", ""))
    session.begin()
    with pytest.raises(NotImplementedError):
        await session.execute(Statement("no_such", ""))
    await add(session)
    await session.commit()
    assert statuses(database) == ["pending"]


async def test_breakers_and_rates_are_shared(database: FakeDatabase, clock: Clock) -> None:
    session = database.session()
    await add(session)
    assert await do(
        session, breaker.note_unavailable(CATALOG, "default", threshold=1, pause=timedelta(seconds=5), error="x")
    )
    assert await claim(session) == []
    terms = outbox.ClaimTerms("w", MINUTE, 12)
    probe = functools.partial(breaker.claim_probe, CATALOG, terms, "default", patience=MINUTE)
    assert (await do(session, probe()))[1] is None
    clock.seconds += 6
    found, version = await do(session, probe())
    assert len(found.claimed) == 1
    assert await do(session, breaker.close_breaker(CATALOG, "default", version=version, notify=True))


async def test_a_job_goes_through_its_life(database: FakeDatabase, clock: Clock) -> None:
    session = database.session()
    for n in (1, 2):
        identity = UUID(int=n, version=4)
        job = JobDraft(identity, "q", "t", "{}", "{}", f"u{n}", "lane", Recovery.AUTO, 2, None, 0.0)
        assert (await do(session, jobs.enqueue(CATALOG, job, notify=True))).created
        assert not (await do(session, jobs.enqueue(CATALOG, job, notify=True))).created
    terms = jobs.JobTerms("w", {"t": jobs.TaskTerms(MINUTE, per_key=1)})
    assert [each.has_lanes for each in await do(session, jobs.look(CATALOG, None))] == [True]
    session.begin()
    (first,) = (await do(session, jobs.claim_lanes(CATALOG, terms, "q", 5, jobs.LaneWalk()))).claimed
    await session.commit()
    assert (await do(session, jobs.claim_lanes(CATALOG, terms, "q", 5, jobs.LaneWalk()))).claimed == []
    assert await do(session, job_fenced.heartbeat(CATALOG, [first], MINUTE)) == frozenset()
    clock.seconds += 120
    assert [each.id for each in await do(session, jobs.reclaim(CATALOG, limit=5))] == [first.id]
    assert await do(session, job_fenced.finalize(CATALOG, [job_fenced.Finished(first, Done())])) == {first.id}
    (second,) = (await do(session, jobs.claim_lanes(CATALOG, terms, "q", 5, jobs.LaneWalk()))).claimed
    assert second.id != first.id
    assert await do(session, job_fenced.finalize(CATALOG, [job_fenced.Finished(second, Done())])) == frozenset()
    (again,) = (await do(session, jobs.claim_suspects(CATALOG, terms, "q"))).claimed
    assert (again.id, again.attempt, again.reclaim_count) == (first.id, 2, 1)
    clock.seconds += 120
    assert [each.state for each in await do(session, jobs.reclaim(CATALOG, limit=5))] == [JobState.FAILED]


def test_texts_are_hashed_as_the_server_hashes_them(postgres18: PostgresServer) -> None:
    texts = ["", "a", "public.outbox q a", "twelve bytes", "ä€𝄞", *("x" * length for length in range(40))]
    wanted = [(text, seed) for text in texts for seed in (0, 1, -1, 2**62 + 12_345, -(2**40))]
    query = (
        "SELECT hashtextextended(t, s) FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY w (t, s, n)"
        " ORDER BY n"
    )
    with psycopg.connect(postgres18.url) as connection:
        found = connection.execute(query, [list(column) for column in zip(*wanted, strict=True)]).fetchall()
    assert [hashtextextended(*each) for each in wanted] == [each for (each,) in found]
