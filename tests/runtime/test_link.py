"""The dispatcher's connection to the database."""

from __future__ import annotations

import subprocess
import sys

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
