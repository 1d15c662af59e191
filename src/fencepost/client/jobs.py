"""`Jobs` and `AsyncJobs`: work inside the system, enqueued in the transaction of the change that calls for it.

None of the methods commits or rolls back. The twins differ in nothing but ``await``; what they share is in
`_JobOperations`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, Unpack
from uuid import uuid4

from fencepost.client.job_operators import AsyncJobOperators, JobOperators
from fencepost.client.schedules import Schedule, ScheduleOptions, checked_catch_up
from fencepost.client.tasks import Registry, TaskDecorators
from fencepost.core.job import EnqueuedJob, JobDraft, JobOptions, ReclaimedJob, job_draft
from fencepost.core.ledger import Attempt, Kind
from fencepost.core.operation import Operation
from fencepost.errors import ConfigError, InvalidMessage
from fencepost.observe.tracing import with_current_context
from fencepost.store import jobs as store
from fencepost.store import ledger, schedules
from fencepost.store.catalog import Catalog, Names
from fencepost.store.schedules import Definition, StoredSchedule

T = TypeVar("T")

ENQUEUED_IN_AUTOCOMMIT = "the job would be committed apart from the change that calls for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobOperations(TaskDecorators):
    """What both twins share: the settings, the tasks, and how arguments become operations.

    Args:
        schema_name: the schema that holds the tables.
        table: the outbox table's name, which the jobs' table is named after.
        notify: wake workers with NOTIFY; turn it off for two-phase commit, which forbids it.
        allow_autocommit: accept connections that commit each statement by itself.
        trace: put the W3C trace context of the current OpenTelemetry span, if there is one, into the headers.
    """

    schema_name: str = "public"
    table: str = "outbox"
    notify: bool = True
    allow_autocommit: bool = False
    trace: bool = True
    registry: Registry = field(default_factory=Registry, repr=False, compare=False)

    @property
    def catalog(self) -> Catalog:
        """The SQL of the tables."""
        return Catalog(Names(self.schema_name, self.table))

    def schedule(
        self,
        name: str,
        expression: str,
        task: str,
        args: Any = None,
        *,
        timezone: str = "UTC",
        catch_up: str = "last",
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Have a job enqueued at each tick of a cron expression: once, by one of the workers.

        It is declared beside the tasks, and touches no database: every worker of these jobs looks after it. A
        handler finds the tick in ``job.scheduled_for``.

        Args:
            name: of the schedule; what it has come to is kept under it.
            expression: such as ``15 3 * * *``; six fields have seconds first.
            task, args: of the job, as in `enqueue`.
            timezone: whose clock it is read by; ``docs/schedules.md`` says what happens where that changes.
            catch_up: of ticks that were missed, as no worker ran: ``"last"`` enqueues the latest one, ``"all"``
                all of them, ``"none"`` none.

        Raises:
            ConfigError: there is no such task, the expression or the time zone is unknown, or the name is taken.
            InvalidMessage: the arguments or options of the job are refused.
        """
        self.registry.task(task)
        definition = Definition(task, expression, timezone)
        schedule = Schedule(name, definition, args, checked_catch_up(name, catch_up), options)
        self.job_at(schedule, datetime.now(UTC))  # refused here rather than at its first tick
        self.registry.add_schedule(schedule)

    def job_at(self, schedule: Schedule, tick: datetime) -> JobDraft:
        """Return what is enqueued at a tick."""
        return self._draft(schedule.definition.task, schedule.args, schedule.options_at(tick))

    def _enqueue(self, task: str, args: Any, options: JobOptions) -> Operation[EnqueuedJob]:
        return store.enqueue(self.catalog, self._draft(task, args, options), notify=self.notify)

    def _draft(self, task: str, args: Any, options: JobOptions) -> JobDraft:
        unknown = sorted(set(options) - set(JobOptions.__annotations__))
        if unknown:
            raise InvalidMessage(
                f"enqueue has no argument {unknown[0]!r}: there are {', '.join(JobOptions.__annotations__)}"
            )
        declared = self.registry.task(task)
        if self.trace:
            options = {**options, "headers": with_current_context(options.get("headers"))}
        return job_draft(
            task,
            declared.arguments.encoded({} if args is None and declared.args is None else args),
            _or(options.get("job_id"), uuid4()),
            queue=_or(options.get("queue"), declared.queue),
            lane=declared.lane(options.get("key")),
            recovery=_or(options.get("recovery"), declared.recovery),
            max_attempts=_or(options.get("max_attempts"), declared.max_attempts),
            options=options,
        )

    def _reclaim(self, limit: int) -> Operation[list[ReclaimedJob]]:
        if limit < 1:
            raise ConfigError("reclaim needs a limit above 0")
        return store.reclaim(self.catalog, limit=limit)

    def _attempts(self, row_id: int) -> Operation[list[Attempt]]:
        return ledger.attempts(self.catalog, Kind.JOB, [row_id])

    def _purge(self, older_than: timedelta, limit: int) -> Operation[int]:
        if older_than < timedelta(0) or limit < 1:
            raise ConfigError("purge needs older_than of at least 0 and a limit above 0")
        return store.purge(self.catalog, older_than=older_than, limit=limit)


def _or(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs(_JobOperations, JobOperators):
    """Jobs on a sync connection, and the tasks that they are of."""

    def enqueue(self, conn: Any, task: str, args: Any = None, **options: Unpack[JobOptions]) -> EnqueuedJob:
        """Write one job in the caller's transaction; see `JobOptions` for the options.

        Args:
            conn: the connection that the change is made on.
            task: the name of a task that is registered or declared here.
            args: what its handler needs: of the task's type, or anything that JSON can hold, up to 1 MiB.

        Raises:
            ConfigError: there is no such task.
            InvalidMessage: refused before any database work; the transaction is untouched.
            AutocommitRefused: the connection is in no transaction.
            DedupeConflict: an open job has the unique key and other arguments; the transaction stays usable.
        """
        operation = self._enqueue(task, args, options)
        self._refuse_autocommit(conn, ENQUEUED_IN_AUTOCOMMIT)
        return self._run(conn, operation)

    def reclaim(self, conn: Any, limit: int = 100) -> list[ReclaimedJob]:
        """Take back jobs whose lease has expired, longest ago first, one bounded step.

        Workers do so by themselves.
        """
        return self._run(conn, self._reclaim(limit))

    def attempts(self, conn: Any, row_id: int) -> list[Attempt]:
        """Return the attempts at a job, each with its cause, as far as its task keeps a ledger."""
        return self._run(conn, self._attempts(row_id))

    def purge(self, conn: Any, older_than: timedelta, limit: int = 1_000) -> int:
        """Delete jobs that were done longer ago than ``older_than``, one bounded step; return how many."""
        return self._run(conn, self._purge(older_than, limit))

    def schedules(self, conn: Any) -> list[StoredSchedule]:
        """Return how far every schedule has come that a worker ever looked after, by name."""
        return self._run(conn, schedules.look(self.catalog, None))


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncJobs(_JobOperations, AsyncJobOperators):
    """Jobs on an async connection; the twin of `Jobs`."""

    async def enqueue(self, conn: Any, task: str, args: Any = None, **options: Unpack[JobOptions]) -> EnqueuedJob:
        """Write one job in the caller's transaction; see `Jobs.enqueue`."""
        operation = self._enqueue(task, args, options)
        await self._refuse_autocommit(conn, ENQUEUED_IN_AUTOCOMMIT)
        return await self._run(conn, operation)

    async def reclaim(self, conn: Any, limit: int = 100) -> list[ReclaimedJob]:
        """Take back jobs whose lease has expired; see `Jobs.reclaim`."""
        return await self._run(conn, self._reclaim(limit))

    async def attempts(self, conn: Any, row_id: int) -> list[Attempt]:
        """Return the attempts at a job; see `Jobs.attempts`."""
        return await self._run(conn, self._attempts(row_id))

    async def purge(self, conn: Any, older_than: timedelta, limit: int = 1_000) -> int:
        """Delete old jobs, one bounded step; see `Jobs.purge`."""
        return await self._run(conn, self._purge(older_than, limit))

    async def schedules(self, conn: Any) -> list[StoredSchedule]:
        """Return how far every schedule has come; see `Jobs.schedules`."""
        return await self._run(conn, schedules.look(self.catalog, None))
