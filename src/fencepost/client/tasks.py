"""Tasks: what a job is to its worker, declared once and shared by those who enqueue and those who work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, Unpack

from fencepost.client.arguments import Arguments, arguments_of
from fencepost.client.schedules import Schedule
from fencepost.core.backoff import Backoff
from fencepost.core.callables import Handler, as_handler
from fencepost.core.draft import checked_queue, checked_recovery
from fencepost.core.job import checked_attempts, checked_task
from fencepost.core.outcome import RetryPolicy
from fencepost.errors import ConfigError, InvalidMessage
from fencepost.store.jobs import NO_LIMIT, TaskTerms

F = TypeVar("F", bound=Callable[..., Any])

HANDLER, VERIFIER = "handler(job, context) or handler(job)", "verify(job, context) or verify(job)"

_DAY = timedelta(days=1)


class TaskOptions(TypedDict, total=False):
    """The settings of a task, as keyword arguments of ``@jobs.task`` and ``jobs.declare``.

    Args:
        queue: where its jobs go unless told otherwise.
        recovery: ``"auto"`` runs a job again whose worker was lost, ``"manual"`` leaves it to a person, and
            ``"verify"`` asks the task's verifier first.
        max_attempts: starts before a job has failed; a job can have another limit.
        lease: how long a claim holds without a heartbeat, 0.1 s to a day. It does not limit how long a job runs.
        backoff_base, backoff_cap: the window of the full-jitter delay between attempts.
        max_age: time since it was enqueued after which a failed or deferred job has failed for good.
        soft_limit: after this long ``context.check_lease()`` raises `SoftLimitReached`.
        hard_limit: after this long the handler is cancelled and the attempt counts as timed out.
        max_running: how many of its jobs run at once, over all workers.
        max_running_per_key: how many jobs of one ``key`` run at once, over all workers.
        args: the type of its arguments; see `fencepost.client.arguments`. None for whatever JSON can hold.
        keep_result: keep what the handler returns, as JSON.
        ledger: write down every attempt: who made it, when, and how it ended (``docs/recovery.md``).
    """

    queue: str
    recovery: str
    max_attempts: int
    lease: timedelta
    backoff_base: timedelta
    backoff_cap: timedelta
    max_age: timedelta | None
    soft_limit: timedelta | None
    hard_limit: timedelta | None
    max_running: int | None
    max_running_per_key: int | None
    args: Any
    keep_result: bool
    ledger: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task and its settings; see `TaskOptions`. Without a handler it can only be enqueued.

    Raises:
        ConfigError: settings that cannot work, every problem in one message.
    """

    name: str
    queue: str = "default"
    recovery: str = "auto"
    max_attempts: int = 12
    lease: timedelta = timedelta(seconds=60)
    backoff_base: timedelta = timedelta(seconds=1)
    backoff_cap: timedelta = timedelta(seconds=300)
    max_age: timedelta | None = None
    soft_limit: timedelta | None = None
    hard_limit: timedelta | None = None
    max_running: int | None = None
    max_running_per_key: int | None = None
    args: Any = None
    keep_result: bool = False
    ledger: bool = False
    handler: Handler | None = None
    verifier: Handler | None = None
    arguments: Arguments = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if problems := self._problems():
            raise ConfigError(f"task {self.name!r}: " + "; ".join(problems))
        object.__setattr__(self, "arguments", arguments_of(self.args, self.name))

    def _problems(self) -> list[str]:
        problems = _refusals(
            lambda: checked_task(self.name),
            lambda: checked_queue(self.queue),
            lambda: checked_recovery(self.recovery),
            lambda: checked_attempts(self.max_attempts),
        )
        if wrong := [f"{name} must be a datetime.timedelta, not {what}" for name, what in self._no_times()]:
            return problems + wrong
        zero = timedelta(0)
        rules = [
            ("lease", timedelta(milliseconds=100) <= self.lease <= _DAY, "must lie between 0.1 s and a day"),
            ("backoff_base", zero < self.backoff_base <= self.backoff_cap, "must lie between 0 and backoff_cap"),
            ("backoff_cap", self.backoff_cap <= timedelta(days=365), "must be at most a year"),
            ("max_age", self.max_age is None or self.max_age > zero, "must be above 0, or left out"),
            ("soft_limit", self.soft_limit is None or self.soft_limit > zero, "must be above 0, or left out"),
            ("hard_limit", self.hard_limit is None or self.hard_limit > zero, "must be above 0, or left out"),
            (
                "soft_limit",
                None in (self.soft_limit, self.hard_limit) or _below(self.soft_limit, self.hard_limit),
                "must be below hard_limit, or the handler could never act on it",
            ),
            ("max_running", _is_width(self.max_running), "must be a whole number above 0, or left out"),
            (
                "max_running_per_key",
                _is_width(self.max_running_per_key),
                "must be a whole number above 0, or left out",
            ),
        ]
        return problems + [f"{name} {getattr(self, name)!r} {rule}" for name, holds, rule in rules if not holds]

    def _no_times(self) -> list[tuple[str, str]]:
        """Return the settings that should be a length of time and are not, with their types."""
        needed, others = ("lease", "backoff_base", "backoff_cap"), ("max_age", "soft_limit", "hard_limit")
        values = {name: getattr(self, name) for name in needed + others}
        return [
            (name, type(value).__name__)
            for name, value in values.items()
            if not (isinstance(value, timedelta) or (value is None and name in others))
        ]

    @property
    def policy(self) -> RetryPolicy:
        """The limits that turn a failure into a retry or an end; a job's own limit of attempts comes before."""
        return RetryPolicy(self.max_attempts, Backoff(self.backoff_base, self.backoff_cap), self.max_age)

    @property
    def terms(self) -> TaskTerms:
        """What claims must know of it."""
        at_once = NO_LIMIT if self.max_running is None else self.max_running
        return TaskTerms(self.lease, self.max_running_per_key or at_once, at_once, self.ledger)

    def lane(self, key: str | None) -> str | None:
        """Return what the limits of a job count by; None where it has none.

        Raises:
            InvalidMessage: the task counts by key and there is none, or the other way round.
        """
        if self.max_running_per_key is not None:
            if not key:
                raise InvalidMessage(
                    f'task {self.name!r} has max_running_per_key: say what it counts by, with key="…"'
                )
            return key
        if key is not None:
            raise InvalidMessage(
                f"task {self.name!r} has no max_running_per_key, so that key {key!r} means nothing"
            )
        return None if self.max_running is None else ""


class Registry:
    """Tasks by name, and schedules by theirs."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._schedules: dict[str, Schedule] = {}

    def add(self, name: str, handler: object | None, options: TaskOptions) -> Task:
        """Add a task.

        Raises:
            ConfigError: there is one of this name, or settings that cannot work.
        """
        unknown = sorted(set(options) - set(TaskOptions.__annotations__))
        if unknown:
            raise ConfigError(
                f"task {name!r}: there is no setting {unknown[0]!r}; the settings are: "
                f"{', '.join(TaskOptions.__annotations__)}"
            )
        if name in self._tasks:
            raise ConfigError(f"there is a task {name!r} already: give each one a name of its own")
        made = None if handler is None else as_handler(handler, f"the handler of task {name!r}", HANDLER)
        task = Task(name=name, handler=made, **options)
        self._tasks[name] = task
        return task

    def verify(self, name: str, function: object) -> None:
        """Give a task its verifier.

        Raises:
            ConfigError: there is no such task, or it has one already.
        """
        task = self.task(name)
        if task.verifier is not None:
            raise ConfigError(f"task {name!r} has a verifier already")
        verifier = as_handler(function, f"the verifier of task {name!r}", VERIFIER)
        settings = {each.name: getattr(task, each.name) for each in fields(Task) if each.init}
        self._tasks[name] = Task(**settings | {"verifier": verifier})

    def task(self, name: object) -> Task:
        """Return a task.

        Raises:
            ConfigError: there is none of this name.
        """
        found = self._tasks.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise ConfigError(
                f"there is no task {name!r} (there are: {known}); register it with @jobs.task({name!r}), "
                f"or, where only others run it, with jobs.declare({name!r})"
            )
        return found

    @property
    def tasks(self) -> Mapping[str, Task]:
        return self._tasks

    def add_schedule(self, schedule: Schedule) -> None:
        """Add a schedule.

        Raises:
            ConfigError: there is one of this name.
        """
        if schedule.name in self._schedules:
            raise ConfigError(f"there is a schedule {schedule.name!r} already: give each one a name of its own")
        self._schedules[schedule.name] = schedule

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        return self._schedules


class TaskDecorators:
    """The part of `Jobs` and `AsyncJobs` that declares tasks."""

    __slots__ = ()

    registry: Registry

    def task(self, name: str, **options: Unpack[TaskOptions]) -> Callable[[F], F]:
        """Make a function, plain or async, the handler of a task: ``handler(job, context)`` or ``handler(job)``.

        A plain function runs in a thread, an async one on the event loop. What it raises says how it went: nothing
        is done; `Retryable` or anything unclassified is tried again; `Permanent` has failed; `Defer` comes again
        later with its attempt given back.

        Raises:
            ConfigError: the name is taken, or settings cannot work.
        """

        def register(function: F) -> F:
            self.registry.add(name, function, options)
            return function

        return register

    def verify(self, name: str) -> Callable[[F], F]:
        """Make a function the verifier of a task: ``verify(job, context)`` or ``verify(job)`` returns a `Verdict`.

        It is asked before a job of ``recovery="verify"`` is run that somebody held before.
        """

        def register(function: F) -> F:
            self.registry.verify(name, function)
            return function

        return register

    def declare(self, name: str, **options: Unpack[TaskOptions]) -> None:
        """Declare a task that only others run, so that its jobs can be enqueued here."""
        self.registry.add(name, None, options)


def _refusals(*checks: Callable[[], object]) -> list[str]:
    problems = []
    for check in checks:
        try:
            check()
        except InvalidMessage as error:
            problems.append(str(error))
    return problems


def _below(one: timedelta | None, other: timedelta | None) -> bool:
    return one is not None and other is not None and one < other


def _is_width(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value < NO_LIMIT)
