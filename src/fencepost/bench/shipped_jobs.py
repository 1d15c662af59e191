"""The worker as it is shipped, with handlers that do nothing, or that note when they began.

Run as ``python -m fencepost.bench.shipped_jobs``; see `fencepost.bench.contender`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from fencepost.bench.contender import Assignment, Drained, Start, report
from fencepost.bench.job_tables import TASK, THREADED_TASK
from fencepost.client.jobs import AsyncJobs
from fencepost.core.job import Job
from fencepost.runtime.loop import new_event_loop
from fencepost.runtime.worker import Worker

LEASE, SLEEP = "lease", "sleep"
"""Not a worker's settings: the lease of the tasks, and how long the async handler sleeps, in seconds."""

_LOOK_SECONDS = 0.005

Stamps = list[tuple[int, int]]


def _jobs(settings: Mapping[str, Any], stamps: Stamps) -> AsyncJobs:
    jobs = AsyncJobs()
    lease, sleep = timedelta(seconds=settings.get(LEASE, 60)), settings.get(SLEEP)

    @jobs.task(TASK, lease=lease)
    async def stamp(job: Job) -> None:
        # The same clock in every process of the machine.
        stamps.append((job.id, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
        if sleep is not None:
            await asyncio.sleep(sleep)

    @jobs.task(THREADED_TASK, lease=lease)
    def nothing(_job: Job) -> None:
        """Be done at once, in a thread."""

    return jobs


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn numbers, which can travel as JSON, into a worker's settings."""
    return {
        name: timedelta(seconds=value) if name == "poll_interval" else value
        for name, value in given.items()
        if name not in (LEASE, SLEEP)
    }


async def _drain(assignment: Assignment, start: Start) -> Drained:
    stamps: Stamps = []
    jobs = _jobs(assignment.settings, stamps)
    async with Worker(assignment.url, jobs, **_settings(assignment.settings)) as worker:
        await asyncio.to_thread(start)
        started = time.monotonic()
        running = asyncio.create_task(worker.run(handle_signals=False))
        # The worker tells nobody that it has nothing left: to it, more may come at any time.
        while worker.counters.completed < assignment.messages and not running.done():  # noqa: ASYNC110 - hence
            await asyncio.sleep(_LOOK_SECONDS)
        seconds = time.monotonic() - started
        worker.stop()
        await running
        return Drained(worker.counters.completed, seconds, stamps=stamps)


def drain(assignment: Assignment, start: Start) -> Drained:
    """Run the worker, settings at their defaults unless told, until every job is done."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_drain(assignment, start))


if __name__ == "__main__":
    report(drain)
