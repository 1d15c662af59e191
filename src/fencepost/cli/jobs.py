"""``jobs``: look at jobs, find what is stuck, and decide what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import click

from fencepost.cli import exits
from fencepost.cli.attempts import attempt_as_json, show_attempts
from fencepost.cli.invocation import Invocation, jobs_of
from fencepost.cli.job_changes import cancel, fail, retry
from fencepost.cli.job_filters import STATUSES, filters, filters_text
from fencepost.cli.job_texts import (
    HEADERS,
    STATS_HEADERS,
    STUCK_HEADERS,
    details,
    row,
    stats_as_json,
    stuck_as_json,
    stuck_row,
    summary,
)
from fencepost.cli.messages import identity_of
from fencepost.cli.options import STORE, as_duration, json_option, takes_settings
from fencepost.cli.output import counted
from fencepost.cli.rows import show_full
from fencepost.cli.steps import Steps, progress
from fencepost.config import Settings
from fencepost.core.operation import Rows, Statement, run
from fencepost.store import jobs as store
from fencepost.store.catalog import Catalog


@click.group()
def jobs() -> None:
    """List, show, retry, cancel or fail jobs, and find what is stuck."""


@jobs.command("list")
@takes_settings(*STORE)
@click.option("--status", type=click.Choice(STATUSES), help="Only in this state.")
@filters
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="PLACE", help="Go on where a list before this one said so.")
@json_option
def list_command(
    invocation: Invocation,
    settings: Settings,
    status: str | None,
    queue: str | None,
    task: str | None,
    outcome: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> int:
    """List jobs.

    What runs comes first, then what is queued, by queue, then what failed and what is done, by when. "since" says
    when it was claimed or finished, or from when on it is due.
    """
    with invocation.connected(settings, "jobs") as connection:
        page = jobs_of(settings).list_jobs(connection, status, queue, task, outcome, after, limit)
    out = invocation.out
    if as_json:
        out.json({"jobs": [summary(each) for each in page.jobs], "after": page.after})
        return exits.OK
    if page.jobs:
        out.table(HEADERS, [row(each, ages=out.is_terminal) for each in page.jobs], cut=True)
    else:
        out.note(f"no {status + ' ' if status else ''}jobs{filters_text(queue, task, outcome)}")
    if page.after is not None:
        out.note(f"there are more: --after {page.after}")
    return exits.OK


@jobs.command()
@takes_settings(*STORE)
@click.argument("identity", metavar="ID")
@json_option
def show(invocation: Invocation, settings: Settings, identity: str, as_json: bool) -> int:
    """Show one job in full.

    ID is its id (a number) or its job id (a UUID), which has no index. The attempts at it follow, where its task
    keeps a ledger.
    """
    wanted = identity_of(identity, "job")
    with invocation.connected(settings, "jobs") as connection:
        found = jobs_of(settings).show_job(connection, wanted)
        made = [] if found is None else jobs_of(settings).attempts(connection, found.id)
    out = invocation.out
    if found is None:
        out.note(f"there is no job {identity}")
        return exits.NEGATIVE
    if as_json:
        values = {"args": found.job.args, "progress": found.progress, "result": found.result}
        out.json(details(found) | values | {"attempts_made": [attempt_as_json(each) for each in made]})
        return exits.OK
    show_full(out, details(found))
    if made:
        click.echo()
        show_attempts(out, made)
    return exits.OK


for each in (retry, cancel, fail):
    jobs.add_command(each)


@jobs.command()
@takes_settings(*STORE)
@click.option(
    "--longer-than",
    default="1h",
    show_default=True,
    metavar="DURATION",
    callback=as_duration,
    help="What is long for a job that runs and beats.",
)
@click.option(
    "--waiting",
    default="5m",
    show_default=True,
    metavar="DURATION",
    callback=as_duration,
    help="What is long for a job that is due.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="How many of each kind at most.",
)
@json_option
def stuck(
    invocation: Invocation,
    settings: Settings,
    longer_than: timedelta,
    waiting: timedelta,
    limit: int,
    as_json: bool,
) -> int:
    """Say which jobs are stuck, and what to do.

    The worst kind first, each with its worker and its last heartbeat. It reads what is in flight, and the fronts
    of what is queued and what failed. Exits with 1 where something is stuck.
    """
    with invocation.connected(settings, "jobs") as connection:
        report = jobs_of(settings).stuck(connection, longer_than, waiting, limit)
    out = invocation.out
    if as_json:
        out.json({"jobs": [stuck_as_json(each) for each in report.jobs], "is_capped": report.is_capped})
    elif report.jobs:
        out.table(STUCK_HEADERS, [stuck_row(each, ages=out.is_terminal) for each in report.jobs])
    else:
        out.line("nothing is stuck")
    if report.is_capped and not as_json:
        out.note("there are more of a kind: see --limit")
    return exits.NEGATIVE if report.jobs else exits.OK


@jobs.command()
@takes_settings(*STORE)
@json_option
def stats(invocation: Invocation, settings: Settings, as_json: bool) -> int:
    """Count open jobs by queue, and failed ones.

    "oldest" is the time since the oldest queued job became due; "expired" counts leases that are over.
    """
    with invocation.connected(settings, "jobs") as connection:
        found = jobs_of(settings).stats(connection)
    out = invocation.out
    if as_json:
        out.json(stats_as_json(found))
        return exits.OK
    if found.queues:
        rows = [(q.queue, q.queued, q.due, q.processing, q.expired, q.oldest_age) for q in found.queues]
        out.table(STATS_HEADERS, rows)
    else:
        out.line("no open jobs")
    if found.failed_by_outcome:
        out.line()
        out.line("failed: " + ", ".join(f"{count} {name}" for name, count in found.failed_by_outcome.items()))
    return exits.OK


@jobs.command()
@takes_settings(*STORE)
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    callback=as_duration,
    help="Time since they were done, such as 7d.",
)
@click.option(
    "--step", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Jobs per transaction."
)
@json_option
def purge(invocation: Invocation, settings: Settings, older_than: timedelta, step: int, as_json: bool) -> int:
    """Delete done jobs past a given age.

    Works in small steps beside full traffic. Failed jobs stay.
    """
    catalog, deleted = jobs_of(settings).catalog, 0
    with (
        invocation.connected(settings, "jobs") as connection,
        progress(invocation.out, "deleting done jobs", is_silent=as_json) as advance,
    ):
        steps = Steps(connection, invocation.out, step)
        while (gone := steps.make(_purge_step(catalog, older_than))) != 0:
            deleted += gone or 0  # None where the step failed, and a smaller one is next
            advance(gone or 0)
    if as_json:
        invocation.out.json({"deleted": deleted})
    else:
        invocation.out.line(f"deleted {counted(deleted, 'done job')}")
    return exits.OK


def _purge_step(catalog: Catalog, older_than: timedelta) -> Callable[[Callable[[Statement], Rows], int], int]:
    return lambda execute, limit: run(store.purge(catalog, older_than=older_than, limit=limit), execute)
