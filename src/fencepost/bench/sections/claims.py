"""How long one claim takes, against everything that a claim should not depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg

from fencepost.bench import contender, tables
from fencepost.bench.bench import Bench
from fencepost.bench.claiming import WARM_UP
from fencepost.bench.contender import BATCH, Assignment
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import (
    Chart,
    Section,
    Series,
    Table,
    Target,
    at_most,
    milliseconds,
    percentile,
    ratio,
    short,
)
from fencepost.bench.tables import Load

NAME = "claims"
MODULE = "fencepost.bench.claiming"
CLAIMS = 200
BACKLOG = 10_000
KEY = "stuck"

METHOD = (
    f"Each point is a fresh process that makes {CLAIMS} claims of up to {BATCH} messages, after {WARM_UP} that "
    "are not counted, with the store's own statement in a session with a dispatcher's settings, each its own "
    "transaction; timed from sending it to the last row.",
    "Each claim is finalized, and as many messages are added at the end as it took, so that the depth stays what "
    "it is; neither is timed. The table was vacuumed and analyzed after it was filled, and is not any more after.",
    "All claims look everywhere, without the floor under the scan that a dispatcher keeps.",
    "Done and parked messages are written as such; all others are claimed from a backlog of "
    f"{short(BACKLOG)} free messages. With several workers, every worker's claims count.",
)


@dataclass(frozen=True, slots=True)
class Point:
    """One size and the claims that were made there."""

    size: int
    seconds: Sequence[float]
    rows: float

    @property
    def p50(self) -> float:
        return percentile(self.seconds, 50)

    @property
    def p99(self) -> float:
        return percentile(self.seconds, 99)


@dataclass(frozen=True, slots=True)
class Curve:
    """What one axis is.

    Args:
        fill: makes the table for a size.
        keys: over how many keys what is added is spread.
        must_be_flat: whether the last size's p50 may be at most twice the first one's.
    """

    name: str
    title: str
    axis: str
    sizes: tuple[int, ...]
    fill: Callable[[tables.Connection, int], None]
    keys: int = 0
    must_be_flat: bool = False


def _backlog(connection: tables.Connection, size: int) -> None:
    tables.add(connection, Load(size))


def _history(connection: tables.Connection, size: int) -> None:
    if size:
        tables.add_done(connection, size)


def _hot(connection: tables.Connection, size: int) -> None:
    tables.add(connection, Load(size, keys=1))


def _parked(connection: tables.Connection, size: int) -> None:
    if size:
        tables.add_dead_head(connection, KEY)
        tables.add_parked(connection, size, KEY)


BACKLOGS = Curve(
    "backlog",
    "Claims against the backlog",
    "pending messages",
    (10_000, 100_000, 1_000_000),
    _backlog,
    must_be_flat=True,
)
HISTORIES = Curve(
    "history", "Claims against the history", "done messages", (0, 2_000_000), _history, must_be_flat=True
)
HOT_KEYS = Curve(
    "hot", "Claims of one hot key", "pending messages of the key", (1_000, 100_000, 1_000_000), _hot, 1
)
PARKED = Curve(
    "parked",
    "Claims beside messages parked behind a dead head",
    "parked messages",
    (0, 10_000, 100_000),
    _parked,
    must_be_flat=True,
)
FULL_HISTORY = 10_000_000
WORKERS = (1, 2, 4)


def measure(bench: Bench) -> Section:
    """Measure every curve, the smallest size first."""
    curves = [BACKLOGS, HISTORIES, HOT_KEYS, PARKED]
    found = [(curve, _points(bench, curve)) for curve in curves]
    workers = _workers(bench)
    shown = [(curve.name, curve.title, curve.axis, points) for curve, points in found]
    shown.append(("workers", "Claims with several workers at once", "workers", workers))
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=tuple(_table(axis, points) for _, _, axis, points in shown),
        charts=tuple(_chart(*each) for each in shown),
        targets=tuple(_target(curve, points) for curve, points in found if curve.must_be_flat),
    )


def _points(bench: Bench, curve: Curve) -> list[Point]:
    sizes = [*curve.sizes, *([FULL_HISTORY] if bench.full and curve is HISTORIES else [])]
    points = []
    for full_size in bench.steps(sizes):
        size = bench.count(full_size, least=10 if full_size else 0)
        bench.say(f"{curve.title}: {short(size)}")
        with bench.emptied() as connection:
            curve.fill(connection, size)
            if curve not in (BACKLOGS, HOT_KEYS):
                tables.add(connection, Load(bench.count(BACKLOG)))
            tables.settle(connection)
        points.append(_claimed(bench, size, 1, curve.keys))
    return points


def _workers(bench: Bench) -> list[Point]:
    points = []
    for workers in bench.steps(WORKERS):
        bench.say(f"claims by {workers} workers at once")
        with psycopg.connect(bench.url, autocommit=True) as connection:
            tables.empty(connection)
            tables.add(connection, Load(bench.count(10 * BACKLOG)))
            tables.settle(connection)
        points.append(_claimed(bench, workers, workers, 0))
    return points


def _claimed(bench: Bench, size: int, workers: int, keys: int) -> Point:
    assignment = Assignment(bench.url, claims=bench.count(CLAIMS, least=10), keys=keys)
    claims = [each for one in contender.run_together(MODULE, [assignment] * workers) for each in one.claims]
    return Point(size, [seconds for seconds, _ in claims], sum(rows for _, rows in claims) / len(claims))


def _target(curve: Curve, points: Sequence[Point]) -> Target:
    first, last = (short(point.size) if point.size else "none" for point in (points[0], points[-1]))
    name = f"claim p50 with {last} {curve.axis}, as a multiple of that with {first}"
    return at_most(name, ratio(points[-1].p50, points[0].p50), 2.0)


def _table(axis: str, points: Sequence[Point]) -> Table:
    return Table(
        (axis, "p50 ms", "p99 ms", "p50 against the first", "rows a claim", "claims"),
        tuple(
            (
                short(point.size),
                milliseconds(point.p50),
                milliseconds(point.p99),
                f"{ratio(point.p50, points[0].p50):.2f}",
                f"{point.rows:.0f}",
                str(len(point.seconds)),
            )
            for point in points
        ),
    )


def _chart(name: str, title: str, axis: str, points: Sequence[Point]) -> Chart:
    return Chart(
        f"claims-{name}",
        title,
        axis,
        "ms",
        tuple(short(point.size) for point in points),
        (
            Series("p50", tuple(point.p50 * 1_000 for point in points)),
            Series("p99", tuple(point.p99 * 1_000 for point in points)),
        ),
    )
