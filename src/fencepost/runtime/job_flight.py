"""What runs in a worker: jobs from their start to the decision about their result."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from fencepost.client.tasks import Task
from fencepost.config import WorkerSettings
from fencepost.core.error_text import describe, storable
from fencepost.core.job import KNOWS_NO_TASK
from fencepost.core.lease import TrustWindow
from fencepost.core.outcome import (
    Action,
    Cancelled,
    Disabled,
    Failed,
    Refused,
    Reschedule,
    Result,
    RetryPolicy,
    TimedOut,
    Unstarted,
    decide,
)
from fencepost.core.states import Event, Recovery
from fencepost.runtime.finalizer import Finalizer
from fencepost.runtime.held import Held, Stage
from fencepost.runtime.job_claimer import JobBatch
from fencepost.runtime.job_results import JobCounters
from fencepost.runtime.job_run import HeldJob, run_job
from fencepost.runtime.shutdown import Stop
from fencepost.runtime.threads import Threads

log = logging.getLogger("fencepost.worker")

UNKNOWN_TASK_POLICY = RetryPolicy()

UNKNOWN_TASK_PAUSE = 10.0
"""Seconds, on average, until such a job is claimed again: by a worker that knows its task, if there is one."""

MOST_UNWRITTEN = 4
"""Results that may wait to be written, as a multiple of the concurrency, before nothing else is claimed."""

PROBATION = 30.0
"""Seconds that a job on which a worker may have crashed runs with nothing else beside it."""

LEAST_PATIENCE, MOST_PATIENCE = 0.2, 30.0
"""Seconds that a suspect waits for the jobs that run, before nothing else is started."""


class JobFlight:
    """Starts jobs, and hands what comes of them to the finalizer.

    Args:
        tasks: those that have a handler, by name.
        on_survived: called when a job ended on which one worker may have crashed, and no more.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        tasks: Mapping[str, Task],
        held: Held[HeldJob],
        finalizer: Finalizer[HeldJob],
        counters: JobCounters,
        stop: Stop,
        on_survived: Callable[[], None],
    ) -> None:
        self._settings, self._tasks, self._held, self._finalizer = settings, tasks, held, finalizer
        self._counters, self._stop, self._on_survived = counters, stop, on_survived
        self._policies = {name: task.policy for name, task in tasks.items()}
        self._threads = Threads(self._thread_ended, self._note_hung_thread, "fencepost job")
        self._flight: set[HeldJob] = set()
        self._probation_until = 0.0
        self._usual_duration = 0.0
        self._is_cut_off = False
        self.ended = asyncio.Event()
        """Set when a job, a thread or the writing of a result has ended."""
        self.unexpected: BaseException | None = None
        """What is to stop the worker, with ``on_unexpected="stop"``."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs."""
        return not self._flight

    # --- room ------------------------------------------------------------------------------------------------

    def free(self) -> int:
        if self._flight and time.monotonic() < self._probation_until:
            return 0
        if self._finalizer.backlog >= MOST_UNWRITTEN * self._settings.concurrency:
            return 0  # jobs end faster than their results can be written
        return self._settings.concurrency - len(self._flight) - self._threads.abandoned

    def left_of_probation(self) -> float | None:
        left = self._probation_until - time.monotonic()
        return left if left > 0 else None

    def patience(self) -> float:
        return min(MOST_PATIENCE, max(LEAST_PATIENCE, 3 * self._usual_duration))

    # --- running ---------------------------------------------------------------------------------------------

    def start(self, batch: JobBatch) -> None:
        held = [
            HeldJob(
                TrustWindow(batch.sent_at, claimed.lease.total_seconds()),
                batch.sent_at,
                claimed,
                self._tasks.get(claimed.job.task),
            )
            for claimed in batch.claimed
        ]
        self._counters.claimed += len(held)
        self._held.add(held)
        if batch.is_suspect:
            self._probation_until = time.monotonic() + PROBATION
        for each in held:
            self._begin(each)

    def _begin(self, held: HeldJob) -> None:
        if held.task is None:
            self._give_back_unknown(held)
        elif self._stop.asked.is_set() or held.window.is_over(time.monotonic()):
            # (The answer to a claim may come so late that its leases are over.)
            self._finish(held, Unstarted())
        else:
            self._flight.add(held)
            held.runner = asyncio.create_task(self._run(held, held.task))

    def _give_back_unknown(self, held: HeldJob) -> None:
        name = storable(held.claimed.job.task, 200)
        log.error("job %d: this worker knows no task %r and gives it back to others", held.id, name)
        pause = timedelta(seconds=UNKNOWN_TASK_PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
        text = f"worker {self._settings.owner}{KNOWS_NO_TASK}{name!r}: given back to others"
        self._finalizer.submit(held, Reschedule(Event.DEFER, pause, text, refund_attempt=True))

    async def _run(self, held: HeldJob, task: Task) -> None:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        held.stage = Stage.PUBLISHING
        timer: asyncio.TimerHandle | None = None
        if task.soft_limit is not None:
            held.soft_at = began + task.soft_limit.total_seconds()
        if task.hard_limit is not None:
            held.deadline = began + task.hard_limit.total_seconds()
            timer = loop.call_later(task.hard_limit.total_seconds(), self._time_out, held)
        held.lost.call(lambda: _from_any_thread(loop, held))
        result: Result = Unstarted()
        try:
            # A task that is cancelled before its first step never runs: it looks here.
            if not (self._is_cut_off or held.lost):
                context = held.context(self._stop.asked.is_set)
                result = await run_job(held, task, context, self._threads, self._note_unexpected)
        except asyncio.CancelledError:
            result = self._cancelled(held, task)
        except Exception as error:
            # It may have run: given back as unstarted it would run again for nothing, and so for ever.
            log.exception("the run of job %d ended in a way that is not understood", held.id)
            result = TimedOut(describe(error))
        finally:
            if timer is not None:
                timer.cancel()
            self._land(held, result, time.monotonic() - began)

    def _land(self, held: HeldJob, result: Result, seconds: float) -> None:
        self._flight.discard(held)
        self._usual_duration += (seconds - self._usual_duration) / 8
        if not self._flight:
            self._probation_until = 0.0
        if held.claimed.reclaim_count == 1:
            self._on_survived()
        if held.stage is not Stage.FINALIZING:  # else it was given up on
            self._finish(held, result)
        self.ended.set()

    # --- results ---------------------------------------------------------------------------------------------

    def _finish(self, held: HeldJob, result: Result) -> None:
        if isinstance(result, TimedOut):
            self._counters.timed_out += 1
        try:
            action = self._decide(held, result)
        except Exception as error:
            # Such as a delay that is no delay: the job must not be held for ever because of it.
            log.exception("the result of job %d makes no sense: treated as retryable", held.id)
            action = self._decide(held, TimedOut(describe(error)))
        self._finalizer.submit(held, action)

    def _decide(self, held: HeldJob, result: Result) -> Action:
        claimed = held.claimed
        if isinstance(result, Disabled):
            result = Refused(result.error)  # there is no destination to pause
        action = decide(
            result,
            _limited(self._policies.get(claimed.job.task, UNKNOWN_TASK_POLICY), claimed.max_attempts),
            attempt=claimed.attempt,
            recovery=claimed.recovery,
            age=claimed.age + timedelta(seconds=time.monotonic() - held.claimed_at),
            fraction=random.random(),  # noqa: S311 - jitter, not a secret
        )
        if isinstance(result, Cancelled) and self._is_cut_off and claimed.recovery is not Recovery.MANUAL:
            # Unlike a message's: a deploy must not use up the attempts of jobs that outlast its grace time. (But
            # not the first one of a job to be verified: the next has to ask about it. And not where the lease was
            # lost: a job whose handler keeps the heartbeats from their thread would run again for nothing.)
            refund = claimed.recovery is Recovery.AUTO or claimed.attempt > 1
            return Reschedule(Event.CANCELLED, timedelta(0), result.error, refund_attempt=refund, is_unknown=True)
        return action

    def _cancelled(self, held: HeldJob, task: Task) -> Result:
        """Tell what cancelled its task: its hard limit, we, or the handler itself."""
        if held.timed_out:
            return self._timed_out(task)
        if held.lost or self._is_cut_off:
            return Cancelled()
        return Failed("its handler cancelled its own task", unexpected=True)

    def _time_out(self, held: HeldJob) -> None:
        held.cancelled_at = time.monotonic()
        if held.runner is not None:
            held.runner.cancel()

    def _timed_out(self, task: Task) -> TimedOut:
        limit = task.hard_limit or timedelta(0)
        return TimedOut(f"it ran for longer than the hard time limit of {limit.total_seconds():g} s")

    def give_up_on_overdue(self) -> None:
        """Finish the jobs whose handler goes on although it was cancelled at its hard limit."""
        now = time.monotonic()
        for held in [each for each in self._flight if each.ignores_its_time_out(now) and each.task is not None]:
            log.error("the handler of job %d ignores its hard limit; its slot stays taken until it ends", held.id)
            if held.task is not None and held.stage is not Stage.FINALIZING:
                held.lost.set()
                self._finish(held, self._timed_out(held.task))

    # --- landing ---------------------------------------------------------------------------------------------

    async def landed(self) -> None:
        while self._in_flight():
            self.ended.clear()
            await self.ended.wait()

    def _in_flight(self) -> list[HeldJob]:
        return [each for each in self._flight if each.stage is not Stage.FINALIZING]

    async def cut_off(self, patience: float) -> None:
        self._is_cut_off = True
        running = [each.runner for each in self._flight if each.runner is not None]
        for each in self._in_flight():
            each.lost.set()  # for handlers in threads, which cannot be cancelled
        for runner in running:
            runner.cancel()
        if running and patience:
            await asyncio.wait(running, timeout=patience)
        for held in self._held.in_stage(Stage.PUBLISHING):
            self._finish(held, Cancelled())
        for held in self._held.in_stage(Stage.WAITING):
            self._finish(held, Unstarted())

    # --- what handlers do besides ----------------------------------------------------------------------------

    def _thread_ended(self) -> None:
        self.ended.set()

    def _note_hung_thread(self, hung: int) -> None:
        self._counters.hung_threads += 1
        log.error(
            "a handler hangs in its thread although it was told to stop; such threads take %d of %d slots%s",
            hung,
            self._settings.concurrency,
            ": nothing is claimed any more, restart this process" if hung >= self._settings.concurrency else "",
        )

    def _note_unexpected(self, error: BaseException) -> None:
        self._counters.unexpected += 1
        if self._settings.on_unexpected == "stop" and self.unexpected is None:
            self.unexpected = error
            self._stop.asked.set()


@functools.lru_cache(maxsize=1_000)
def _limited(policy: RetryPolicy, max_attempts: int) -> RetryPolicy:
    """Return the limits of a job: its task's, but for its own limit of attempts."""
    return replace(policy, max_attempts=max_attempts)


def _from_any_thread(loop: asyncio.AbstractEventLoop, held: HeldJob) -> None:
    """Cancel a handler whose lease is lost; its loop may be closed already."""
    if held.runner is not None and not loop.is_closed():
        loop.call_soon_threadsafe(held.runner.cancel)
