"""What the runtime tests share: an outbox to look into, dispatchers with short times, conditions to await."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row

from fencepost import Dispatcher, NewMessage, Outbox, Route

PATIENCE = 30.0
"""Seconds after which an awaited condition counts as never coming: far above what it takes on a slow machine."""

QUICK: dict[str, Any] = {
    "lease": timedelta(seconds=2),
    "publish_timeout": timedelta(seconds=1),
    "poll_interval": timedelta(milliseconds=50),
    "backoff_base": timedelta(milliseconds=1),
    "backoff_cap": timedelta(milliseconds=2),
    "grace": timedelta(seconds=5),
    "owner": "w1",
}


class Box:
    """One outbox, seen through an autocommit connection of the test's own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outbox = Outbox(allow_autocommit=True)
        self.conn = psycopg.connect(url, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.conn.close()

    def enqueue(self, count: int = 1, event_type: str = "test", **options: Any) -> list[int]:
        messages = [NewMessage(event_type=event_type, payload={"n": n}, **options) for n in range(count)]
        return [receipt.id for receipt in self.outbox.enqueue_many(self.conn, messages)]

    def row(self, row_id: int) -> dict[str, Any]:
        """Return one row with its ``xmin``."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute("SELECT xmin::text, * FROM outbox WHERE id = %s", [row_id])
            row = cursor.fetchone()
        assert row is not None
        return row

    def statuses(self) -> dict[str, int]:
        """Return the number of rows by status."""
        return dict(self.conn.execute("SELECT status, count(*) FROM outbox GROUP BY status").fetchall())

    def expire(self, row_id: int) -> None:
        """Let a lease run out at once."""
        self.conn.execute(
            "UPDATE outbox SET lease_until = now() - interval '1 second' WHERE id = %s AND status = 'processing'",
            [row_id],
        )

    def dispatcher(self, publisher: Any, **options: Any) -> Dispatcher:
        """Make a dispatcher with times that are short and still safe together."""
        routes = publisher if isinstance(publisher, list) else [Route("*", publisher)]
        return Dispatcher(self.url, routes, **(QUICK | options))


@contextlib.asynccontextmanager
async def running(dispatcher: Dispatcher) -> AsyncIterator[asyncio.Task[bool]]:
    """Run a dispatcher in the background, and stop it at the end."""
    async with dispatcher:
        task = asyncio.create_task(dispatcher.run(handle_signals=False))
        try:
            yield task
        finally:
            dispatcher.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Stubborn:
    """What ignores its cancellation until the block ends: so a test that fails comes to its end as well."""

    def __init__(self) -> None:
        self._go = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._go.set()

    async def wait(self) -> None:
        """Wait for the end of the block, whatever happens meanwhile."""
        while not self._go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._go.wait()


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait until a condition holds, looking every few milliseconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {PATIENCE:g} s"
        await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait for a condition from a test without an event loop."""
    asyncio.run(until(condition, what))


@contextlib.contextmanager
def locked(box: Box, row_id: int) -> Iterator[psycopg.Connection[Any]]:
    """Hold a row lock from another session until the block ends."""
    with psycopg.connect(box.url) as conn:
        conn.execute("SELECT 1 FROM outbox WHERE id = %s FOR UPDATE", [row_id])
        yield conn
        conn.rollback()
