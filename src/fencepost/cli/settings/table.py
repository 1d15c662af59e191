"""Every setting, once: its name, how it is read, its default and what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from fencepost.cli.settings import kinds
from fencepost.cli.settings.kinds import Kind
from fencepost.config import WORKER_PREFIX, DispatcherSettings, Settings, WorkerSettings


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: ``name`` in the file, ``FENCEPOST_NAME`` in the environment, ``option`` as a flag."""

    name: str
    kind: Kind
    help: str
    default: Any = None
    flag: str | None = None
    """The flag where it is not called after the setting."""

    @property
    def is_of_worker(self) -> bool:
        """Whether it is a worker's own: it then stands in the table [worker] of the file, without the prefix."""
        return self.name.startswith(WORKER_PREFIX)

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"FENCEPOST_{self.name.upper()}"

    @property
    def option(self) -> str:
        """The flag."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    def shown(self, settings: Settings) -> str:
        """Return its value for people, secrets masked."""
        return self.kind.show(settings.value(self.name))


def _of_dispatcher(name: str, kind: Kind, text: str, flag: str | None = None) -> Setting:
    default = DispatcherSettings.__dataclass_fields__[name].default
    return Setting(name, kind, text, None if default is MISSING else default, flag)


def _of_worker(name: str, kind: Kind, text: str, flag: str | None = None) -> Setting:
    default = WorkerSettings.__dataclass_fields__[name].default
    return Setting(f"{WORKER_PREFIX}{name}", kind, text, None if default is MISSING else default, flag)


SETTINGS: tuple[Setting, ...] = (
    Setting("store", kinds.STORE, "the database: postgresql://USER@HOST/DATABASE, or embedded:DIRECTORY"),
    Setting("schema", kinds.TEXT, "the schema that holds the tables", "public"),
    Setting("table", kinds.TEXT, "the outbox table; the other tables are named after it", "outbox"),
    Setting(
        "destinations", kinds.DESTINATIONS, "where messages go, by name; each is a queue", (), "--destination"
    ),
    Setting("routes", kinds.ROUTES, "where event types go; the first match wins", (), "--route"),
    Setting("log_level", kinds.one_of("debug", "info", "warning", "error"), "the least that is logged", "info"),
    Setting("log_json", kinds.YES_NO, "log JSON objects instead of key=value lines", False),
    _of_dispatcher("owner", kinds.TEXT, "this worker's name, for people; HOST:PID unless set"),
    _of_dispatcher("queues", kinds.NAMES, "the queues to serve; all of them unless set", "--queue"),
    _of_dispatcher("batch", kinds.WHOLE, "messages per claim, 1 to 10000"),
    _of_dispatcher(
        "concurrency",
        kinds.WHOLE,
        "publishes in flight at once, for each queue; unless set 100, or four batches to publishers of batches",
    ),
    _of_dispatcher("lease", kinds.DURATION, "how long a claim holds without a heartbeat"),
    _of_dispatcher("heartbeat", kinds.DURATION_OR_NONE, "time between heartbeats; none for a third of the lease"),
    _of_dispatcher("publish_timeout", kinds.DURATION, "the longest a publish may take; below the lease"),
    _of_dispatcher("max_attempts", kinds.WHOLE, "publish starts before a message is dead"),
    _of_dispatcher(
        "max_age", kinds.DURATION_OR_NONE, "age past which a message that fails is dead; none for never"
    ),
    _of_dispatcher("backoff_base", kinds.DURATION, "the first window of the random delay between attempts"),
    _of_dispatcher("backoff_cap", kinds.DURATION, "the largest window of that delay"),
    _of_dispatcher("breaker_failures", kinds.WHOLE, "failures in a row that open a queue's breaker; 0 for never"),
    _of_dispatcher("breaker_cap", kinds.DURATION, "the longest time between two probes of an open breaker"),
    _of_dispatcher("outage_budget", kinds.DURATION, "how long an open breaker keeps attempts from being used up"),
    _of_dispatcher(
        "poll_interval", kinds.DURATION, "the longest a due message waits to be found without a notice"
    ),
    _of_dispatcher("notify", kinds.YES_NO, "listen for notices of new messages; polling goes on behind it"),
    _of_dispatcher(
        "listen_store", kinds.STORE, "where to listen for notices, past a pooler; the store itself unless set"
    ),
    _of_dispatcher(
        "retention", kinds.DURATION_OR_NONE, "delete messages this long after they were done; none to keep them"
    ),
    _of_dispatcher(
        "ledger_retention",
        kinds.DURATION_OR_NONE,
        "delete attempts this long after they began, where queues keep a ledger; none to keep them",
    ),
    _of_dispatcher("grace", kinds.DURATION, "how long a shutdown waits for publishes in flight"),
    _of_dispatcher(
        "on_unexpected", kinds.one_of("retry", "stop"), "what a publisher's unclassified exception does"
    ),
    _of_worker(
        "queues",
        kinds.NAMES,
        "the queues of jobs to serve, the most urgent first; all of them unless set",
        "--worker-queue",
    ),
    _of_worker("concurrency", kinds.WHOLE, "jobs at once in a worker, 1 to 10000"),
    _of_worker(
        "retention", kinds.DURATION_OR_NONE, "delete jobs this long after they were done; none to keep them"
    ),
    _of_worker("grace", kinds.DURATION, "how long a worker's shutdown waits for jobs that run"),
    _of_worker("on_unexpected", kinds.one_of("retry", "stop"), "what a handler's unclassified exception does"),
)

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}
