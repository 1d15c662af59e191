"""The part of `Jobs` and `AsyncJobs` that is for operators: look, change, and find what is stuck."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from fencepost.client.sending import OnAsync, OnSync, OnTables
from fencepost.core.job import JobChanges, JobInfo, JobPage, JobStats
from fencepost.core.job_states import JobOutcome, JobState
from fencepost.core.job_stuck import StuckReport, StuckTerms
from fencepost.core.operation import Operation
from fencepost.errors import ConfigError
from fencepost.store import job_operators as store

E = TypeVar("E", bound=StrEnum)


class JobOperatorOperations(OnTables):
    """What both twins share: how arguments become operations."""

    __slots__ = ()

    notify: bool

    def _list(
        self,
        status: str | None,
        queue: str | None,
        task: str | None,
        outcome: str | None,
        after: str | None,
        limit: int,
    ) -> Operation[JobPage]:
        if limit < 1:
            raise ConfigError("list_jobs needs a limit above 0")
        which = store.JobFilter(
            None if status is None else _one_of("status", JobState, status),
            queue,
            task,
            None if outcome is None else _one_of("outcome", JobOutcome, outcome),
        )
        return store.list_jobs(self.catalog, which, after=after, limit=limit)

    def _retry(self, ids: Sequence[int], actor: str, reason: str | None) -> Operation[JobChanges]:
        return store.retry(self.catalog, ids, actor=actor, reason=reason, notify=self.notify)

    def _fail(self, ids: Sequence[int], actor: str, reason: str) -> Operation[JobChanges]:
        if not reason:
            raise ConfigError("fail needs a reason, which is kept with the job")
        return store.fail(self.catalog, ids, actor=actor, reason=reason)

    def _stuck(self, running: timedelta, waiting: timedelta, limit: int) -> Operation[StuckReport]:
        if running < timedelta(0) or waiting < timedelta(0) or limit < 1:
            raise ConfigError("stuck needs durations of at least 0 and a limit above 0")
        return store.stuck(self.catalog, StuckTerms(running, waiting), limit=limit)


def _one_of(name: str, kind: type[E], value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} {value!r} is none of {', '.join(kind)}") from None


class JobOperators(JobOperatorOperations, OnSync):
    """The methods of `Jobs`."""

    __slots__ = ()

    def list_jobs(
        self,
        conn: Any,
        status: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        outcome: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Return a page of jobs, without their arguments and results.

        What runs comes first, by id; then what is queued, by queue; what failed and what is done, by when.

        Args:
            status: ``queued``, ``processing``, ``failed`` or ``done``; None for all.
            outcome: of finished ones, such as ``unknown_outcome``.
            after: where to go on, `JobPage.after` of the page before, with the same filters.

        Raises:
            ConfigError: no such status or outcome, or ``after`` is no place in this list.
        """
        return self._run(conn, self._list(status, queue, task, outcome, after, limit))

    def show_job(self, conn: Any, identity: int | UUID) -> JobInfo | None:
        """Return one job with everything, by its id or its job id; None where there is none.

        There is no index on job ids.
        """
        return self._run(conn, store.show(self.catalog, identity))

    def retry(self, conn: Any, ids: Sequence[int], actor: str, reason: str | None = None) -> JobChanges:
        """Put failed jobs back to their queues with all their attempts, audited.

        Refused, with the reason, is what is not failed and what has a unique key that is taken meanwhile.
        """
        return self._run(conn, self._retry(ids, actor, reason))

    def cancel(self, conn: Any, ids: Sequence[int], actor: str, reason: str | None = None) -> JobChanges:
        """End queued and running jobs as ``cancelled``, audited.

        The worker of one that runs learns of it at its next heartbeat, and cancels the handler: until then it goes
        on, and what it has done stays done.
        """
        return self._run(conn, store.cancel(self.catalog, ids, actor=actor, reason=reason))

    def fail(self, conn: Any, ids: Sequence[int], actor: str, reason: str) -> JobChanges:
        """End queued and running jobs as ``failed``, audited; see `cancel`.

        Raises:
            ConfigError: there is no reason.
        """
        return self._run(conn, self._fail(ids, actor, reason))

    def stuck(
        self,
        conn: Any,
        running: timedelta = timedelta(hours=1),
        waiting: timedelta = timedelta(minutes=5),
        limit: int = 100,
    ) -> StuckReport:
        """Return what is stuck, since when, at which worker, and what to do about it.

        It reads what is in flight, and bounded fronts of what is queued and what failed.

        Args:
            running: longer than this is long for a job that runs and beats.
            waiting: longer than this is long for a job that is due.
            limit: how many of each kind at most.
        """
        return self._run(conn, self._stuck(running, waiting, limit))

    def stats(self, conn: Any) -> JobStats:
        """Count open jobs by queue, and failed ones by outcome."""
        return self._run(conn, store.stats(self.catalog))


class AsyncJobOperators(JobOperatorOperations, OnAsync):
    """The methods of `AsyncJobs`, the twin of `JobOperators`."""

    __slots__ = ()

    async def list_jobs(
        self,
        conn: Any,
        status: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        outcome: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Return a page of jobs; see `Jobs.list_jobs`."""
        return await self._run(conn, self._list(status, queue, task, outcome, after, limit))

    async def show_job(self, conn: Any, identity: int | UUID) -> JobInfo | None:
        """Return one job with everything; see `Jobs.show_job`."""
        return await self._run(conn, store.show(self.catalog, identity))

    async def retry(self, conn: Any, ids: Sequence[int], actor: str, reason: str | None = None) -> JobChanges:
        """Put failed jobs back to their queues; see `Jobs.retry`."""
        return await self._run(conn, self._retry(ids, actor, reason))

    async def cancel(self, conn: Any, ids: Sequence[int], actor: str, reason: str | None = None) -> JobChanges:
        """End queued and running jobs as ``cancelled``; see `Jobs.cancel`."""
        return await self._run(conn, store.cancel(self.catalog, ids, actor=actor, reason=reason))

    async def fail(self, conn: Any, ids: Sequence[int], actor: str, reason: str) -> JobChanges:
        """End queued and running jobs as ``failed``; see `Jobs.fail`."""
        return await self._run(conn, self._fail(ids, actor, reason))

    async def stuck(
        self,
        conn: Any,
        running: timedelta = timedelta(hours=1),
        waiting: timedelta = timedelta(minutes=5),
        limit: int = 100,
    ) -> StuckReport:
        """Return what is stuck and what to do about it; see `Jobs.stuck`."""
        return await self._run(conn, self._stuck(running, waiting, limit))

    async def stats(self, conn: Any) -> JobStats:
        """Count open jobs by queue, and failed ones by outcome; see `Jobs.stats`."""
        return await self._run(conn, store.stats(self.catalog))
