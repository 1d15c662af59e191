"""``work``: run jobs until it is told to stop."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from fencepost.cli.invocation import Invocation
from fencepost.cli.logs import log_to_stderr
from fencepost.cli.options import STORE, takes_settings
from fencepost.cli.serving import serve, shown
from fencepost.cli.settings import SETTINGS
from fencepost.cli.targets import imported
from fencepost.client.jobs import AsyncJobs, Jobs
from fencepost.config import WORKER_PREFIX, WORKER_SHARED, Settings
from fencepost.errors import ConfigError

if TYPE_CHECKING:
    from fencepost.runtime.worker import Worker

_OWN = tuple(each.name for each in SETTINGS if each.is_of_worker or each.name in WORKER_SHARED)

_TOLD = frozenset({"owner", "worker_queues", "worker_concurrency"})
"""Settings that the log says at the start."""


@click.command()
@click.argument("name", metavar="MODULE:JOBS")
@takes_settings(*STORE, "log_level", "log_json", *_OWN, own=WORKER_PREFIX)
@click.option("--once", is_flag=True, help="Run what is due, as much as there is room for, then stop.")
def work(invocation: Invocation, settings: Settings, name: str, once: bool) -> int:
    """Run jobs.

    MODULE:JOBS is the Jobs or AsyncJobs that has the tasks, such as shop.jobs:jobs; modules of the working
    directory are found. Which queues are served, and the first of them first, is said with --queue.

    Runs until SIGTERM or SIGINT, then gives what runs the grace time. Exits with 0 when all of it was finished,
    with 1 when the grace time ended first: what was cut off then goes back to its queue. A second signal ends the
    grace time at once. Logs go to standard error.
    """
    from fencepost.runtime.threads import turns_for

    log_to_stderr(settings, invocation.redact)
    jobs = _jobs(name)
    _refuse_other_tables(name, jobs, settings)
    tasks = sorted(each.name for each in jobs.registry.tasks.values() if each.handler is not None)

    def make(url: str) -> Worker:
        from fencepost.runtime.worker import Worker

        return Worker(url, jobs, settings.worker)

    lease = min(each.lease for each in jobs.registry.tasks.values() if each.handler is not None)
    with turns_for(lease):  # this process is ours: handlers that compute must leave the heartbeats their turns
        return serve(
            invocation,
            settings,
            role="work",
            grace=settings.worker.grace.total_seconds(),
            names=jobs.catalog.names,
            make=make,
            once=_one_step if once else None,
            told={"message": "working", "tasks": ", ".join(tasks)} | shown(settings, _TOLD),
        )


async def _one_step(worker: Worker) -> bool:
    await worker.work_once()
    return True


def _jobs(name: str) -> Jobs | AsyncJobs:
    if not re.fullmatch(r"[\w.]+:[\w.]+", name):
        raise click.UsageError(f"expected MODULE:JOBS, such as shop.jobs:jobs, not {name!r}")
    found = imported(name, "jobs")
    if not isinstance(found, Jobs | AsyncJobs):
        raise ConfigError(
            f"jobs {name}: it is of the type {type(found).__name__}, not a fencepost.Jobs or AsyncJobs: name the "
            "object that has the tasks"
        )
    if not any(task.handler for task in found.registry.tasks.values()):
        raise ConfigError(
            f"jobs {name}: it has no task with a handler: import the modules that have them (@jobs.task) in "
            f"{name.partition(':')[0]}"
        )
    return found


def _refuse_other_tables(name: str, jobs: Jobs | AsyncJobs, settings: Settings) -> None:
    """The object says where its tables are; a setting that says something else is a mistake."""
    for setting, there in (("schema", jobs.schema_name), ("table", jobs.table)):
        here = settings.value(setting)
        if here != there and settings.source(setting).kind != "default":
            raise ConfigError(
                f"{setting} ({settings.source(setting)}): {here!r}, but the tables of jobs {name} have the "
                f"{setting} {there!r}: say the same in both"
            )
