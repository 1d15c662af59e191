"""One key that holds everything: how fast is its order, beside no order at all?"""

from __future__ import annotations

import statistics

from fencepost.bench.bench import Bench
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Section, Table, at_least
from fencepost.bench.shipped import WHOLE
from fencepost.bench.trial import Trial, measured

NAME = "hot-key"
MESSAGES = 100_000
ROUNDS = 2
FREE = Trial("unordered", kind=WHOLE)
HOT = Trial("one hot key", kind=WHOLE, keys=1)

METHOD = (
    f"{ROUNDS} rounds; in each, one dispatcher with a batch publisher drains as many unordered messages and then "
    "as many of one key. The ratio is the median of the rounds.",
)


def measure(bench: Bench) -> Section:
    """Drain both in turns."""
    messages = bench.count(MESSAGES)
    rows, ratios = [], []
    for number in range(1, bench.rounds(ROUNDS) + 1):
        runs = []
        for trial in (FREE, HOT):
            bench.say(f"{trial.name}, {messages:,} messages (round {number})")
            runs.append(measured(bench.url, trial, messages))
        free, hot = runs
        ratios.append(hot.rate / free.rate)
        rows.append((str(number), f"{messages:,}", f"{free.rate:,.0f}", f"{hot.rate:,.0f}", f"{ratios[-1]:.2f}"))
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(Table(("round", "messages", "unordered/s", "one key/s", "ratio"), tuple(rows)),),
        targets=(at_least("one hot key, part of the unordered rate", statistics.median(ratios), 0.4),),
    )
