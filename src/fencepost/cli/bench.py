"""``bench``: what fencepost costs, measured on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fencepost.bench.contents import SECTIONS
from fencepost.cli import exits
from fencepost.cli.invocation import Invocation
from fencepost.cli.options import debug_option, json_option
from fencepost.cli.output import Cell, Output
from fencepost.cli.settings.routing import destinations_from_texts
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.bench import figures
    from fencepost.bench.drain import Report
    from fencepost.bench.figures import Target
    from fencepost.bench.trial import Run

_HEADERS = ("run", "messages/s", "CPU µs", "WAL bytes", "statements", "HOT", "dead tuples")


@click.group()
def bench() -> None:
    """Measure what fencepost costs."""


@bench.command()
@click.option(
    "--messages",
    type=click.IntRange(1, 10_000_000),
    default=50_000,
    envvar="FENCEPOST_BENCH_MESSAGES",
    show_default=True,
    show_envvar=True,
    help="For each run.",
)
@click.option(
    "--pairs",
    type=click.IntRange(1, 100),
    default=3,
    envvar="FENCEPOST_BENCH_PAIRS",
    show_default=True,
    show_envvar=True,
    help="Runs of each side.",
)
@json_option
@debug_option
@click.pass_obj
def drain(invocation: Invocation, messages: int, pairs: int, as_json: bool) -> int:
    """Drain a queue, beside a bare SQL loop.

    Starts a PostgreSQL server of its own and drains the same load with the shipped dispatcher and with a bare
    claim-and-finalize loop, in turns. Exits 1 when a target is missed. Other work on the machine shows in
    the speeds, less in their ratio, and not at all in statements and WAL.
    """
    from fencepost.bench.drain import measure

    out = invocation.out
    with _progress(out, pairs, as_json) as advance:
        report = measure(messages, pairs, advance)
    if as_json:
        out.json(_as_json(report))
    else:
        _show(out, report)
    return exits.OK if all(target.held for target in report.targets) else exits.NEGATIVE


def _show(out: Output, report: Report) -> None:
    from fencepost.bench.drain import BARE, METHOD, SHIPPED

    out.table(_HEADERS, [_row(run) for run in report.runs])
    out.line()
    for name in (BARE, SHIPPED):
        out.line(f"median of the {name}: {report.median(name, lambda run: run.rate):.0f} messages/s")
    for target in report.targets:
        out.line(_verdict(target))
    out.line()
    out.line(f"{report.server}. Figures are per message.")
    out.line("\n".join(METHOD))


def _verdict(target: Target) -> str:
    sign = "at least" if target.at_least else "at most"
    figure = f"{target.measured:.3g}, {sign} {target.limit:g} {target.unit}".rstrip()
    return f"{target.verdict}: {target.name}: {figure}"


def _row(run: Run) -> list[Cell]:
    return [
        run.contender,
        f"{run.rate:.0f}",
        f"{run.cpu_seconds / run.messages * 1_000_000:.0f}",
        f"{run.wal_bytes / run.messages:.0f}",
        f"{run.statements / run.messages:.3f}",
        f"{run.hot_updates / max(1, run.updates):.2f}",
        f"{run.dead_tuples / run.messages:.2f}",
    ]


def _as_json(report: Report) -> dict[str, Any]:
    from fencepost.bench.drain import METHOD

    return {
        "server": report.server,
        "runs": [asdict(run) | {"messages_per_second": run.rate} for run in report.runs],
        "targets": [asdict(target) | {"held": target.held} for target in report.targets],
        "method": " ".join(METHOD),
    }


def _destinations(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> Sequence[tuple[str, str]]:
    """Read them before anything is measured, and refuse what there is nothing to hold against."""
    if not given:
        return ()
    from fencepost.bench.clients import target_of
    from fencepost.bench.sections.destinations import PAYLOAD_BYTES

    try:
        found = destinations_from_texts(given)
        for _, url in found:
            target_of(url, PAYLOAD_BYTES)
    except (ValueError, FencepostError) as error:
        raise click.BadParameter(str(error)) from None
    return found


@bench.command()
@click.option("--full", is_flag=True, help="Also what takes many minutes and gigabytes (10 M done messages).")
@click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, writable=True, path_type=Path),
    default=Path("fencepost-report"),
    show_default=True,
    metavar="DIR",
    help="Where to write the report and its charts.",
)
@click.option("--only", multiple=True, type=click.Choice(list(SECTIONS)), help="This section; can be repeated.")
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Run this part of the full sizes, such as 0.01 to see that it works.",
)
@click.option(
    "--destination",
    "destinations",
    multiple=True,
    callback=_destinations,
    metavar="NAME=URL",
    help="A destination to measure in the section destinations; can be repeated. It is filled with messages.",
)
@json_option
@debug_option
@click.pass_obj
def report(
    invocation: Invocation,
    full: bool,
    directory: Path,
    only: tuple[str, ...],
    scale: float,
    destinations: Sequence[tuple[str, str]],
    as_json: bool,
) -> int:
    """Measure everything and write a report with charts.

    Starts a PostgreSQL server of its own; give it a quiet machine and a quarter of an hour. Exits 1 when a
    figure that must hold is missed, or a section failed.
    """
    from fencepost.bench.suite import Plan, measure, write

    out = invocation.out
    # Before the minutes, not after them: a place that cannot be written to.
    directory.mkdir(parents=True, exist_ok=True)
    sections = [name for name in SECTIONS if name in only or not only]
    found = measure(Plan(sections, scale, full, destinations), out.note)
    path = write(found, directory)
    if as_json:
        out.json(asdict(found) | {"held": found.held, "report": str(path)})
    else:
        _show_report(out, found, path)
    return exits.OK if found.held else exits.NEGATIVE


def _show_report(out: Output, found: figures.Report, path: Path) -> None:
    for section in found.sections:
        if section.failure:
            out.line(f"FAILED: section {section.name}: {section.failure}")
    for target in found.targets:
        out.line(_verdict(target))
    out.line(f"written: {path}")


@contextmanager
def _progress(out: Output, pairs: int, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Yield what tells the next run: a bar on a terminal, lines on standard error elsewhere."""
    console = out.console(stderr=True)
    if as_json or not console.is_terminal:
        yield out.note
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting a server", total=2 * pairs)

        def advance(text: str) -> None:
            started = progress.tasks[0].description != "starting a server"
            progress.update(task, description=text, advance=int(started))

        yield advance
