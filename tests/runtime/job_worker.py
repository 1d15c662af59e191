"""A worker in a process of its own, for tests that kill it: ``python -m tests.runtime.job_worker URL OPTIONS``.

Each run of a handler is written to the table ``ran`` over a connection of its own, so that it is seen whatever
happens to the process next. Some tasks misbehave on purpose.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from datetime import timedelta
from typing import Any

import psycopg

from fencepost import Job, JobContext, Jobs, Worker

RAN = """
CREATE TABLE ran (
    at timestamptz DEFAULT clock_timestamp(), id bigint, task text, key text, attempt int, token bigint,
    owner text, ended_at timestamptz
)
"""

LEASE = timedelta(seconds=1)

JOBS = Jobs(allow_autocommit=True)
_quick: Any = {"lease": LEASE, "backoff_base": timedelta(milliseconds=1), "backoff_cap": timedelta(milliseconds=2)}


class Record:
    """Writes down that a handler began, and that it ended."""

    url = ""

    def begin(self, job: Job, context: JobContext) -> None:
        self._write(
            "INSERT INTO ran (id, task, key, attempt, token, owner) VALUES (%s, %s, %s, %s, %s, %s)",
            [job.id, job.task, job.key, context.attempt, context.token, context.worker],
        )

    def end(self, job: Job, context: JobContext) -> None:
        self._write(
            "UPDATE ran SET ended_at = clock_timestamp() WHERE id = %s AND token = %s", [job.id, context.token]
        )

    def _write(self, statement: str, params: list[Any]) -> None:
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(statement.encode(), params)


RECORD = Record()


@JOBS.task("quick", max_attempts=3, **_quick)
def quick(job: Job, context: JobContext) -> None:
    """Ends at once."""
    RECORD.begin(job, context)
    RECORD.end(job, context)


@JOBS.task("poison", max_attempts=3, **_quick)
def poison(job: Job, context: JobContext) -> None:
    """Kills its process."""
    RECORD.begin(job, context)
    os._exit(9)


@JOBS.task("hang", **_quick)
def hang(job: Job, context: JobContext) -> None:
    """Goes on until its process is killed, in workers that are called victims; elsewhere it ends at once."""
    RECORD.begin(job, context)
    if context.worker.startswith("victim"):
        context.lost.wait(3600)
    RECORD.end(job, context)


@JOBS.task("alone", max_running_per_key=1, max_attempts=100, **_quick)
def alone(job: Job, context: JobContext) -> None:
    """Runs one at a time for each key."""
    hang(job, context)


@JOBS.task("slow", max_attempts=3, **_quick)
async def slow(job: Job, context: JobContext) -> None:
    """Works for a while, so that a restart meets it."""
    RECORD.begin(job, context)
    await asyncio.sleep(0.4)  # the work
    RECORD.end(job, context)


def main() -> None:
    url, options = sys.argv[1], json.loads(sys.argv[2])
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    RECORD.url = url
    settings: dict[str, Any] = {"poll_interval": timedelta(milliseconds=50), "grace": timedelta(seconds=5)} | {
        key: timedelta(seconds=value) if isinstance(value, float) else value for key, value in options.items()
    }
    worker = Worker(url, JOBS, **settings)
    drained = asyncio.run(_run(worker))
    print(json.dumps({"drained": drained, **worker.counters.as_dict()}), flush=True)
    sys.exit(0 if drained else 1)


async def _run(worker: Worker) -> bool:
    async with worker:
        running = asyncio.create_task(worker.run(exit_by_force=True))
        await asyncio.sleep(0)  # its signal handlers are in place now
        print("ready", flush=True)
        return await running


if __name__ == "__main__":
    main()
