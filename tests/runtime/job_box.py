"""What the tests of workers share: jobs to look into, workers with short times."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, Self, TypeVar

import psycopg
from psycopg.rows import dict_row

from fencepost import Jobs, Worker

F = TypeVar("F", bound=Callable[..., Any])

LEASE = timedelta(seconds=1)

QUICK: dict[str, Any] = {
    "poll_interval": timedelta(milliseconds=50),
    "grace": timedelta(seconds=5),
    "owner": "w1",
}

TASK: dict[str, Any] = {
    "lease": LEASE,
    "backoff_base": timedelta(milliseconds=1),
    "backoff_cap": timedelta(milliseconds=2),
}


class JobBox:
    """The jobs of one database, seen through an autocommit connection of the test's own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.jobs = Jobs(allow_autocommit=True)
        self.conn = psycopg.connect(url, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.conn.close()

    def task(self, name: str = "t", **options: Any) -> Callable[[F], F]:
        """Register a handler with times that are short and still safe together."""
        settings: Any = TASK | options
        return self.jobs.task(name, **settings)

    def enqueue(self, count: int = 1, task: str = "t", **options: Any) -> list[int]:
        return [self.jobs.enqueue(self.conn, task, {"n": n}, **options).id for n in range(count)]

    def row(self, row_id: int) -> dict[str, Any]:
        """Return one row with its ``xmin``."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute("SELECT xmin::text, * FROM outbox_job WHERE id = %s", [row_id])
            row = cursor.fetchone()
        assert row is not None
        return row

    def statuses(self) -> dict[str, int]:
        """Return the number of rows by status."""
        return dict(self.conn.execute("SELECT status, count(*) FROM outbox_job GROUP BY status").fetchall())

    def are_done(self, count: int) -> bool:
        return self.statuses() == {"done": count}

    def take_away(self, row_id: int) -> None:
        """Let a lease run out and another worker take the job over."""
        self.conn.execute(
            "UPDATE outbox_job SET attempt_token = gen_random_uuid(), fence = fence + 1, attempts = attempts + 1,"
            " reserved_by = 'other', lease_expires_at = now() + interval '1 hour'"
            " WHERE id = %s AND status = 'processing'",
            [row_id],
        )

    def held_before(self, row_id: int) -> None:
        """Let a queued job have been held by somebody before."""
        self.conn.execute(
            "UPDATE outbox_job SET fence = 1, attempts = 1, attempt_token = gen_random_uuid() WHERE id = %s",
            [row_id],
        )

    def worker(self, **options: Any) -> Worker:
        return Worker(self.url, self.jobs, **(QUICK | options))


@contextlib.asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[asyncio.Task[bool]]:
    """Run a worker in the background, and stop it at the end."""
    async with worker:
        task = asyncio.create_task(worker.run(handle_signals=False))
        try:
            yield task
        finally:
            worker.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await task
