"""``purge``: delete done messages past their retention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Output
from fencepost.cli.settings.durations import parse_duration
from fencepost.config import Settings
from fencepost.core.operation import run
from fencepost.drivers import driver_for
from fencepost.store import upkeep


def _duration(_context: click.Context, _parameter: click.Parameter, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@takes_settings(*STORE)
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    callback=_duration,
    help="Time since they were done, such as 7d.",
)
@click.option(
    "--step", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Messages per transaction."
)
@json_option
def purge(invocation: Invocation, settings: Settings, older_than: timedelta, step: int, as_json: bool) -> int:
    """Delete done messages past a given age.

    Works in small steps beside full traffic. Done means delivered, or skipped by an operator.

    Dead messages stay: only an operator's decision (`fencepost dead`) ends them.
    """
    catalog = outbox_of(settings).catalog
    total = 0
    after: int | None = 0
    with invocation.connected(settings, "purge") as connection, _progress(invocation.out, as_json) as advance:
        execute = driver_for(connection).execute
        while after is not None:
            purged = run(upkeep.purge(catalog, older_than=older_than, limit=step, after=after), execute)
            connection.commit()
            total += purged.deleted
            advance(purged.deleted)
            after = purged.after
    if as_json:
        invocation.out.json({"deleted": total})
    else:
        invocation.out.line(f"deleted {total} done {'message' if total == 1 else 'messages'}")
    return exits.OK


@contextmanager
def _progress(out: Output, as_json: bool) -> Iterator[Callable[[int], None]]:
    """Yield what counts on: a bar on a terminal, nothing elsewhere. How many there are is not known before."""
    console = out.console(stderr=True)
    if as_json or not console.is_terminal:
        yield lambda count: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("deleting done messages"),
        BarColumn(),
        TextColumn("{task.completed}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("purge", total=None)
        yield lambda count: progress.advance(task, count)
