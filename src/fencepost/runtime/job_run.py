"""One job in this process, and one run of its handler: whatever that does, this returns how it went."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from fencepost.client.context import JobContext
from fencepost.client.tasks import Task
from fencepost.core.callables import Handler
from fencepost.core.error_text import describe, storable
from fencepost.core.job import ClaimedJob, Job, result_json
from fencepost.core.outcome import Cancelled, Delivered, Result, Unclear, Unstarted, Verdict, Verified
from fencepost.errors import LeaseLost
from fencepost.publishers.callable import checked_verdict
from fencepost.runtime.classify import classified
from fencepost.runtime.held import HeldRow, LateStart, refuse_late
from fencepost.runtime.threads import Threads

log = logging.getLogger("fencepost.worker")

DELIVERED = Delivered()


@dataclass(slots=True, eq=False)
class HeldJob(HeldRow):
    """One claimed job in this process; ``task`` is None where this worker does not know it."""

    claimed: ClaimedJob
    task: Task | None
    soft_at: float | None = None
    """Monotonic instant at which its soft limit is over."""
    progress: str | None = None
    """How far it has come, as JSON text."""
    said: str | None = None
    """What of that the last heartbeat took along."""
    result: str | None = None
    runner: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def id(self) -> int:
        return self.claimed.id

    @property
    def token(self) -> str:
        return self.claimed.token

    @property
    def lease(self) -> timedelta:
        return self.claimed.lease

    @property
    def beat_every(self) -> float:
        return self.claimed.lease.total_seconds() / 3

    def note(self, progress: str) -> None:
        self.progress = progress

    def soft_limit_is_over(self) -> bool:
        return self.soft_at is not None and time.monotonic() >= self.soft_at

    def context(self, is_stopping: Callable[[], bool]) -> JobContext:
        """Describe this attempt to its handler."""
        claimed = self.claimed
        return JobContext(
            attempt=claimed.attempt,
            max_attempts=claimed.max_attempts,
            token=claimed.fence,
            may_be_repeat=claimed.may_be_repeat,
            worker=claimed.owner,
            lost=self.lost,
            remaining=self.remaining,
            soft_limit_is_over=self.soft_limit_is_over,
            is_stopping=is_stopping,
            note=self.note,
        )


async def run_job(
    held: HeldJob,
    task: Task,
    context: JobContext,
    threads: Threads,
    on_unexpected: Callable[[BaseException], None],
) -> Result:
    """Run a job's handler, its verifier before where that is due, and classify how it ended.

    Time-outs and lost leases are the caller's: it cancels this task.

    Raises:
        asyncio.CancelledError: only when this task itself is cancelled.
    """

    def unexpected(cause: BaseException) -> None:
        log.error(
            "task %s raised an unclassified exception in job %d: treated as retryable",
            storable(task.name, 200),
            held.id,
            exc_info=(type(cause), cause, cause.__traceback__),
        )
        on_unexpected(cause)

    try:
        job = held.claimed.job
        if task.args is not None:
            job = job.with_args(task.arguments.decoded(held.claimed.args_json))
        if held.claimed.is_to_verify:
            verdict = await _verified(task, job, context, threads)
            if verdict is not Verdict.NOT_DONE:
                return _known(task, verdict)
        assert task.handler is not None  # noqa: S101 - for the type checker: a worker refuses tasks without one
        value = await _called(task.handler, job, context, threads)
    except LateStart:
        return Unstarted()
    except BaseException as error:  # noqa: BLE001 - classified there
        if (
            isinstance(error, LeaseLost) and held.lost
        ):  # else it is not this lease, and no reason to run it for nothing
            return Cancelled(storable(str(error)))
        return classified(error, unexpected)
    if task.keep_result:
        held.result = _kept(held, value)
    return DELIVERED


async def _verified(task: Task, job: Job, context: JobContext, threads: Threads) -> Verdict:
    if task.verifier is None:
        return Verdict.UNKNOWN
    return checked_verdict(await _called(task.verifier, job, context, threads))


def _known(task: Task, verdict: Verdict) -> Result:
    if verdict is Verdict.DONE:
        return Verified()
    if task.verifier is None:
        return Unclear(
            f"it was begun before and nobody knows how far it came: task {task.name!r} has no verifier "
            f"(@jobs.verify({task.name!r})); look, then retry or fail it"
        )
    return Unclear("it was begun before, and its verifier does not know how far it came")


async def _called(handler: Handler, job: Job, context: JobContext, threads: Threads) -> Any:
    def call() -> Any:
        refuse_late(context.lost, context.remaining())
        return handler.call(job, context)

    if handler.is_async:
        return await call()
    value = await threads.call(call)
    return await value if inspect.isawaitable(value) else value


def _kept(held: HeldJob, value: Any) -> str | None:
    """Return a result as JSON text; what cannot be kept must not undo what is done."""
    try:
        return result_json(value)
    except Exception as error:  # noqa: BLE001 - a value of the user's can raise anything while it is read
        log.error("the result of job %d is not kept: %s", held.id, describe(error))
        return None
