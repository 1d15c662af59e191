"""What an enqueue adds to the business transaction that it belongs to."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import psycopg

from fencepost.bench import contender
from fencepost.bench.bench import Bench
from fencepost.bench.contender import Assignment
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Chart, Section, Series, Table, at_least, milliseconds, percentile
from fencepost.bench.producing import NOTIFY, SILENT
from fencepost.bench.tables import PAYLOAD, Connection
from fencepost.client.outbox import Outbox

NAME = "enqueue"
TRANSACTIONS = 500
WARM_UP = 20
PRODUCERS, PROCESSES = 64, 2
MESSAGES = 12_800
ROUNDS = 3
MODULE = "fencepost.bench.producing"

ALONE = "the transaction alone"
CASES: Mapping[str, tuple[bool, bool] | None] = {
    ALONE: None,
    "unordered": (False, False),
    "unordered, NOTIFY": (False, True),
    "ordered": (True, False),
    "ordered, NOTIFY": (True, True),
}
"""Ordered? Notified? None enqueues nothing."""

METHOD = (
    f"Each transaction inserts one row of a table of the business's own and commits, fsync on: {TRANSACTIONS} "
    f"times alone and with each kind of enqueue, in turns on one connection, after {WARM_UP} that are not "
    "counted. Ordered messages take turns over 1,000 keys.",
    f"Producers: {PRODUCERS} connections in {PROCESSES} processes commit {MESSAGES:,} transactions of one "
    f"message, with NOTIFY and without in turns, {ROUNDS} times; one session listens. The ratio is the median of "
    "the rounds.",
)


def measure(bench: Bench) -> Section:
    """Time single transactions, then many producers at once."""
    bench.say("one producer, transactions with and without a message")
    with bench.emptied() as connection:
        connection.execute("DROP TABLE IF EXISTS bench_order")
        connection.execute("CREATE TABLE bench_order (id bigserial PRIMARY KEY, item text NOT NULL)")
    with psycopg.connect(bench.url) as connection:
        seconds = _transactions(connection, bench.count(TRANSACTIONS, least=20))
    rounds = _rounds(bench)
    share = statistics.median(notified / silent for notified, silent in rounds)
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(_added(seconds), _rates(rounds)),
        charts=(_chart(seconds),),
        targets=(
            at_least(f"enqueue rate of {PRODUCERS} producers with NOTIFY, part of that without", share, 0.9),
        ),
    )


def _transactions(connection: Connection, number: int) -> dict[str, list[float]]:
    outboxes = {notify: Outbox(notify=notify) for notify in (False, True)}
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    payload = json.loads(PAYLOAD)
    for turn in range(WARM_UP + number):
        for name, case in CASES.items():
            began = time.perf_counter()
            connection.execute("INSERT INTO bench_order (item) VALUES ('book')")
            if case is not None:
                is_ordered, notify = case
                key = f"key-{turn % 1_000}" if is_ordered else None
                outboxes[notify].enqueue(connection, "bench.message", payload, ordering_key=key)
            connection.commit()
            seconds[name].append(time.perf_counter() - began)
    return {name: values[WARM_UP:] for name, values in seconds.items()}


def _rounds(bench: Bench) -> list[tuple[float, float]]:
    """Return the rates with and without notices, round by round, who is first by turns."""
    rounds = []
    with psycopg.connect(bench.url, autocommit=True) as listener:
        listener.execute('LISTEN "fencepost:outbox"')
        for number in range(bench.rounds(ROUNDS)):
            kinds = (NOTIFY, SILENT) if number % 2 == 0 else (SILENT, NOTIFY)
            rates = {kind: _rate(bench, kind, number) for kind in kinds}
            rounds.append((rates[NOTIFY], rates[SILENT]))
    return rounds


def _rate(bench: Bench, kind: str, number: int) -> float:
    bench.say(f"{PRODUCERS} producers, {kind} (round {number + 1})")
    with bench.emptied():
        pass
    each = Assignment(
        bench.url, bench.count(MESSAGES, least=10 * PRODUCERS) // PROCESSES, PRODUCERS // PROCESSES, kind
    )
    produced = contender.run_together(MODULE, [replace(each, slot=slot) for slot in range(PROCESSES)])
    return sum(one.messages for one in produced) / max(one.seconds for one in produced)


def _added(seconds: Mapping[str, Sequence[float]]) -> Table:
    def cell(name: str, percent: float) -> tuple[str, str]:
        value, alone = percentile(seconds[name], percent), percentile(seconds[ALONE], percent)
        return milliseconds(value), "" if name == ALONE else milliseconds(value - alone)

    return Table(
        ("business transaction", "p50 ms", "added at p50 ms", "p99 ms", "added at p99 ms", "transactions"),
        tuple((name, *cell(name, 50), *cell(name, 99), str(len(seconds[name]))) for name in CASES),
    )


def _rates(rounds: Sequence[tuple[float, float]]) -> Table:
    return Table(
        ("round", "with NOTIFY, messages/s", "without, messages/s", "ratio"),
        tuple(
            (str(number + 1), f"{notified:,.0f}", f"{silent:,.0f}", f"{notified / silent:.2f}")
            for number, (notified, silent) in enumerate(rounds)
        ),
    )


def _chart(seconds: Mapping[str, Sequence[float]]) -> Chart:
    return Chart(
        NAME,
        "A business transaction with its commit",
        "transaction",
        "ms",
        tuple(CASES),
        tuple(
            Series(f"p{percent}", tuple(percentile(seconds[name], percent) * 1e3 for name in CASES))
            for percent in (50, 99)
        ),
        kind="bar",
    )
