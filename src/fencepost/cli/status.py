"""``status``: what is in the outbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fencepost.cli import exits
from fencepost.cli.failures import failure_of
from fencepost.cli.invocation import Invocation, connect, outbox_of
from fencepost.cli.options import STORE, json_option, takes_settings
from fencepost.cli.output import Cell, Output, plain_table, rich_table
from fencepost.cli.settings.durations import parse_duration
from fencepost.cli.standstill import breaker_as_json, standstills
from fencepost.config import Settings
from fencepost.core.queue import QueueSettings
from fencepost.core.records import QueueStats, Stats

if TYPE_CHECKING:
    import psycopg
    from rich.console import RenderableType

_COUNTS = ("pending", "processing", "blocked", "dead", "expired")
_HEADERS = ("queue", *_COUNTS, "oldest")
_SHORTEST_WATCH = 0.1


@dataclass(frozen=True, slots=True)
class Look:
    """What is in the outbox, and the queues that are paused or whose breaker is open."""

    stats: Stats
    queues: tuple[QueueSettings, ...]

    @property
    def paused(self) -> list[str]:
        return [each.queue for each in self.queues if each.paused]

    def settings(self, queue: str) -> QueueSettings:
        """Return the settings of a queue, whether it has some of its own or not."""
        return next((each for each in self.queues if each.queue == queue), QueueSettings(queue=queue))


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

    Nothing of a paused queue is claimed (`fencepost resume`), and of a queue whose breaker is open only a probe
    now and then: its destination takes nothing.
    """
    if watch is not None:
        _watch(invocation, settings, _interval(watch), as_json)
    out = invocation.out
    with invocation.connected(settings, "status") as connection:
        look = _look(connection, settings)
    if as_json:
        out.json(_as_json(look))
    elif out.is_terminal:
        out.console().print(_for_terminal(out, look))
    else:
        out.line(_plain(out, look))
    return exits.OK


def _look(connection: psycopg.Connection[Any], settings: Settings) -> Look:
    outbox = outbox_of(settings)
    stats = outbox.stats(connection)
    standing = (each for each in outbox.queues(connection) if each.paused or each.breaker is not None)
    return Look(stats, tuple(standing))


def _interval(text: str) -> float:
    try:
        return max(_SHORTEST_WATCH, parse_duration(text).total_seconds())
    except ValueError as error:
        raise click.UsageError(f"--watch: {error}") from None


# --- watching ---------------------------------------------------------------------------------------------

Show = Callable[[Look, str], None]


def _watch(invocation: Invocation, settings: Settings, every: float, as_json: bool) -> NoReturn:
    """Show the statistics again and again, also across restarts of the database, until interrupted."""
    with invocation.store_url(settings) as url, _screen(invocation.out, as_json) as show:
        looks = _looks(url, settings)
        look = next(looks)  # what is wrong with the first look ends the program
        show(look, "")
        while True:
            time.sleep(every)
            try:
                look = next(looks)
                show(look, "")
            except Exception as error:
                if not _is_connection_error(error):
                    raise
                looks = _looks(url, settings)
                show(look, f"{failure_of(error, settings).text}; trying again")


def _looks(url: str, settings: Settings) -> Iterator[Look]:
    with connect(url, "status") as connection:
        while True:
            look = _look(connection, settings)
            connection.rollback()  # between looks no transaction may stay open and hold back vacuum
            yield look


def _is_connection_error(error: Exception) -> bool:
    import psycopg

    return isinstance(error, psycopg.OperationalError)


@contextmanager
def _screen(out: Output, as_json: bool) -> Iterator[Show]:
    """Yield what shows a look: in place on a terminal, one below the other in a pipe."""
    if as_json or not out.is_terminal:
        yield lambda look, problem: _show_next(out, look, problem, as_json)
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=out.console(), auto_refresh=False) as live:
        yield lambda look, problem: live.update(
            Group(_for_terminal(out, look), Text(out.text(problem), style="red")), refresh=True
        )


def _show_next(out: Output, look: Look, problem: str, as_json: bool) -> None:
    if problem:
        out.note(problem)
    elif as_json:
        out.json(_as_json(look))
    else:
        out.line(_plain(out, look) + "\n")


# --- showing ----------------------------------------------------------------------------------------------


def _as_json(look: Look) -> dict[str, Any]:
    stats = look.stats
    return {
        "queues": [_queue_as_json(queue, look.settings(queue.queue)) for queue in stats.queues],
        "total": _totals(stats) | {"oldest_age_seconds": stats.oldest_age},
        "paused": look.paused,
        "breakers": {
            each.queue: breaker_as_json(each.breaker) for each in look.queues if each.breaker is not None
        },
        "pause_reasons": {each.queue: each.pause_reason for each in look.queues if each.pause_reason is not None},
        "dead_by_outcome": stats.dead_by_outcome,
        "done": stats.done,
        "done_is_capped": stats.done_is_capped,
        "workers": stats.workers,
    }


def _queue_as_json(queue: QueueStats, settings: QueueSettings) -> dict[str, Any]:
    found = asdict(queue)
    return found | {
        "oldest_age_seconds": found.pop("oldest_age"),
        "paused": settings.paused,
        "pause_reason": settings.pause_reason,
        "breaker": breaker_as_json(settings.breaker),
    }


def _totals(stats: Stats) -> dict[str, Any]:
    return {name: stats.total(name) for name in _COUNTS}


def _rows(look: Look) -> list[tuple[Cell, ...]]:
    stats = look.stats
    rows: list[tuple[Cell, ...]] = [
        (
            _named(look.settings(each.queue)),
            *(getattr(each, name) for name in _COUNTS),
            each.oldest_age,
        )
        for each in stats.queues
    ]
    if len(rows) > 1:
        rows.append(("total", *_totals(stats).values(), stats.oldest_age))
    return rows


def _named(settings: QueueSettings) -> str:
    states = ["paused"] if settings.paused else []
    states += ["breaker open"] if settings.breaker is not None else []
    return settings.queue + (f" ({', '.join(states)})" if states else "")


def _summary(look: Look) -> list[str]:
    stats = look.stats
    lines = [] if stats.queues else ["no open messages"]
    if look.paused:
        lines.append(f"paused: {', '.join(look.paused)} (see `fencepost resume`)")
    if stats.total("blocked"):
        lines.append(f"blocked: {stats.total('blocked')} (see `fencepost keys`)")
    if stats.dead_by_outcome:
        lines.append(f"dead: {_listed(stats.dead_by_outcome)} (see `fencepost dead list`)")
    lines.append(f"done: {'more than ' if stats.done_is_capped else ''}{stats.done} kept")
    if stats.workers:
        lines.append(f"leases: {_listed(stats.workers)}")
    return lines


def _listed(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _plain(out: Output, look: Look) -> str:
    rows = out.cells(_rows(look))
    return "\n".join([*(plain_table(_HEADERS, rows) if rows else []), *standstills(look.queues), *_summary(look)])


def _for_terminal(out: Output, look: Look) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows = out.cells(_rows(look))
    table = [rich_table(_HEADERS, rows)] if rows else []
    alarms = [Text(out.text(line), style="red") for line in standstills(look.queues)]
    return Group(*table, *alarms, *(Text(out.text(line)) for line in _summary(look)))
