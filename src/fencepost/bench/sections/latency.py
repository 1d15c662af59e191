"""From the commit of a producer to the begin of the publish, in two processes with one clock."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
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
MESSAGES = 300
WARM_UP = 20
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.030
POLL_SECONDS = 0.1
RATE = 1_000
TOGETHER = 5
"""Messages a transaction under load: one producer keeps up a rate that its disk would not let it commit singly."""
LOADED_SECONDS = 10

METHOD = (
    "The producer notes CLOCK_MONOTONIC right after commit() has returned, the publisher when it is called; the "
    "clock is one for all processes of a machine. A message that is published before its producer has heard of "
    f"the commit counts below zero. The first {WARM_UP} messages are not counted.",
    f"Idle: {MESSAGES} transactions of one message with random pauses of {SHORTEST_PAUSE * 1e3:.0f} to "
    f"{LONGEST_PAUSE * 1e3:.0f} ms between them, with NOTIFY; and without, at a poll interval of "
    f"{POLL_SECONDS * 1e3:.0f} ms.",
    f"Under load: {RATE:,} messages a second for {LOADED_SECONDS} s, {TOGETHER} a transaction at even distances.",
    "fsync is on: each of these commits waits for the disk before it is visible to anybody.",
)

Produce = Callable[[Bench, Connection, Outbox], dict[int, int]]


def measure(bench: Bench) -> Section:
    """Measure idle with and without notices, then under load."""
    cases: Sequence[tuple[str, bool, Produce, int, Mapping[str, Any]]] = (
        ("idle, NOTIFY", True, _now_and_then, _idle_count(bench), {}),
        (
            f"idle, polling every {POLL_SECONDS * 1e3:.0f} ms",
            False,
            _now_and_then,
            _idle_count(bench),
            {"notify": False, "poll_interval": POLL_SECONDS},
        ),
        (f"{RATE:,} messages/s, NOTIFY", True, _steadily, _loaded_count(bench), {}),
    )
    found = {}
    for name, notify, produce, messages, settings in cases:
        bench.say(name)
        found[name] = _latencies(bench, Outbox(notify=notify), produce, messages, settings)
    idle, polled, _ = found.values()
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
                f"idle commit-to-publish polling every {POLL_SECONDS * 1e3:.0f} ms, p99",
                percentile(polled, 99) * 1e3,
                POLL_SECONDS * 1e3 + 15,
                "ms",
            ),
        ),
    )


def _idle_count(bench: Bench) -> int:
    return WARM_UP + bench.count(MESSAGES, least=30)


def _loaded_count(bench: Bench) -> int:
    return WARM_UP + bench.count(RATE * LOADED_SECONDS) // TOGETHER * TOGETHER


def _latencies(
    bench: Bench, outbox: Outbox, produce: Produce, messages: int, settings: Mapping[str, Any]
) -> list[float]:
    """Return the seconds from commit to publish of each message, without the first few."""
    assignment = Assignment(bench.url, messages, kind=STAMPS, settings=settings)
    with bench.emptied(), contender.ready(SHIPPED_MODULE, [assignment]) as [dispatcher]:
        dispatcher.go()
        with psycopg.connect(bench.url) as connection:
            committed = produce(bench, connection, outbox)
        published = dict(reversed(dispatcher.result().stamps))  # the first publish of each message
    ids = sorted(committed)[WARM_UP:]
    return [(published[row_id] - committed[row_id]) / 1e9 for row_id in ids]


def _now_and_then(bench: Bench, connection: Connection, outbox: Outbox) -> dict[int, int]:
    committed: dict[int, int] = {}
    for _ in range(_idle_count(bench)):
        # Pauses are what is measured here: the dispatcher has nothing to do in between.
        time.sleep(random.uniform(SHORTEST_PAUSE, LONGEST_PAUSE))  # noqa: S311 - not a secret
        receipt = outbox.enqueue(connection, "bench.message", json.loads(PAYLOAD))
        connection.commit()
        committed[receipt.id] = _now()
    return committed


def _steadily(bench: Bench, connection: Connection, outbox: Outbox) -> dict[int, int]:
    """Commit at even distances; where one comes late, the next ones make up for it."""
    committed: dict[int, int] = {}
    messages = [NewMessage(event_type="bench.message", payload=json.loads(PAYLOAD))] * TOGETHER
    began = time.monotonic()
    for turn in range(_loaded_count(bench) // TOGETHER):
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
