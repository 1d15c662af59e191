"""``status``: what is in the outbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fencepost.cli import exits
from fencepost.cli.failures import failure_of
from fencepost.cli.invocation import Invocation, connect, outbox_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Cell, Output, plain_table, rich_table
from fencepost.cli.settings.durations import parse_duration
from fencepost.config import Settings
from fencepost.core.records import QueueStats, Stats

if TYPE_CHECKING:
    from rich.console import RenderableType

_COUNTS = ("pending", "processing", "blocked", "dead", "expired")
_HEADERS = ("queue", *_COUNTS, "oldest")
_SHORTEST_WATCH = 0.1


@click.command()
@takes_settings(*STORE)
@click.option(
    "--watch",
    metavar="[SECONDS]",
    is_flag=False,
    flag_value="2s",
    help="Look again every 2 s, or as often as said.",
)
@json_option
def status(invocation: Invocation, settings: Settings, watch: str | None, as_json: bool) -> int:
    """Count what is in the outbox.

    Shows messages by queue and state, dead ones by reason, and who holds leases.

    "oldest" is the time since the oldest undelivered message became due: the first thing to alarm on.
    "expired" counts leases that ended and were not taken over yet.
    """
    if watch is not None:
        _watch(invocation, settings, _interval(watch), as_json)
    out = invocation.out
    with invocation.connected(settings, "status") as connection:
        stats = outbox_of(settings).stats(connection)
    if as_json:
        out.json(_as_json(stats))
    elif out.is_terminal:
        out.console().print(_for_terminal(out, stats))
    else:
        out.line(_plain(out, stats))
    return exits.OK


def _interval(text: str) -> float:
    try:
        return max(_SHORTEST_WATCH, parse_duration(text).total_seconds())
    except ValueError as error:
        raise click.UsageError(f"--watch: {error}") from None


# --- watching ---------------------------------------------------------------------------------------------

Show = Callable[[Stats, str], None]


def _watch(invocation: Invocation, settings: Settings, every: float, as_json: bool) -> NoReturn:
    """Show the statistics again and again, also across restarts of the database, until interrupted."""
    with invocation.store_url(settings) as url, _screen(invocation.out, as_json) as show:
        looks = _looks(url, settings)
        stats = next(looks)  # what is wrong with the first look ends the program
        show(stats, "")
        while True:
            time.sleep(every)
            try:
                stats = next(looks)
                show(stats, "")
            except Exception as error:
                if not _is_connection_error(error):
                    raise
                looks = _looks(url, settings)
                show(stats, f"{failure_of(error, settings).text}; trying again")


def _looks(url: str, settings: Settings) -> Iterator[Stats]:
    with connect(url, "status") as connection:
        while True:
            stats = outbox_of(settings).stats(connection)
            connection.rollback()  # between looks no transaction may stay open and hold back vacuum
            yield stats


def _is_connection_error(error: Exception) -> bool:
    import psycopg

    return isinstance(error, psycopg.OperationalError)


@contextmanager
def _screen(out: Output, as_json: bool) -> Iterator[Show]:
    """Yield what shows a look: in place on a terminal, one below the other in a pipe."""
    if as_json or not out.is_terminal:
        yield lambda stats, problem: _show_next(out, stats, problem, as_json)
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=out.console(), auto_refresh=False) as live:
        yield lambda stats, problem: live.update(
            Group(_for_terminal(out, stats), Text(out.text(problem), style="red")), refresh=True
        )


def _show_next(out: Output, stats: Stats, problem: str, as_json: bool) -> None:
    if problem:
        out.note(problem)
    elif as_json:
        out.json(_as_json(stats))
    else:
        out.line(_plain(out, stats) + "\n")


# --- showing ----------------------------------------------------------------------------------------------


def _as_json(stats: Stats) -> dict[str, Any]:
    return {
        "queues": [_queue_as_json(queue) for queue in stats.queues],
        "total": _totals(stats) | {"oldest_age_seconds": stats.oldest_age},
        "dead_by_outcome": stats.dead_by_outcome,
        "done": stats.done,
        "done_is_capped": stats.done_is_capped,
        "workers": stats.workers,
    }


def _queue_as_json(queue: QueueStats) -> dict[str, Any]:
    found = asdict(queue)
    return found | {"oldest_age_seconds": found.pop("oldest_age")}


def _totals(stats: Stats) -> dict[str, Any]:
    return {name: stats.total(name) for name in _COUNTS}


def _rows(stats: Stats) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = [
        (each.queue, *(getattr(each, name) for name in _COUNTS), each.oldest_age) for each in stats.queues
    ]
    if len(rows) > 1:
        rows.append(("total", *_totals(stats).values(), stats.oldest_age))
    return rows


def _summary(stats: Stats) -> list[str]:
    lines = [] if stats.queues else ["no open messages"]
    if stats.dead_by_outcome:
        lines.append(f"dead: {_listed(stats.dead_by_outcome)} (see `fencepost dead list`)")
    lines.append(f"done: {'more than ' if stats.done_is_capped else ''}{stats.done} kept")
    if stats.workers:
        lines.append(f"leases: {_listed(stats.workers)}")
    return lines


def _listed(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _plain(out: Output, stats: Stats) -> str:
    rows = out.cells(_rows(stats))
    return "\n".join([*(plain_table(_HEADERS, rows) if rows else []), *_summary(stats)])


def _for_terminal(out: Output, stats: Stats) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows = out.cells(_rows(stats))
    table = [rich_table(_HEADERS, rows)] if rows else []
    return Group(*table, *(Text(out.text(line)) for line in _summary(stats)))
