"""Database faults: cut connections at every statement, restarts, read-only servers, time-outs, silence."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, Literal

import psycopg
import pytest

from fencepost import Delivery, Message, Outbox
from fencepost.core.operation import Rows, Statement
from fencepost.drivers.psycopg import AsyncPsycopgDriver
from fencepost.embedded import PostgresServer
from fencepost.runtime.link import Limits, connect
from tests.postgres import fresh_database, pg18_bin_dir, running_server
from tests.runtime.box import Box, locked, running, until
from tests.runtime.proxy import Proxy


class Recorder:
    """An async publisher that counts the publishes of each message."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    async def publish(self, message: Message, delivery: Delivery) -> None:
        self.seen[message.id] += 1


class Saboteur:
    """Kills the worker's backend right before or right after it sends a statement for the nth time."""

    def __init__(self, url: str, name: str, nth: int, when: str) -> None:
        self.url, self.name, self.nth, self.when = url, name, nth, when
        self.sent = 0
        self.cut = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        execute = AsyncPsycopgDriver.execute
        saboteur = self

        async def sabotaged(driver: AsyncPsycopgDriver, statement: Statement) -> Rows:
            rows: Rows = await saboteur.around(driver._connection, statement.name, execute(driver, statement))
            return rows

        monkeypatch.setattr(AsyncPsycopgDriver, "execute", sabotaged)

    async def around(self, conn: psycopg.AsyncConnection[Any], name: str, work: Any) -> Any:
        self.sent += name == self.name
        mine = name == self.name and self.sent == self.nth and not self.cut
        pid = conn.info.backend_pid
        if mine and self.when == "before":
            self.kill(pid)
        result = await work
        if mine and self.when == "after":
            # The server has done it; the answer is lost on its way.
            self.kill(pid)
            raise psycopg.OperationalError("the connection was cut before the answer came")
        return result

    def kill(self, pid: int) -> None:
        self.cut = True
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


MOMENTS = [
    *[(name, 1) for name in ("BEGIN", "COMMIT", "lock_keys", "mark_done_ordered", "promote", "queue_settings")],
    *[("session", nth) for nth in range(1, 3)],
    *[(name, 1) for name in ("queues", "claim_suspects", "claim", "reap", "mark_done")],
    ("claim", 2),
    ("claim", 3),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("name", "nth"), MOMENTS)
async def test_a_backend_terminated_at_each_statement_costs_at_most_a_repeat(
    box: Box, monkeypatch: pytest.MonkeyPatch, name: str, nth: int, when: str
) -> None:
    """I1, I7: whatever statement is cut, every message is delivered, and charged once per claim."""
    # Ordered ones are finalized in transactions of several statements; one key of each queue after the other.
    key = None if name == "mark_done" else "k"
    row_ids = [*box.enqueue(2, ordering_key=key), *box.enqueue(1, queue="other", ordering_key=key)]
    publisher = Recorder()
    saboteur = Saboteur(box.url, name, nth, when)
    saboteur.install(monkeypatch)
    times = {"lease": timedelta(seconds=1), "publish_timeout": timedelta(seconds=0.5)}
    async with running(box.dispatcher(publisher, notify=False, **times)):
        await until(lambda: saboteur.cut, "the cut")
        await until(lambda: box.statuses() == {"done": 3}, "delivery after the cut")
    assert set(publisher.seen) == set(row_ids)
    assert {box.row(each)["attempts"] for each in row_ids} <= {1, 2}
    assert sum(publisher.seen.values()) <= 3 * 2


async def test_a_finalize_that_times_out_is_repeated_and_charges_nothing(box: Box) -> None:
    (row_id,) = box.enqueue()
    gate = asyncio.Event()

    async def publish(message: Message, delivery: Delivery) -> None:
        await gate.wait()

    lease = timedelta(seconds=2)
    async with running(box.dispatcher(publish, lease=lease, publish_timeout=timedelta(seconds=1.9))) as _:
        await until(lambda: box.statuses() == {"processing": 1})
        with locked(box, row_id) as blocker:
            gate.set()
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
            name = [blocker.info.dbname]
            await until(lambda: box.conn.execute(waiting, name).fetchone() == (1,))
            await until(lambda: box.conn.execute(waiting, name).fetchone() == (0,))  # its lock time-out
        await until(lambda: box.statuses() == {"done": 1})
    assert box.row(row_id)["attempts"] == 1


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may stop, kill and start."""
    with running_server(pg18_bin_dir()) as server:
        yield server


@pytest.fixture
def own_box(own_server: PostgresServer) -> Iterator[Box]:
    with fresh_database(own_server) as url:
        with psycopg.connect(url, autocommit=True) as conn:
            # The tests' servers answer a COMMIT before it is safe; a commit that a crash undoes is nobody's fault.
            conn.execute(f'ALTER DATABASE "{conn.info.dbname}" SET synchronous_commit TO on')
        with psycopg.connect(url) as conn:
            Outbox().migrate(conn)
        with Box(url) as made:
            yield made


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
async def test_a_server_restart_is_survived(
    own_server: PostgresServer, own_box: Box, how: Literal["fast", "immediate", "kill"]
) -> None:
    publisher = Recorder()
    own_box.enqueue(20)
    async with running(own_box.dispatcher(publisher)) as task:
        await until(lambda: own_box.statuses() == {"done": 20})
        if how == "kill":
            await asyncio.to_thread(own_server.kill)
        else:
            await asyncio.to_thread(own_server.stop, how)
        await asyncio.to_thread(own_server.start)
        with Box(own_box.url) as again:
            again.enqueue(20)
            await until(lambda: again.statuses() == {"done": 40})
        assert not task.done()


async def test_a_read_only_server_is_waited_for(box: Box) -> None:
    """C30: a primary that was demoted under us answers reads, and refuses writes."""
    name = box.conn.info.dbname
    publisher = Recorder()
    async with running(box.dispatcher(publisher)):
        box.conn.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only TO on')
        box.conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(box.url, options="-c default_transaction_read_only=off", autocommit=True) as writable:
            row_id = box.outbox.enqueue(writable, "test", None).id
            assert box.row(row_id)["status"] == "pending"
            writable.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await until(lambda: box.row(row_id)["status"] == "done")


async def test_injected_serialization_failures_and_deadlocks_are_retried(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C31: never surfaced as a failure of the event, never charged."""
    execute = AsyncPsycopgDriver.execute
    codes = ["40001", "40P01", "55P03", "57014"] * 3
    raised: list[str] = []

    async def failing(driver: AsyncPsycopgDriver, statement: Statement) -> Rows:
        if codes and statement.name in ("claim", "mark_done", "reap", "queues"):
            code = codes.pop()
            raised.append(code)
            # A real error with a real code, made by the server, so that the transaction is truly aborted.
            await driver._connection.execute(
                f"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{code}'; END $$"
            )
        return await execute(driver, statement)

    monkeypatch.setattr(AsyncPsycopgDriver, "execute", failing)
    row_ids = box.enqueue(10)
    publisher = Recorder()
    async with running(box.dispatcher(publisher)):
        await until(lambda: box.statuses() == {"done": 10})
        await until(lambda: not codes)
    assert sorted(set(raised)) == ["40001", "40P01", "55P03", "57014"]
    assert {box.row(each)["attempts"] for each in row_ids} == {1}
    assert sum(publisher.seen.values()) == 10


async def test_one_row_that_the_database_refuses_does_not_keep_its_neighbours(box: Box) -> None:
    """A trigger of somebody's own refuses to let one row be done."""
    row_ids = box.enqueue(10)
    bad_id = row_ids[4]
    box.conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF NEW.id = {bad_id} AND NEW.status = 'done' THEN RAISE EXCEPTION 'not this one'; END IF; "
        "RETURN NEW; END $$"
    )
    box.conn.execute("CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()")
    publisher = Recorder()
    async with box.dispatcher(publisher, notify=False) as dispatcher:
        await dispatcher.dispatch_once()
        assert dispatcher.counters.finalize_failures == 1
    assert box.statuses() == {"done": 9, "processing": 1}
    assert box.row(bad_id)["attempts"] == 1


@pytest.fixture
async def proxy(box: Box) -> AsyncIterator[Proxy]:
    info = box.conn.info
    async with Proxy(info.host, info.port) as made:
        yield made


async def test_a_server_that_falls_silent_is_given_up_on_and_found_again(box: Box, proxy: Proxy) -> None:
    """A black hole: packets vanish, no connection is ever closed."""
    publisher = Recorder()
    box.enqueue(5)
    dispatcher = box.dispatcher(publisher)
    dispatcher._store = proxy.url(box.url)
    async with running(dispatcher):
        await until(lambda: box.statuses() == {"done": 5})
        proxy.silent = True
        row_ids = box.enqueue(5)
        await until(lambda: proxy.swallowed > 0)
        await until(lambda: dispatcher.counters.reconnects + proxy.accepted_while_silent > 0)
        proxy.silent = False
        proxy.reset()
        await until(lambda: box.statuses() == {"done": 10})
    assert {box.row(each)["status"] for each in row_ids} == {"done"}


@pytest.mark.parametrize("how", ["silent", "refused"])
async def test_a_stop_with_the_database_gone_ends_within_the_grace_and_a_second(
    box: Box, proxy: Proxy, how: str
) -> None:
    gate = asyncio.Event()
    started_publishes: list[int] = []

    async def publish(message: Message, delivery: Delivery) -> None:
        started_publishes.append(message.id)
        await gate.wait()

    box.enqueue(3)
    dispatcher = box.dispatcher(publish, grace=timedelta(seconds=0.5), publish_timeout=timedelta(seconds=1.9))
    dispatcher._store = proxy.url(box.url)
    task = asyncio.create_task(dispatcher.run(handle_signals=False))
    await until(lambda: len(started_publishes) == 3)
    if how == "silent":
        proxy.silent = True
    else:
        await proxy.close()
    gate.set()
    started = time.monotonic()
    dispatcher.stop()
    assert await task is False
    assert time.monotonic() - started < 0.5 + 1.0


async def test_a_lost_answer_to_a_finalize_is_no_lost_lease(box: Box, proxy: Proxy) -> None:
    """The connection dies after the finalize was sent: it is repeated and recognises its own work."""
    (row_id,) = box.enqueue()

    async def publish(message: Message, delivery: Delivery) -> None:
        proxy.cut_after = b"SET status = 'done'"

    dispatcher = box.dispatcher(publish, notify=False)
    dispatcher._store = proxy.url(box.url)
    async with dispatcher:
        await dispatcher.dispatch_once()
        assert dispatcher.counters.lost_leases == 0
        assert dispatcher.counters.delivered == 1
    assert proxy.cuts == 1
    row = box.row(row_id)
    assert (row["status"], row["attempts"]) == ("done", 1)


def test_a_database_without_tables_is_refused_with_the_remedy(database18: str) -> None:
    from fencepost import Dispatcher, Route, SchemaError

    async def publish(message: Message) -> None:
        pass

    async def start() -> None:
        with contextlib.suppress(TimeoutError):
            await Dispatcher(database18, [Route("*", publish)]).run(handle_signals=False)

    with pytest.raises(SchemaError, match="fencepost migrate"):
        asyncio.run(start())


async def test_a_stop_with_the_database_gone_and_nothing_in_flight_is_clean_and_prompt(
    box: Box, proxy: Proxy
) -> None:
    dispatcher = box.dispatcher(Recorder(), grace=timedelta(seconds=20), notify=False)
    dispatcher._store = proxy.url(box.url)
    async with dispatcher:
        task = asyncio.create_task(dispatcher.run(handle_signals=False))
        await until(lambda: dispatcher.counters.reaped == 0 and dispatcher._is_busy)
        await proxy.close()
        await until(lambda: dispatcher._claim_link.is_out_of_reach)
        started = time.monotonic()
        dispatcher.stop()
        assert await task is True
        assert time.monotonic() - started < 5


# psycopg closes a connection that was cancelled in its last moments as garbage, with a warning of its own.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
async def test_a_connection_attempt_that_is_cut_short_leaves_nothing_behind(box: Box) -> None:
    """DROP DATABASE and others wait for a server process that waits for its client to log in."""
    limits = Limits.below(timedelta(seconds=60))
    unfinished = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state IS NULL"
    gc.collect()
    gc.disable()
    try:
        for turn in range(40):
            attempt = asyncio.create_task(connect(box.url, "test", limits))
            for _ in range(turn % 8):
                await asyncio.sleep(0.001)
            attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await attempt).close()
        await until(lambda: box.conn.execute(unfinished.encode()).fetchone() == (0,))
    finally:
        gc.enable()
