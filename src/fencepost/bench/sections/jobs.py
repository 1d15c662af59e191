"""Jobs: drained beside the same claims and finalizes in bare SQL, started after a commit, and kept alive."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from fencepost.bench import contender, job_tables
from fencepost.bench.bench import Bench
from fencepost.bench.contender import BATCH, Assignment, Drained
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Chart, Section, Series, Table, at_least, at_most, milliseconds, percentile
from fencepost.bench.job_tables import TASK, THREADED_TASK
from fencepost.bench.sections.latency import LONG_PAUSES, POLL_SECONDS, SHORT_PAUSES, WARM_UP
from fencepost.bench.shipped_jobs import LEASE, SLEEP
from fencepost.bench.tables import PAYLOAD, Counted, Meter
from fencepost.client.jobs import Jobs
from fencepost.errors import FencepostError

NAME = "jobs"
BARE_MODULE, SHIPPED_MODULE = "fencepost.bench.bare_jobs", "fencepost.bench.shipped_jobs"

ROUNDS = 3
JOBS = 20_000
CONCURRENCY = 100

IDLE, POLLED = 300, 100
"""Jobs of a case of latency."""

BEATING = 1_000
"""Jobs that run at once, and beat."""
RUN_SECONDS = 6.0
SHORT_LEASE, LONG_LEASE = 3.0, 60.0

METHOD = (
    "Drain: every run is a fresh process on a freshly filled table of jobs with 200 bytes of arguments. The bare "
    f"loop sends the store's own claim and finalize with psycopg, {BATCH} jobs each, a commit after each. The "
    f"worker has a concurrency of {CONCURRENCY} and handlers that do nothing: async ones, or plain ones in "
    f"threads. They are run in turns, {ROUNDS} times; figures are medians, ratios those of the rounds' ratios.",
    "Start: the producer notes CLOCK_MONOTONIC right after commit() has returned, the async handler when it is "
    f"called. One job a transaction, with random pauses of {SHORT_PAUSES[0] * 1e3:.0f} to "
    f"{SHORT_PAUSES[1] * 1e3:.0f} ms with NOTIFY, and of {LONG_PAUSES[0] * 1e3:.0f} to "
    f"{LONG_PAUSES[1] * 1e3:.0f} ms with polling every {POLL_SECONDS * 1e3:.0f} ms and without NOTIFY. The first "
    f"{WARM_UP} jobs are not counted.",
    f"Heartbeats: {BEATING:,} async handlers sleep at once for {RUN_SECONDS:g} s, under leases of "
    f"{SHORT_LEASE:g} s, a beat of each job every {SHORT_LEASE / 3:g} s, and under leases of {LONG_LEASE:g} s, "
    "which need none in that time. What a beat costs is the difference of the two, by the number of beats.",
)


@dataclass(frozen=True, slots=True)
class _Contender:
    name: str
    module: str
    task: str = TASK
    settings: Mapping[str, Any] = field(default_factory=dict)


_AT_ONCE = {"concurrency": CONCURRENCY}
IN_TURNS = (
    _Contender("bare loop", BARE_MODULE),
    _Contender("worker, async handlers", SHIPPED_MODULE, settings=_AT_ONCE),
    _Contender("worker, handlers in threads", SHIPPED_MODULE, THREADED_TASK, _AT_ONCE),
)


def measure(bench: Bench) -> Section:
    """Drain in turns, then the latencies, then what heartbeats cost."""
    number, jobs = bench.rounds(ROUNDS), bench.count(JOBS)
    rounds = []
    for turn in range(1, number + 1):
        bench.say(f"drain, round {turn} of {number}")
        rounds.append([_drained(bench, each, jobs) for each in IN_TURNS])
    latencies = _latencies(bench)
    by_notice, _ = latencies.values()
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(_drains(rounds, jobs), _starts(latencies), _beats(bench)),
        charts=(_chart(rounds, jobs),),
        targets=(
            at_least("jobs with async handlers, part of the bare loop's rate", _ratio(rounds, 1), 0.5),
            at_least("jobs with handlers in threads, part of the bare loop's rate", _ratio(rounds, 2), 0.5),
            at_most("idle commit-to-start of a job with NOTIFY, p99", percentile(by_notice, 99) * 1e3, 30, "ms"),
        ),
    )


# --- drain -----------------------------------------------------------------------------------------------


def _drained(bench: Bench, who: _Contender, jobs: int) -> Drained:
    with psycopg.connect(bench.url, autocommit=True) as connection:
        job_tables.fill(connection, jobs, who.task)
    drained = contender.run(who.module, Assignment(bench.url, jobs, settings=who.settings))
    if drained.messages != jobs:
        raise FencepostError(f"{who.name} finished {drained.messages} of {jobs} jobs")
    return drained


def _ratio(rounds: Sequence[Sequence[Drained]], place: int) -> float:
    return statistics.median(each[0].seconds / each[place].seconds for each in rounds)


def _rate(rounds: Sequence[Sequence[Drained]], place: int, jobs: int) -> float:
    return statistics.median(jobs / each[place].seconds for each in rounds)


def _drains(rounds: Sequence[Sequence[Drained]], jobs: int) -> Table:
    return Table(
        ("who", "jobs/s", "of the bare loop", "CPU µs of a job", "jobs", "rounds, jobs/s"),
        tuple(
            (
                who.name,
                f"{_rate(rounds, place, jobs):,.0f}",
                f"{_ratio(rounds, place):.2f}",
                f"{statistics.median(each[place].cpu_seconds for each in rounds) / jobs * 1e6:.0f}",
                f"{jobs:,}",
                ", ".join(f"{jobs / each[place].seconds:,.0f}" for each in rounds),
            )
            for place, who in enumerate(IN_TURNS)
        ),
    )


def _chart(rounds: Sequence[Sequence[Drained]], jobs: int) -> Chart:
    return Chart(
        NAME,
        "Jobs a second, from claim to finalize",
        "who drains",
        "jobs/s",
        tuple(who.name for who in IN_TURNS),
        (Series("rate", tuple(_rate(rounds, place, jobs) for place in range(len(IN_TURNS)))),),
        kind="bar",
    )


# --- latency ---------------------------------------------------------------------------------------------


def _latencies(bench: Bench) -> dict[str, list[float]]:
    every = f"{POLL_SECONDS * 1e3:.0f} ms"
    polling = {"notify": False, "poll_interval": POLL_SECONDS}
    found = {}
    for name, jobs, pauses, settings in (
        ("idle, NOTIFY", WARM_UP + bench.count(IDLE, least=20), SHORT_PAUSES, {}),
        (f"idle, polling every {every}", WARM_UP + bench.count(POLLED, least=10), LONG_PAUSES, polling),
    ):
        bench.say(name)
        found[name] = _started(bench, jobs, pauses, settings)
    return found


def _started(bench: Bench, jobs: int, pauses: tuple[float, float], settings: Mapping[str, Any]) -> list[float]:
    """Return the seconds from commit to start of each job, without the first few."""
    client = Jobs(notify=settings.get("notify", True))
    client.declare(TASK)
    with psycopg.connect(bench.url, autocommit=True) as connection:
        job_tables.fill(connection, 0, TASK)
    committed: dict[int, int] = {}
    with contender.ready(SHIPPED_MODULE, [Assignment(bench.url, jobs, settings=settings)]) as [worker]:
        worker.go()
        with psycopg.connect(bench.url) as connection:
            for _ in range(jobs):
                # Pauses are what is measured here: the worker has nothing to do in between.
                time.sleep(random.uniform(*pauses))  # noqa: S311 - not a secret
                receipt = client.enqueue(connection, TASK, json.loads(PAYLOAD))
                connection.commit()
                committed[receipt.id] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        started = dict(reversed(worker.result().stamps))  # the first start of each job
    return [(started[row_id] - committed[row_id]) / 1e9 for row_id in sorted(committed)[WARM_UP:]]


def _starts(found: Mapping[str, Sequence[float]]) -> Table:
    percents = (50, 90, 99, 100)
    return Table(
        ("start", "jobs", *(f"p{percent} ms" if percent < 100 else "longest ms" for percent in percents)),
        tuple(
            (name, f"{len(values):,}", *(milliseconds(percentile(values, percent)) for percent in percents))
            for name, values in found.items()
        ),
    )


# --- heartbeats ------------------------------------------------------------------------------------------


def _beats(bench: Bench) -> Table:
    jobs = bench.count(BEATING)
    found = {}
    for lease in (LONG_LEASE, SHORT_LEASE):
        bench.say(f"heartbeats, leases of {lease:g} s")
        found[lease] = _kept_alive(bench, jobs, lease)
    (quiet, quiet_cpu), (beating, beating_cpu) = found.values()
    beats = max(1, beating.updates - quiet.updates)
    return Table(
        ("leases", "jobs at once", "beats of a job", "WAL bytes", "statements", "HOT of them", "CPU µs"),
        (
            (
                f"{SHORT_LEASE:g} s, a beat",
                f"{jobs:,}",
                f"{beats / jobs:.1f}",
                f"{(beating.wal_bytes - quiet.wal_bytes) / beats:.0f}",
                f"{(beating.statements - quiet.statements) / beats:.4f}",
                f"{(beating.hot_updates - quiet.hot_updates) / beats:.2f}",
                f"{(beating_cpu - quiet_cpu) / beats * 1e6:.0f}",
            ),
        ),
    )


def _kept_alive(bench: Bench, jobs: int, lease: float) -> tuple[Counted, float]:
    settings = {"concurrency": jobs, LEASE: lease, SLEEP: RUN_SECONDS}
    with psycopg.connect(bench.url, autocommit=True) as connection:
        job_tables.fill(connection, jobs, TASK)
        meter = Meter(connection, "outbox_job")
        drained = contender.run(SHIPPED_MODULE, Assignment(bench.url, jobs, settings=settings))
        return meter.read(), drained.cpu_seconds
