"""A snapshot that somebody holds open: what is finished cannot be removed, and claims must not walk over it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import psycopg

from fencepost.bench import contender, tables
from fencepost.bench.bench import Bench
from fencepost.bench.claiming import FLOOR
from fencepost.bench.contender import Assignment
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Chart, Section, Series, Table, at_most, milliseconds, percentile, ratio
from fencepost.bench.sections.claims import MODULE as CLAIMING_MODULE
from fencepost.bench.shipped import TASKS, WATCH_CLAIMS
from fencepost.bench.tables import Load
from fencepost.bench.trial import SHIPPED_MODULE

NAME = "snapshot"
MESSAGES = 100_000
BEFORE = 10_000
CLAIMS = 100
SLICES = 10
EVERYWHERE = ""

METHOD = (
    f"One dispatcher delivers {BEFORE:,} messages; then a REPEATABLE READ transaction on another connection takes "
    f"a snapshot and stays open, {MESSAGES:,} messages are added, and a second dispatcher delivers them and "
    f"{BEFORE:,} more behind them.",
    "A dispatcher's claims are timed where it sends them, beside its publishes and finalizes. Before: all claims "
    f"of the first dispatcher but its first tenth; after: those of the last {BEFORE:,} messages of the second.",
    f"The other two rows are {CLAIMS} claims by a process that does nothing else, before and at the end, with a "
    "dispatcher's scan floor and without any.",
)

Samples = Sequence[tuple[float, int]]


def measure(bench: Bench) -> Section:
    """Measure before, hold the snapshot while messages go by, and measure again."""
    few, many = bench.count(BEFORE), bench.count(MESSAGES)
    names = ("a dispatcher's claims", "claims from a floor", "claims that look everywhere")
    with bench.emptied() as connection:
        before = [_warm(_dispatched(bench, connection, few)), *_alone(bench, connection, few)]
    with bench.emptied() as connection, _snapshot(bench):
        under = _dispatched(bench, connection, few + many)
        parts = slices(under, SLICES + 1)
        after = [last(under, few), *_alone(bench, connection, few)]
    ratios = [ratio(_p50(now), _p50(then)) for then, now in zip(before, after, strict=True)]
    rows = tuple(
        (name, *_figures(then), *_figures(now), f"{multiple:.2f}")
        for name, then, now, multiple in zip(names, before, after, ratios, strict=True)
    )
    headers = ("claims", "p50 ms before", "p99 ms before", "p50 ms after", "p99 ms after", "p50 after/before")
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(Table(headers, rows),),
        charts=(_chart(before[0], parts, many + few),),
        targets=(
            at_most(f"claim p50 after {many:,} messages under a held snapshot, against before", ratios[0], 2.0),
        ),
    )


def _snapshot(bench: Bench) -> AbstractContextManager[object]:
    connection = psycopg.connect(bench.url)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT count(*) FROM outbox")  # a transaction has a snapshot from its first statement on
    return connection


def _dispatched(bench: Bench, connection: tables.Connection, messages: int) -> Samples:
    bench.say(f"a dispatcher delivers {messages:,} messages")
    tables.add(connection, Load(messages))
    assignment = Assignment(bench.url, messages, kind=TASKS, settings={WATCH_CLAIMS: True})
    return contender.run(SHIPPED_MODULE, assignment).claims


def _alone(bench: Bench, connection: tables.Connection, messages: int) -> list[Samples]:
    found = []
    for kind in (FLOOR, EVERYWHERE):
        bench.say("claims from a floor" if kind == FLOOR else "claims that look everywhere")
        tables.add(connection, Load(messages))
        assignment = Assignment(bench.url, claims=bench.count(CLAIMS, least=10), kind=kind)
        found.append(contender.run(CLAIMING_MODULE, assignment).claims)
    return found


def _warm(claims: Samples) -> Samples:
    """Leave out the claims of a process that has just begun, which are not prepared yet."""
    return claims[len(claims) // 10 :]


def last(claims: Samples, messages: int) -> Samples:
    """Return the claims of the last so many messages."""
    rows = 0
    for place in range(len(claims) - 1, -1, -1):
        rows += claims[place][1]
        if rows >= messages:
            return claims[place:]
    return claims


def slices(claims: Samples, number: int) -> list[Samples]:
    """Cut the claims into at most so many parts of one length, but for the last one."""
    size = max(1, -(-len(claims) // number))
    return [claims[start : start + size] for start in range(0, len(claims), size)]


def _p50(claims: Samples) -> float:
    return percentile([seconds for seconds, _ in claims], 50)


def _figures(claims: Samples) -> tuple[str, str]:
    seconds = [each for each, _ in claims]
    return milliseconds(percentile(seconds, 50)), milliseconds(percentile(seconds, 99))


def _chart(before: Samples, parts: Sequence[Samples], messages: int) -> Chart:
    ends = [f"{(place + 1) * messages // len(parts) // 1000} k" for place in range(len(parts))]
    return Chart(
        NAME,
        "A dispatcher's claims under a held snapshot",
        "messages delivered since the snapshot was taken",
        "ms, p50",
        ("before", *ends),
        (Series("p50", tuple(_p50(each) * 1_000 for each in (before, *parts))),),
    )
