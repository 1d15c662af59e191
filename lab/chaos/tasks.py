"""The jobs of the run: ``fencepost work lab.chaos.tasks:jobs``. Each start and end of a handler becomes a line."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

from fencepost import Defer, Jobs, Permanent, Retryable
from lab.chaos.terms import BACKOFF_BASE, BACKOFF_CAP, JOB_LEASE, MAX_ATTEMPTS, Told, block, seconds
from lab.checker.recording import Recorder

jobs = Jobs()

TERMS: dict[str, Any] = {
    "lease": seconds(JOB_LEASE),
    "backoff_base": seconds(BACKOFF_BASE),
    "backoff_cap": seconds(BACKOFF_CAP),
    "max_attempts": MAX_ATTEMPTS,
}
TASKS = (
    ("plain", False, "auto"),
    ("awaited", False, "auto"),
    ("long", False, "auto"),
    ("keyed", True, "auto"),
    ("by_hand", False, "manual"),
    ("flaky", False, "auto"),
)
"""Name, whether it counts by key, and its recovery."""
LANES = {"keyed": {"per_key": 1}}


@cache
def _own() -> tuple[Told, Recorder, random.Random]:
    """What this process writes with; made at its first job, since producers import this module as well."""
    told = Told.from_environment()
    return told, Recorder(told.folder, told.process), random.Random(told.seed)


@contextmanager
def _recorded(job: Any, context: Any) -> Iterator[random.Random]:
    told, recorder, chance = _own()
    about = {"job_id": str(job.job_id), "id": job.id, "fence": context.token}
    recorder.write(
        "job_start",
        **about,
        attempt=context.attempt,
        owner=told.owner,
        pid=os.getpid(),
        task=job.task,
        lane=job.key,
    )
    result = "completed"
    try:
        yield chance
    except BaseException as error:
        result = _result(error)
        raise
    finally:
        recorder.write("job_end", **about, result=result)


def _result(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    names = {Retryable: "failed", Defer: "deferred", Permanent: "permanent"}
    return next((name for kind, name in names.items() if isinstance(error, kind)), "unexpected")


@jobs.task("plain", **TERMS)
def plain(job: Any, context: Any) -> None:
    with _recorded(job, context) as chance:
        block(chance.random() * 0.2)  # the work


@jobs.task("awaited", ledger=True, **TERMS)
async def awaited(job: Any, context: Any) -> None:
    with _recorded(job, context) as chance:
        await asyncio.sleep(chance.random() * 0.2)
        context.progress({"half": True})


@jobs.task("long", **TERMS)
async def long(job: Any, context: Any) -> None:
    """Longer than its lease: it lives by its heartbeats."""
    with _recorded(job, context):
        for step in range(8):
            await asyncio.sleep(JOB_LEASE / 5)
            context.progress(step)


@jobs.task("keyed", max_running_per_key=1, **TERMS)
def keyed(job: Any, context: Any) -> None:
    with _recorded(job, context) as chance:
        block(chance.random() * 0.2)


@jobs.task("by_hand", recovery="manual", ledger=True, **TERMS)
def by_hand(job: Any, context: Any) -> None:
    with _recorded(job, context) as chance:
        block(chance.random() * 0.2)


@jobs.task("flaky", ledger=True, hard_limit=timedelta(seconds=1), **TERMS)
async def flaky(job: Any, context: Any) -> None:
    with _recorded(job, context) as chance:
        draw = chance.random()
        if _own()[0].is_calm:
            return
        if draw < 0.2:
            raise Retryable("not\0now")
        if draw < 0.25:
            raise Permanent("never")
        if draw < 0.35:
            raise ValueError("nobody thought of this")
        if draw < 0.45:
            raise Defer(seconds(0.1))
        if draw < 0.5:
            await asyncio.sleep(5)  # past its hard limit
