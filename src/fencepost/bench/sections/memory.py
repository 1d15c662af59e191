"""Whether a dispatcher's memory stays flat while messages go through it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from fencepost.bench import contender, tables
from fencepost.bench.bench import Bench
from fencepost.bench.contender import Assignment, Contender
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Chart, Section, Series, Table, at_most, ratio
from fencepost.bench.shipped import TASKS
from fencepost.bench.tables import Load
from fencepost.bench.tally import Tally
from fencepost.bench.trial import SHIPPED_MODULE

NAME = "memory"
WARM_UP = 50_000
MESSAGES = 500_000
EVERY = 25_000
LOOK_SECONDS = 0.01

METHOD = (
    f"One dispatcher with a task a message; messages are added so that {EVERY:,} to {2 * EVERY:,} are pending. "
    f"VmRSS of its process every {EVERY:,} delivered messages, after {WARM_UP:,}, over {MESSAGES:,}.",
)


def measure(bench: Bench) -> Section:
    """Keep one dispatcher busy and look at its process."""
    every = bench.count(EVERY)
    warm_up, messages = every * (WARM_UP // EVERY), every * (MESSAGES // EVERY)
    samples = _sampled(bench, warm_up, messages, every)
    middle = statistics.median(rss for _, rss in samples)
    deviation = max(abs(ratio(rss, middle) - 1) for _, rss in samples)
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(_table(samples, middle, deviation),),
        charts=(_chart(samples),),
        targets=(
            at_most(
                f"memory of a dispatcher over {messages:,} messages, largest deviation from its median",
                deviation * 100,
                10,
                "%",
            ),
        ),
    )


def _sampled(bench: Bench, warm_up: int, messages: int, every: int) -> list[tuple[int, int]]:
    """Return pairs of delivered messages and bytes of memory."""
    path = bench.directory / "memory"
    tally = Tally.create(path)
    total = warm_up + messages
    assignment = Assignment(bench.url, total, kind=TASKS, tally=str(path))
    samples = []
    with bench.emptied() as connection, contender.ready(SHIPPED_MODULE, [assignment]) as [dispatcher]:
        added = 0
        dispatcher.go()
        for goal in range(every, total + 1, every):
            wanted = min(total, goal + every)
            tables.add(connection, Load(wanted - added))
            added = wanted
            delivered = _wait_for(goal, tally, dispatcher)
            if goal == total:
                break  # it ends here, and has no memory any more
            if goal >= warm_up:
                if (goal - warm_up) % (4 * every) == 0:
                    bench.say(f"{goal:,} of {total:,} messages")
                samples.append((delivered, resident(dispatcher.pid)))
        dispatcher.result()
    return samples


def _wait_for(goal: int, tally: Tally, dispatcher: Contender) -> int:
    # The tally is memory that processes share: there is nothing to be woken by.
    while (delivered := tally.total()) < goal and dispatcher.is_running:
        time.sleep(LOOK_SECONDS)
    return delivered


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            return int(value.split()[0]) * 1_024
    return 0


def _table(samples: Sequence[tuple[int, int]], middle: float, deviation: float) -> Table:
    sizes = [rss for _, rss in samples]
    return Table(
        ("samples", "first MiB", "last MiB", "least MiB", "median MiB", "most MiB", "largest deviation"),
        (
            (
                str(len(samples)),
                *(_mebibytes(size) for size in (sizes[0], sizes[-1], min(sizes), middle, max(sizes))),
                f"{deviation:.1%}",
            ),
        ),
    )


def _chart(samples: Sequence[tuple[int, int]]) -> Chart:
    return Chart(
        NAME,
        "Resident memory of one dispatcher",
        "delivered messages",
        "MiB",
        tuple(f"{delivered / 1_000:.0f} k" for delivered, _ in samples),
        (Series("VmRSS", tuple(rss / 2**20 for _, rss in samples)),),
    )


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:.1f}"
