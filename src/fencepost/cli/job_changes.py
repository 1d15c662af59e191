"""``jobs retry``, ``jobs cancel``, ``jobs fail``: change jobs, many at once, in steps, audited."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli import exits
from fencepost.cli.actor import actor_option, os_user
from fencepost.cli.invocation import Invocation, jobs_of
from fencepost.cli.job_filters import filters_text, outcome_option, queue_option, task_option
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Output, counted
from fencepost.cli.progress import progress
from fencepost.cli.rows import ROW_ID
from fencepost.client.jobs import Jobs
from fencepost.config import Settings
from fencepost.core.job import JobChanges

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

PAGE = 500
"""Jobs per transaction."""

TRIES = 5
"""Of one step, where a lock is in its way, or a job with a unique key of it is enqueued in the same instant."""

_UNIQUE_VIOLATION = "23505"


def _options(*others: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(
            [
                click.argument("ids", nargs=-1, type=ROW_ID, metavar="[ID]..."),
                click.option("--all", "everything", is_flag=True, help="All that the filters leave."),
                queue_option,
                task_option,
                *others,
                actor_option,
                click.option("--yes", is_flag=True, help="Do not ask before changing all of them."),
                json_option,
            ]
        ):
            command = option(command)
        return command

    return give


_reason_option = click.option("--reason", metavar="TEXT", help="Why; kept in the audit table.")


@click.command()
@takes_settings(*STORE)
@_options(outcome_option, _reason_option)
def retry(invocation: Invocation, settings: Settings, **given: Any) -> int:
    """Put failed jobs back to their queues.

    They have all their attempts again. What each was before is kept in the audit table.
    """
    return _change(invocation, settings, Verb("retry", ("failed",), "queued again"), **given)


@click.command()
@takes_settings(*STORE)
@_options(_reason_option)
def cancel(invocation: Invocation, settings: Settings, **given: Any) -> int:
    """End queued and running jobs as cancelled.

    The worker of one that runs learns of it at its next heartbeat, and cancels its handler. --all takes what is
    queued and what runs.
    """
    return _change(invocation, settings, Verb("cancel", ("queued", "processing"), "cancelled"), **given)


@click.command()
@takes_settings(*STORE)
@_options(click.option("--reason", required=True, metavar="TEXT", help="Why; kept with the job and in the audit."))
def fail(invocation: Invocation, settings: Settings, **given: Any) -> int:
    """End queued and running jobs as failed.

    For what is known to have gone wrong; otherwise as `fencepost jobs cancel`.
    """
    return _change(invocation, settings, Verb("fail", ("queued", "processing"), "ended as failed"), **given)


@dataclass(frozen=True, slots=True)
class Verb:
    """A change: its name, the states it is for, and what jobs are afterwards."""

    name: str
    states: tuple[str, ...]
    done: str


def _change(
    invocation: Invocation,
    settings: Settings,
    verb: Verb,
    *,
    ids: Sequence[int],
    everything: bool,
    queue: str | None,
    task: str | None,
    reason: str | None,
    actor: str | None,
    yes: bool,
    as_json: bool,
    outcome: str | None = None,
) -> int:
    if everything == bool(ids):
        raise click.UsageError(f"say which jobs to {verb.name}: their ids, or --all")
    if ids and (queue or task or outcome):
        raise click.UsageError("--queue, --task and --outcome go with --all, not with ids")
    if everything and not yes and not sys.stdin.isatty():
        raise click.UsageError("standard input is no terminal to ask on: pass --yes")
    jobs, out = jobs_of(settings), invocation.out
    change = _step(jobs, verb, actor or os_user(), reason)
    changed: list[int] = []
    refused: dict[int, str] = {}
    with invocation.connected(settings, "jobs") as connection:
        if everything:
            # All of them before the first change: one that fails again meanwhile is not met a second time.
            ids = [each for page in _found(connection, jobs, verb, queue, task, outcome) for each in page]
            connection.rollback()  # nobody knows how long the answer takes: no transaction may stay open
            if ids and not yes and not _is_wanted(verb, len(ids), filters_text(queue, task, outcome)):
                out.note("nothing was changed")
                return exits.NEGATIVE
        with progress(out, f"{verb.name} jobs", len(ids), as_json) as advance:
            for start in range(0, len(ids), PAGE):
                page = ids[start : start + PAGE]
                step = _committed(connection, change, page)
                changed += step.changed
                refused |= step.refused
                advance(len(page))
    _report(out, verb, changed, refused, as_json)
    # What --all met and somebody else changed meanwhile is nobody's mistake.
    return exits.NEGATIVE if refused and not everything else exits.OK


def _found(
    connection: Connection, jobs: Jobs, verb: Verb, queue: str | None, task: str | None, outcome: str | None
) -> Iterator[list[int]]:
    for state in verb.states:
        after = None
        while True:
            page = jobs.list_jobs(connection, state, queue, task, outcome, after, PAGE)
            yield [each.id for each in page.jobs]
            after = page.after
            if after is None:
                break


def _is_wanted(verb: Verb, count: int, filters: str) -> bool:
    noun = "failed job" if verb.states == ("failed",) else "open job"
    return click.confirm(f"{verb.name.capitalize()} {counted(count, noun)}{filters}?", err=True)


Step = Callable[["Connection", Sequence[int]], JobChanges]


def _step(jobs: Jobs, verb: Verb, actor: str, reason: str | None) -> Step:
    match verb.name:
        case "retry":
            return lambda connection, ids: jobs.retry(connection, ids, actor, reason)
        case "cancel":
            return lambda connection, ids: jobs.cancel(connection, ids, actor, reason)
        case _:
            return lambda connection, ids: jobs.fail(connection, ids, actor, reason or "")


def _committed(connection: Connection, change: Step, ids: Sequence[int]) -> JobChanges:
    """Do one step and commit it; again where the database says that this may help."""
    from fencepost.drivers.faults import Fault, fault_of

    for tries_left in reversed(range(TRIES)):
        try:
            step = change(connection, ids)
            connection.commit()
        except Exception as error:
            may_help = fault_of(error) is Fault.TRANSIENT or getattr(error, "sqlstate", None) == _UNIQUE_VIOLATION
            if not (tries_left and may_help):
                raise
            connection.rollback()
            continue
        return step
    raise AssertionError("the last try returns or raises")


def _report(out: Output, verb: Verb, changed: list[int], refused: dict[int, str], as_json: bool) -> None:
    if as_json:
        unchanged = [{"id": row_id, "reason": why} for row_id, why in refused.items()]
        out.json({"changed": changed, "unchanged": unchanged})
        return
    out.line(f"{counted(len(changed), 'job')} {'is' if len(changed) == 1 else 'are'} {verb.done}")
    for row_id, why in refused.items():
        out.note(f"job {row_id}: {why}: nothing was changed")
