"""The dispatcher's connection to the database."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, cast

import psycopg
import pytest

from fencepost.core.operation import Operation, Statement
from fencepost.embedded import PostgresServer
from fencepost.runtime.link import Limits, Link
from fencepost.runtime.wakeup import Wakeup
from fencepost.store.catalog import Catalog
from tests.postgres import fresh_database

PROGRAM = """
import asyncio, sys, time
import uvloop
from fencepost.core.operation import Statement
from fencepost.runtime.link import Limits, Link
from fencepost.store.catalog import Catalog

def slow():
    yield Statement("slow", "SELECT pg_sleep(5)", {})

async def main():
    link = Link(sys.argv[1], Catalog(), Limits(20, 5, 30, 40, answer=0.3), "test", lambda: None)
    await link.open()
    asyncio.get_running_loop().call_later(0.05, time.sleep, 0.6)
    try:
        await link.run(slow, tries=1)
    except TimeoutError as error:
        print(error)

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def test_a_process_that_was_stopped_while_it_waited_for_the_database_goes_on(database18: str) -> None:
    """psycopg's tick and our time limit are due in one turn of the loop then; uvloop aborted the process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, database18], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "no answer from the database within 0.3 s\n"), done.stderr


LIMITS = Limits.below(timedelta(seconds=60))


WITHOUT_AN_INDEX = Statement("look", "EXPLAIN (ANALYZE, FORMAT JSON) SELECT sum(n * n) FROM public.t")


async def test_no_statement_of_a_worker_is_compiled_first(postgres15: PostgresServer) -> None:
    """Where a scan is ruled out and taken all the same, its price before PostgreSQL 18 brings the compiler in."""

    def look() -> Operation[Any]:
        rows = yield WITHOUT_AN_INDEX
        return rows[0][0][0]

    with fresh_database(postgres15) as url:
        with psycopg.connect(url, autocommit=True) as plain:
            plain.execute("CREATE TABLE t AS SELECT n FROM generate_series(1, 10) n")
            plain.execute("SET enable_seqscan = off")
            row = plain.execute(WITHOUT_AN_INDEX.sql.encode()).fetchone()
            assert row is not None
            assert "JIT" in row[0][0], "a server that compiles nothing shows nothing"
        link = Link(url, Catalog(), LIMITS, "test", lambda: None)
        await link.open()
        found = await link.run(look)
        await link.close()
    assert found["Plan"]["Node Type"] == "Aggregate"
    assert "JIT" not in found


def _answered(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    return Link("postgresql://nowhere", Catalog(), LIMITS, "test", lambda: None)._answered(work, 10)


def _listened(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    class Connection:
        async def execute(self, _: str) -> None:
            await work

    return Wakeup()._answer(cast("psycopg.AsyncConnection[Any]", Connection()), 10)


@pytest.mark.parametrize("waited_for", [_answered, _listened])
async def test_a_fault_in_the_moment_of_a_cancellation_leaves_no_complaint(
    waited_for: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]],
) -> None:
    """Chaos found it: a connection that was cut just as its worker was told to end left a traceback in the log."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await _cut_and_cancelled(waited_for)
    gc.collect()
    assert complaints == []


async def _cut_and_cancelled(waited_for: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]) -> None:
    cut = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await cut
        raise OSError("the connection was cut")

    waiting = asyncio.create_task(waited_for(work()))
    for _ in range(5):
        await asyncio.sleep(0)  # it waits by then
    cut.set_result(None)
    await asyncio.sleep(0)  # the work has failed now, and whoever waits for it has not been told yet
    waiting.cancel()
    await asyncio.wait([waiting])
