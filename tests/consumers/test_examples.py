"""Each example as a process of its own, at a real broker: killed at the worst moments, one effect all the same."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from fencepost import Dispatcher, Outbox, Route
from fencepost.publishers.registry import publisher_for
from tests.consumers.places import EVENT, PLACES, Place, Site
from tests.servers import LOOK_SECONDS
from tests.store.databases import Migrated

ROOT = Path(__file__).parents[2]
PATIENCE = 40.0
COUNT = 3

KILLED_BEFORE = {"nats_consumer", "redis_consumer", "faststream_nats"}
"""Examples that are killed before the commit as well: what is left then is no matter of the broker.

`make consumers` kills every one of them at any moment.
"""


@pytest.fixture
def invoices(migrated: Migrated) -> Migrated:
    fresh_invoices(migrated)
    return migrated


def fresh_invoices(db: Migrated) -> None:
    """Empty everything; the table of effects does not refuse a second one."""
    db.empty()
    db.janitor.execute(
        "DROP TABLE IF EXISTS invoice; CREATE TABLE invoice (message_id text NOT NULL, order_id int NOT NULL)"
    )


def made(db: Migrated) -> list[str]:
    return [row[0] for row in db.janitor.execute("SELECT message_id FROM invoice ORDER BY order_id").fetchall()]


def enqueued(db: Migrated, count: int) -> list[str]:
    outbox = Outbox()
    with db.janitor.transaction():
        return [
            str(outbox.enqueue(db.janitor, EVENT, {"id": number}, ordering_key="k").message_id)
            for number in range(count)
        ]


@asynccontextmanager
async def dispatching(url: str, place: Place) -> AsyncIterator[None]:
    quick = timedelta(milliseconds=50)
    dispatcher = Dispatcher(
        url,
        [Route("*", publisher_for(place.to))],
        poll_interval=quick,
        backoff_base=quick,
        backoff_cap=quick,
        breaker_cap=quick,
        max_attempts=10_000,
    )
    async with dispatcher:
        running = asyncio.create_task(dispatcher.run())
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@asynccontextmanager
async def consuming(
    example: str, moment: str, url: str, place: Place, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an example, killed at this moment, and at the end in any case."""
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.consumers.crash", moment),
            str(ROOT / "examples" / f"{example}.py"),
            cwd=ROOT,
            env=os.environ | {"DATABASE_URL": url, **place.environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def killed(process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        code = await process.wait()
    assert code == -signal.SIGKILL, said(log)


def said(log: Path) -> str:
    """Return what an example wrote."""
    return log.read_text(errors="replace")


@pytest.mark.parametrize("example", PLACES)
async def test_an_example_that_is_killed_makes_each_effect_once(
    example: str, invoices: Migrated, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    site = Site(tmp_path, invoices.url, lambda: request.getfixturevalue("rabbit_server"))
    url, log = invoices.url, tmp_path / "example.log"
    async with PLACES[example](site) as place, dispatching(url, place):
        wanted = enqueued(invoices, COUNT)
        if example in KILLED_BEFORE:
            async with consuming(example, "before-commit", url, place, log) as process:
                await killed(process, log)
            assert made(invoices) == [], "nothing of it is left"
        async with consuming(example, "after-commit", url, place, log) as process:
            await killed(process, log)
        assert made(invoices), "committed; more than one where messages are handled side by side"
        assert await place.left(COUNT) == COUNT, "and none is acknowledged"
        async with consuming(example, "never", url, place, log) as process, asyncio.timeout(PATIENCE):
            while len(made(invoices)) < COUNT or await place.left(COUNT) > 0:
                assert process.returncode is None, said(log)
                await asyncio.sleep(LOOK_SECONDS)
    assert Counter(made(invoices)) == Counter(wanted)
