"""What a handler is told about its attempt, and what it may ask and say while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fencepost.core.job import progress_json
from fencepost.errors import LeaseLost, SoftLimitReached
from fencepost.publishers.base import LostSignal


@dataclass(frozen=True, slots=True)
class JobContext:
    """One attempt at one job; safe to use from any thread.

    Args:
        attempt: 1 for the first attempt, counted at claim.
        max_attempts: the limit.
        token: rises with every claim of this job and never falls: hand it to a receiver that refuses older ones.
        may_be_repeat: somebody held this job before, so that its effect may be there.
        worker: who runs it.
        lost: set when the lease is lost; test it, await it, or wait for it in a thread.
        remaining: returns the seconds of lease left, by this process's monotonic clock.
        soft_limit_is_over: returns whether the task's soft limit is over.
        is_stopping: returns whether the worker was told to stop: a long job may wrap up and raise `Defer`.
        note: takes progress as JSON text.
    """

    attempt: int
    max_attempts: int
    token: int
    may_be_repeat: bool
    worker: str
    lost: LostSignal
    remaining: Callable[[], float]
    soft_limit_is_over: Callable[[], bool]
    is_stopping: Callable[[], bool]
    note: Callable[[str], None]

    def check_lease(self) -> None:
        """Go on only if the job is still ours.

        Raises:
            LeaseLost: somebody else may be running it: stop now.
            SoftLimitReached: it has run for longer than the soft limit of its task.
        """
        if self.lost:
            raise LeaseLost("the lease of this job is lost: somebody else may be running it")
        if self.soft_limit_is_over():
            raise SoftLimitReached("the soft time limit of its task is over")

    def progress(self, value: Any) -> None:
        """Say how far it has come: anything that JSON can hold, up to 4 KiB. The next heartbeat takes it along.

        Raises:
            InvalidMessage: JSON cannot hold it, or it is too large.
            LeaseLost: see `check_lease`.
        """
        text = progress_json(value)
        if self.lost:
            self.check_lease()
        self.note(text)
