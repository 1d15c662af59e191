"""``partition``: an outbox in partitions by id, whose history goes by dropping whole tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli import exits
from fencepost.cli.invocation import Invocation, outbox_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.settings.durations import parse_duration
from fencepost.config import Settings
from fencepost.core.operation import Operation, run
from fencepost.drivers import driver_for
from fencepost.store import partitions
from fencepost.store.partitions import Partition, Partitions

if TYPE_CHECKING:
    import psycopg

HEADERS = ("partition", "from", "below", "rows", "bytes")


def _duration(_context: click.Context, _parameter: click.Parameter, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group()
def partition() -> None:
    """Keep the outbox in partitions, by id.

    Optional, for millions of messages a day: to drop a table costs next to nothing, to delete its rows does not.
    """


@partition.command()
@takes_settings(*STORE)
@click.option(
    "--rows",
    required=True,
    type=click.IntRange(partitions.SMALLEST, partitions.LARGEST),
    help="Messages per partition; a day's worth is a good size.",
)
def init(invocation: Invocation, settings: Settings, rows: int) -> int:
    """Divide the outbox, which must be empty.

    Grants on the table have to be made again. Messages with a dedupe key are refused from then on.
    """
    with invocation.connected(settings, "partition") as connection:
        _committed(connection, partitions.convert(outbox_of(settings).catalog, size=rows))
    invocation.out.line(
        f"the outbox {settings.schema}.{settings.table} is in partitions of {rows} messages: run "
        "`fencepost partition add` and `fencepost partition drop` from time to time"
    )
    return exits.OK


@partition.command("list")
@takes_settings(*STORE)
@json_option
def list_command(invocation: Invocation, settings: Settings, as_json: bool) -> int:
    """List the partitions; exit 1 where messages have run ahead of them.

    The numbers of rows are estimates.
    """
    with invocation.connected(settings, "partition") as connection:
        found = _committed(connection, partitions.partitions(outbox_of(settings).catalog))
    problems = _problems(found)
    if as_json:
        shown = [dict(zip(HEADERS, _row(each), strict=True)) for each in _each(found)]
        invocation.out.json(
            {"partitions": shown, "last_id": found.last_id, "ahead": found.ahead, "problems": problems}
        )
    else:
        invocation.out.table(HEADERS, [_row(each) for each in _each(found)])
        for problem in problems:
            invocation.out.note(problem)
    return exits.NEGATIVE if problems else exits.OK


@partition.command()
@takes_settings(*STORE)
@click.option(
    "--ahead",
    type=click.IntRange(1, 100),
    default=partitions.AHEAD,
    show_default=True,
    help="How many should wait in front of the one that is being written.",
)
@click.option(
    "--rows",
    type=click.IntRange(partitions.SMALLEST, partitions.LARGEST),
    help="Messages in each new one; as many as in the last one unless given.",
)
@json_option
def add(invocation: Invocation, settings: Settings, ahead: int, rows: int | None, as_json: bool) -> int:
    """Make partitions ahead of the messages."""
    catalog = outbox_of(settings).catalog
    with invocation.connected(settings, "partition") as connection:
        made = _until_none(connection, lambda: partitions.add_partition(catalog, size=rows, ahead=ahead))
    return _say(invocation, "made", made, as_json)


@partition.command()
@takes_settings(*STORE)
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    callback=_duration,
    help="Time since every message in it was done, such as 7d.",
)
@json_option
def drop(invocation: Invocation, settings: Settings, older_than: timedelta, as_json: bool) -> int:
    """Drop partitions of which nothing has to stay.

    One message that is not done, or was done lately, keeps its partition: `fencepost dead` ends dead ones.

    Each takes a moment in which no transaction that enqueued is open: fails, to be run again, where there is none
    for 0.2 s.
    """
    catalog = outbox_of(settings).catalog
    with invocation.connected(settings, "partition") as connection:
        dropped = _until_none(connection, lambda: partitions.drop_partition(catalog, older_than=older_than))
    return _say(invocation, "dropped", dropped, as_json)


def _committed(connection: psycopg.Connection[Any], operation: Operation[Any]) -> Any:
    result = run(operation, driver_for(connection).execute)
    connection.commit()
    return result


def _until_none(connection: psycopg.Connection[Any], make: Callable[[], Operation[str | None]]) -> list[str]:
    names = []
    while (name := _committed(connection, make())) is not None:
        names.append(name)
    return names


def _say(invocation: Invocation, verb: str, names: list[str], as_json: bool) -> int:
    if as_json:
        invocation.out.json({verb: names})
    else:
        invocation.out.line(f"{verb} {', '.join(names) or 'none'}")
    return exits.OK


def _each(found: Partitions) -> list[Partition]:
    return [*found.ranges, *([found.default] if found.default is not None else [])]


def _row(each: Partition) -> tuple[str, int | None, int | None, int, int]:
    return each.name, each.lower, each.upper, each.rows, each.bytes


def _problems(found: Partitions) -> list[str]:
    problems = []
    if found.ahead == 0:
        problems.append("no partition waits for the next ids: run `fencepost partition add`")
    if not found.default_is_empty:
        problems.append(
            "messages ran ahead of the partitions into the default one: they are delivered as ever, and go with "
            "`fencepost purge`"
        )
    if found.default is None:
        problems.append("there is no default partition: an INSERT may fail for want of one")
    return problems
