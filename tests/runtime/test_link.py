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

from fencepost.runtime.link import Limits, Link
from fencepost.runtime.wakeup import Wakeup
from fencepost.store.catalog import Catalog

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
