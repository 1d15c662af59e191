"""Settings, frozen and checked before anything runs.

`DispatcherSettings` is what a program hands to a `Dispatcher`; `Settings` is everything that the command line
read from its file, the environment and its flags (`fencepost.cli.settings` does the reading).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal

from fencepost.core.backoff import Backoff
from fencepost.core.lease import timing_problems
from fencepost.core.outcome import RetryPolicy
from fencepost.errors import ConfigError
from fencepost.store.catalog import Names

OnUnexpected = Literal["retry", "stop"]


def default_owner() -> str:
    """Return a name for this process: for people to read, it never decides anything."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """What dispatchers and workers are told alike.

    Args:
        owner: this process's name, for people.
        queues: the queues to serve; None for all of them.
        poll_interval: the longest that what is due waits to be found without a notice.
        notify: listen for NOTIFY; polling goes on behind it.
        listen_store: the address to listen at, past a pooler that shares its sessions; None for the store's.
        retention: delete messages, or jobs, this long after they were done; None to keep them.
        ledger_retention: delete attempts this long after they began, where a ledger is kept; None: never.
        grace: how long a shutdown waits for what is in flight.
        on_unexpected: what an unclassified exception does besides failing its attempt: nothing, or stop.
    """

    owner: str = field(default_factory=default_owner)
    queues: Sequence[str] | None = None
    poll_interval: timedelta = timedelta(seconds=1)
    notify: bool = True
    listen_store: str | None = field(default=None, repr=False)
    retention: timedelta | None = None
    ledger_retention: timedelta | None = timedelta(days=30)
    grace: timedelta = timedelta(seconds=20)
    on_unexpected: OnUnexpected = "retry"

    def _problems(self, *own: tuple[str, bool, str]) -> list[tuple[str, str]]:
        """Return (setting, what is wrong) by these rules of its own, and by those that all have."""
        rules = [*self._rules(), *own]
        return [
            (setting, f"{_shown(getattr(self, setting))} {rule}") for setting, holds, rule in rules if not holds
        ]

    def _rules(self) -> list[tuple[str, bool, str]]:
        zero, longest = timedelta(0), timedelta(days=1)
        kept = "must not be below 0, or be left out"
        return [
            ("owner", bool(self.owner) and "\x00" not in self.owner, "must be a name without NUL"),
            (
                "queues",
                self.queues is None or (not isinstance(self.queues, str) and len(self.queues) > 0),
                "must be a list of queues, or be left out for all of them",
            ),
            ("poll_interval", zero < self.poll_interval <= longest, "must lie between 0 and a day"),
            (
                "listen_store",
                # An embedded server has no pooler in front of it.
                self.listen_store is None
                or bool(self.listen_store and not self.listen_store.startswith("embedded:")),
                "must be the address of a PostgreSQL server, or be left out",
            ),
            ("retention", self.retention is None or self.retention >= zero, kept),
            ("ledger_retention", self.ledger_retention is None or self.ledger_retention >= zero, kept),
            ("grace", zero <= self.grace <= longest, "must lie between 0 and a day"),
            ("on_unexpected", self.on_unexpected in ("retry", "stop"), 'must be "retry" or "stop"'),
        ]


def _refuse(problems: Sequence[tuple[str, str]]) -> None:
    if problems:
        raise ConfigError("; ".join(f"{setting}: {text}" for setting, text in problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSettings(ProcessSettings):
    """How a dispatcher works, besides `ProcessSettings`; the defaults are safe together.

    Args:
        batch: messages per claim, 1 to 10,000.
        concurrency: publishes in flight at once, for each queue; while they are fast, two batches are claimed
            ahead of that. None for 100, and for four batches where that is more and all goes to publishers that
            take batches.
        lease: how long a claim holds without a heartbeat.
        heartbeat: time between heartbeats, at most a third of the lease; None for exactly that.
        publish_timeout: the longest a publish may take; below the lease.
        max_attempts: publish starts before a message is dead.
        max_age: time since ``created_at`` after which a failed or deferred message is dead; None for never.
        backoff_base, backoff_cap: the window of the full-jitter delay between attempts.
        breaker_failures: failures in a row that open a queue's breaker; 0 for never.
        breaker_cap: the longest time between two probes of an open breaker.
        outage_budget: how long attempts are given back while a breaker is open; past it they count again, and use
            messages up.

    Raises:
        ConfigError: a combination that cannot work, every problem in one message.
    """

    batch: int = 100
    concurrency: int | None = None
    lease: timedelta = timedelta(seconds=60)
    heartbeat: timedelta | None = None
    publish_timeout: timedelta = timedelta(seconds=10)
    max_attempts: int = 12
    max_age: timedelta | None = None
    backoff_base: timedelta = timedelta(seconds=1)
    backoff_cap: timedelta = timedelta(seconds=300)
    breaker_failures: int = 5
    breaker_cap: timedelta = timedelta(seconds=30)
    outage_budget: timedelta = timedelta(days=1)

    def __post_init__(self) -> None:
        problems = self._range_problems()
        if not problems:
            problems = timing_problems(
                lease=self.lease, heartbeat=self.beat_every, publish_timeout=self.publish_timeout
            )
        _refuse(problems)

    @property
    def beat_every(self) -> timedelta:
        """The time between heartbeats."""
        return self.lease / 3 if self.heartbeat is None else self.heartbeat

    @property
    def policy(self) -> RetryPolicy:
        """The limits that turn a failure into a retry or an end."""
        return RetryPolicy(self.max_attempts, Backoff(self.backoff_base, self.backoff_cap), self.max_age)

    def redelivery_horizon(
        self, *, waiting: timedelta = timedelta(days=1), broker: timedelta = timedelta(0)
    ) -> timedelta:
        """Return the longest time from the first delivery of a message to its last repeat; see ``docs/inbox.md``.

        Each attempt may take its time-out, then a lease if its worker dies, then the longest delay, then a poll
        interval. While the breaker is open attempts are given back, up to the outage budget and one probe more.

        Args:
            waiting: how long a message that is due may wait: behind a backlog, in a paused queue, or dead until
                somebody retries it. Nobody can compute that; it is what you allow.
            broker: how long the broker itself repeats, or can be read again, such as a topic's retention.
        """
        attempt = self.publish_timeout + self.lease + self.backoff_cap + self.poll_interval
        return self.max_attempts * attempt + self.outage_budget + self.breaker_cap + waiting + broker

    def _range_problems(self) -> list[tuple[str, str]]:
        zero = timedelta(0)
        longest = timedelta(days=1)
        return self._problems(
            ("batch", 1 <= self.batch <= 10_000, "must lie between 1 and 10000"),
            (
                "concurrency",
                self.concurrency is None or 1 <= self.concurrency <= 10_000,
                "must lie between 1 and 10000, or be left out",
            ),
            ("lease", timedelta(milliseconds=100) <= self.lease <= longest, "must lie between 0.1 s and a day"),
            ("heartbeat", self.beat_every > zero, "must be above 0"),
            ("publish_timeout", self.publish_timeout > zero, "must be above 0"),
            ("max_attempts", 1 <= self.max_attempts <= 1_000_000, "must lie between 1 and 1000000"),
            ("max_age", self.max_age is None or self.max_age > zero, "must be above 0, or left out"),
            ("backoff_base", zero < self.backoff_base <= self.backoff_cap, "must lie between 0 and backoff_cap"),
            ("backoff_cap", self.backoff_cap <= timedelta(days=365), "must be at most a year"),
            (
                "breaker_failures",
                0 <= self.breaker_failures <= 1_000_000,
                "must lie between 0 (never) and 1000000",
            ),
            ("breaker_cap", zero < self.breaker_cap <= longest, "must lie between 0 and a day"),
            ("outage_budget", self.outage_budget >= zero, "must not be below 0"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(ProcessSettings):
    """How a worker runs jobs, besides `ProcessSettings`; what concerns one task alone is said by the task.

    Its queues are served in the order of their priority: a later one has what the ones before leave. Without any,
    all are served in turns.

    Args:
        concurrency: jobs at once in this process, 1 to 10,000.

    Raises:
        ConfigError: a setting that cannot work, every problem in one message.
    """

    concurrency: int = 10

    def __post_init__(self) -> None:
        _refuse(self._problems(("concurrency", 1 <= self.concurrency <= 10_000, "must lie between 1 and 10000")))


def _shown(value: object) -> str:
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else repr(value)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from: ``kind`` is ``default``, ``file``, ``environment`` or ``flag``."""

    kind: str = "default"
    place: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}".strip()


@dataclass(frozen=True, slots=True)
class ConfiguredRoute:
    """One route as it was configured.

    Args:
        event_type: a shell pattern, as ``queue`` and ``aggregate_type`` are; see `fencepost.core.routing.Match`.
        to: the names of destinations; or where to publish in place, a URL or ``python:module:object``.
    """

    event_type: str
    to: str | tuple[str, ...] = field(repr=False)
    queue: str = "*"
    aggregate_type: str = "*"


Routes = tuple[ConfiguredRoute, ...]

Destinations = tuple[tuple[str, str], ...]
"""Pairs of a name and what it stands for, a URL or ``python:module:object``."""

DISPATCHER_NAMES = frozenset(each.name for each in fields(DispatcherSettings))

WORKER_SHARED = frozenset({"owner", "poll_interval", "notify", "listen_store", "ledger_retention"})
"""Settings that are the same for dispatchers and workers; workers have the others for themselves."""

WORKER_PREFIX = "worker_"
"""Begins the name of a setting that is a worker's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a command may need, and the source of each value by its setting's name.

    Raises:
        ConfigError: a name that cannot be an identifier.
    """

    store: str | None = field(default=None, repr=False)
    schema: str = "public"
    table: str = "outbox"
    destinations: Destinations = field(default=(), repr=False)
    routes: Routes = field(default=(), repr=False)
    log_level: str = "info"
    log_json: bool = False
    dispatcher: DispatcherSettings = field(default_factory=DispatcherSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    sources: Mapping[str, Source] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Names(self.schema, self.table)

    def value(self, name: str) -> Any:
        """Return one value by its setting's name."""
        if name.startswith(WORKER_PREFIX):
            return getattr(self.worker, name.removeprefix(WORKER_PREFIX))
        return getattr(self.dispatcher if name in DISPATCHER_NAMES else self, name)

    def source(self, name: str) -> Source:
        """Return where a value comes from."""
        return self.sources.get(name, Source())

    def required_store(self) -> str:
        """Return the store's address.

        Raises:
            ConfigError: none is configured.
        """
        if self.store is None:
            raise ConfigError(
                "store: no database is given: pass --store postgresql://USER@HOST/DATABASE, set FENCEPOST_STORE, "
                "or write it into fencepost.toml (--store embedded: starts a PostgreSQL of our own)"
            )
        return self.store
