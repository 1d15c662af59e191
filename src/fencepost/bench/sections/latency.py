"""From the commit of a producer to the begin of the publish, in two processes with one clock."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from fencepost.bench import contender
from fencepost.bench.bench import Bench
from fencepost.bench.contender import Assignment
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Chart, Section, Series, Table, at_most, milliseconds, percentile
from fencepost.bench.shipped import STAMPS
from fencepost.bench.tables import PAYLOAD, Connection
from fencepost.bench.trial import SHIPPED_MODULE
from fencepost.client.outbox import Outbox
from fencepost.core.draft import NewMessage

NAME = "latency"
IDLE, POLLED = 300, 100
"""Messages of a case."""
WARM_UP = 10
SHORT_PAUSES = (0.005, 0.030)
POLL_SECONDS = 0.1
# A dispatcher that found something looks again soon: only behind such a pause it polls at its full interval.
LONG_PAUSES = (2.5 * POLL_SECONDS, 4.5 * POLL_SECONDS)
RATE = 1_000
TOGETHER = 5
"""Messages a transaction under load: one producer keeps up a rate that its disk would not let it commit singly."""
LOADED_SECONDS = 10

METHOD = (
    "The producer notes CLOCK_MONOTONIC right after commit() has returned, the publisher when it is called; the "
    "clock is one for all processes of a machine. A message that is published before its producer has heard of "
    f"the commit counts below zero. The first {WARM_UP} messages are not counted.",
    f"Idle: transactions of one message, {IDLE} with random pauses of {SHORT_PAUSES[0] * 1e3:.0f} to "
    f"{SHORT_PAUSES[1] * 1e3:.0f} ms between them, and {POLLED} each with pauses of {LONG_PAUSES[0] * 1e3:.0f} to "
    f"{LONG_PAUSES[1] * 1e3:.0f} ms: then every poll is {POLL_SECONDS * 1e3:.0f} ms after the one before it, in "
    "the case without NOTIFY.",
    f"Under load: {RATE:,} messages a second for {LOADED_SECONDS} s, {TOGETHER} a transaction at even distances.",
    "fsync is on: each of these commits waits for the disk before it is visible to anybody.",
)


@dataclass(frozen=True, slots=True)
class Case:
    """How messages come, and what the dispatcher does to see them.

    Args:
        pauses: the shortest and the longest one between two messages; None for a steady rate.
        settings: of the dispatcher.
    """

    name: str
    messages: int
    pauses: tuple[float, float] | None
    notify: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


def _cases(bench: Bench) -> list[Case]:
    few = WARM_UP + bench.count(POLLED, least=10)
    every = f"{POLL_SECONDS * 1e3:.0f} ms"
    polling = {"notify": False, "poll_interval": POLL_SECONDS}
    return [
        Case("idle, NOTIFY", WARM_UP + bench.count(IDLE, least=20), SHORT_PAUSES),
        Case("idle for long, NOTIFY", few, LONG_PAUSES),
        Case(f"idle for long, polling every {every}", few, LONG_PAUSES, notify=False, settings=polling),
        Case(
            f"{RATE:,} messages/s, NOTIFY",
            WARM_UP + bench.count(RATE * LOADED_SECONDS) // TOGETHER * TOGETHER,
            None,
        ),
    ]


def measure(bench: Bench) -> Section:
    """Measure idle with and without notices, then under load."""
    found = {}
    for case in _cases(bench):
        bench.say(case.name)
        found[case.name] = _latencies(bench, case)
    idle, _, polled, _ = found.values()
    every = POLL_SECONDS * 1e3
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(_table(found),),
        charts=(_chart(found),),
        targets=(
            at_most("idle commit-to-publish with NOTIFY, p50", percentile(idle, 50) * 1e3, 4, "ms"),
            at_most("idle commit-to-publish with NOTIFY, p99", percentile(idle, 99) * 1e3, 15, "ms"),
            at_most(
                f"idle commit-to-publish polling every {every:.0f} ms, p99",
                percentile(polled, 99) * 1e3,
                every + 15,
                "ms",
            ),
        ),
    )


def _latencies(bench: Bench, case: Case) -> list[float]:
    """Return the seconds from commit to publish of each message, without the first few."""
    assignment = Assignment(bench.url, case.messages, kind=STAMPS, settings=case.settings)
    produce = _steadily if case.pauses is None else _now_and_then
    with bench.emptied(), contender.ready(SHIPPED_MODULE, [assignment]) as [dispatcher]:
        dispatcher.go()
        with psycopg.connect(bench.url) as connection:
            committed = produce(case, connection, Outbox(notify=case.notify))
        published = dict(reversed(dispatcher.result().stamps))  # the first publish of each message
    ids = sorted(committed)[WARM_UP:]
    return [(published[row_id] - committed[row_id]) / 1e9 for row_id in ids]


def _now_and_then(case: Case, connection: Connection, outbox: Outbox) -> dict[int, int]:
    committed: dict[int, int] = {}
    for _ in range(case.messages):
        # Pauses are what is measured here: the dispatcher has nothing to do in between.
        time.sleep(random.uniform(*(case.pauses or SHORT_PAUSES)))  # noqa: S311 - not a secret
        receipt = outbox.enqueue(connection, "bench.message", json.loads(PAYLOAD))
        connection.commit()
        committed[receipt.id] = _now()
    return committed


def _steadily(case: Case, connection: Connection, outbox: Outbox) -> dict[int, int]:
    """Commit at even distances; where one comes late, the next ones make up for it."""
    committed: dict[int, int] = {}
    messages = [NewMessage(event_type="bench.message", payload=json.loads(PAYLOAD))] * TOGETHER
    began = time.monotonic()
    for turn in range(case.messages // TOGETHER):
        time.sleep(max(0.0, began + turn * TOGETHER / RATE - time.monotonic()))
        receipts = outbox.enqueue_many(connection, messages)
        connection.commit()
        committed |= dict.fromkeys((receipt.id for receipt in receipts), _now())
    return committed


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _table(found: Mapping[str, Sequence[float]]) -> Table:
    percents = (50, 90, 99, 100)
    return Table(
        ("case", "messages", *(f"p{percent} ms" if percent < 100 else "longest ms" for percent in percents)),
        tuple(
            (name, f"{len(values):,}", *(milliseconds(percentile(values, percent)) for percent in percents))
            for name, values in found.items()
        ),
    )


def _chart(found: Mapping[str, Sequence[float]]) -> Chart:
    return Chart(
        NAME,
        "From commit to publish",
        "case",
        "ms",
        tuple(found),
        tuple(
            Series(f"p{percent}", tuple(percentile(values, percent) * 1e3 for values in found.values()))
            for percent in (50, 99)
        ),
        kind="bar",
    )
