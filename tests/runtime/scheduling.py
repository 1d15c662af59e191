"""A worker with one schedule; in a process of its own: ``python -m tests.runtime.scheduling URL OPTIONS``.

Its jobs are left queued, as it serves a queue that has none: what is looked at is what was enqueued.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import timedelta
from typing import Any

from fencepost import Jobs, Worker

NAME, TASK = "beat", "report"
EVERY_SECOND = "* * * * * *"


def scheduled(expression: str = EVERY_SECOND, args: Any = None, *, name: str = NAME, **options: Any) -> Jobs:
    """Return jobs with a task and a schedule of it."""
    jobs = Jobs()
    jobs.task(TASK)(lambda _job: None)
    jobs.task("other")(lambda _job: None)
    task = options.pop("task", TASK)
    jobs.schedule(name, expression, task, args, **options)
    return jobs


def worker(url: str, jobs: Jobs, **settings: Any) -> Worker:
    """Return a worker that looks often and serves a queue that stays empty."""
    quick: dict[str, Any] = {"poll_interval": timedelta(seconds=0.1), "queues": ["nothing"]}
    return Worker(url, jobs, **quick | settings)


async def _run(url: str, options: dict[str, Any]) -> None:
    made = worker(url, scheduled(**options))
    async with made:
        print("ready", flush=True)
        await made.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(_run(sys.argv[1], json.loads(sys.argv[2])))
