"""Messages a second, end to end, beside the same claims and finalizes in bare SQL."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from fencepost.bench.bare import AUTOCOMMIT, TEXTBOOK, TRANSACTIONS
from fencepost.bench.bench import Bench
from fencepost.bench.contender import BATCH
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Chart, Section, Series, Table, at_least
from fencepost.bench.shipped import TASKS, WHOLE
from fencepost.bench.trial import BARE_MODULE, Run, Trial, measured

NAME = "throughput"
ROUNDS = 3
MESSAGES = 50_000

BARE = Trial("bare loop", BARE_MODULE, kind=TRANSACTIONS)
TASK = Trial("dispatcher, a task a message", kind=TASKS)
BATCHES = Trial("dispatcher, batch publisher", kind=WHOLE)
IN_TURNS = (BARE, TASK, BATCHES)

OTHER_LOOPS = (
    Trial("bare loop, autocommit", BARE_MODULE, kind=AUTOCOMMIT),
    Trial("bare loop, a textbook's claim", BARE_MODULE, kind=TEXTBOOK),
)
LARGE = Trial("batch publisher, batch 500", kind=WHOLE, batch=500, settings={"concurrency": 1_000})
WORKERS = tuple(
    Trial(f"{trial.name}, {workers} workers", kind=trial.kind, workers=workers)
    for trial in (TASK, BATCHES)
    for workers in (2, 4)
)

METHOD = (
    f"Every run is made of fresh processes on a freshly filled table of 200-byte messages; batch {BATCH} unless "
    "told, dispatcher settings at their defaults, a publisher that does nothing.",
    f"The first three are run in turns, {ROUNDS} times; figures are medians, ratios those of the rounds' ratios.",
    "The bare loop sends the store's own claim and finalize one after the other, each between BEGIN and COMMIT; "
    "its other two variants leave out the explicit transactions, and the second one also claims with the short "
    "statement that one writes by hand, without order, isolation of crash suspects and a limit of attempts.",
    "Workers are processes that start at once; the rate is over all of them.",
)


def measure(bench: Bench) -> Section:
    """Run the three in turns, then everything else once."""
    number = bench.rounds(ROUNDS)
    rounds = [
        [_measured(bench, trial, f"round {turn} of {number}") for trial in IN_TURNS]
        for turn in range(1, number + 1)
    ]
    once = [_measured(bench, trial, "once") for trial in (*OTHER_LOOPS, LARGE, *bench.steps(WORKERS))]
    medians = [_median_run([each[place] for each in rounds]) for place in range(len(IN_TURNS))]
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(_table([*medians, *once], _rate(medians[0])), _rounds(rounds)),
        charts=(_chart([*medians, *once]),),
        targets=(
            at_least("one process with a task a message, part of the bare loop's rate", _ratio(rounds, 1), 0.9),
            at_least("one process with a batch publisher, part of the bare loop's rate", _ratio(rounds, 2), 1.1),
        ),
    )


def _measured(bench: Bench, trial: Trial, when: str) -> Run:
    bench.say(f"{trial.name} ({when})")
    return measured(bench.url, trial, bench.count(MESSAGES) * trial.workers)


def _rate(run: Run) -> float:
    return run.rate


def _median_run(runs: Sequence[Run]) -> Run:
    """Return the run of median speed, so that its other figures are of one run, too."""
    return sorted(runs, key=_rate)[len(runs) // 2]


def _ratio(rounds: Sequence[Sequence[Run]], place: int) -> float:
    return statistics.median(each[place].rate / each[0].rate for each in rounds)


def _table(runs: Sequence[Run], bare: float) -> Table:
    columns: Sequence[tuple[str, Callable[[Run], str]]] = (
        ("messages/s", lambda run: f"{run.rate:,.0f}"),
        ("of the bare loop", lambda run: f"{run.rate / bare:.2f}"),
        ("CPU µs of a message", lambda run: f"{run.cpu_seconds / run.messages * 1e6:.0f}"),
        ("messages", lambda run: f"{run.messages:,}"),
    )
    return Table(
        ("who", *(header for header, _ in columns)),
        tuple((run.contender, *(shown(run) for _, shown in columns)) for run in runs),
    )


def _rounds(rounds: Sequence[Sequence[Run]]) -> Table:
    return Table(
        ("round", *(f"{run.contender}, messages/s" for run in rounds[0])),
        tuple((str(number + 1), *(f"{run.rate:,.0f}" for run in runs)) for number, runs in enumerate(rounds)),
    )


def _chart(runs: Sequence[Run]) -> Chart:
    return Chart(
        NAME,
        "Messages a second, end to end",
        "who drains",
        "messages/s",
        tuple(run.contender for run in runs),
        (Series("rate", tuple(run.rate for run in runs)),),
        kind="bar",
    )
