"""``fencepost bench drain``: the dispatcher beside a bare claim-and-finalize loop, on one server in one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fencepost.bench import contender
from fencepost.bench.bare import TRANSACTIONS
from fencepost.bench.figures import Target
from fencepost.bench.server import major_version, running_server
from fencepost.bench.tables import PAYLOAD_BYTES
from fencepost.bench.trial import BARE_MODULE, Run, Trial, measured

BARE, SHIPPED = "bare loop", "dispatcher"
TRIALS: Mapping[str, Trial] = {
    BARE: Trial(BARE, BARE_MODULE, kind=TRANSACTIONS),
    SHIPPED: Trial(SHIPPED),
}

METHOD = (
    f"Each run is one fresh process on a freshly filled table: batch {contender.BATCH}, {PAYLOAD_BYTES}-byte "
    "payloads, fsync on, wal_level replica, no checkpoint and no vacuum during a run.",
    "The bare loop sends the store's own claim and finalize statements with psycopg, a commit after each.",
    "Statements are what pg_stat_statements counts for the whole process, BEGIN, COMMIT and its start included.",
    "Heap-only (HOT) updates and dead tuples are what pg_stat_user_tables counts for the outbox after a run.",
    "WAL is the difference of pg_current_wal_insert_lsn() around a run; wal_level logical writes 2.4 times as "
    "much.",
    "Speed is the median of the pairs' ratios. CPU is the process's own, from the start of the drain.",
)


@dataclass(frozen=True, slots=True)
class Report:
    """Every run in its order, bare and shipped in turns."""

    server: str
    runs: tuple[Run, ...]

    def of(self, name: str) -> list[Run]:
        """Return the runs of one contender."""
        return [run for run in self.runs if run.contender == name]

    def median(self, name: str, figure: Callable[[Run], float]) -> float:
        """Return the median of a figure over a contender's runs."""
        return statistics.median(figure(run) for run in self.of(name))

    @property
    def ratio(self) -> float:
        """The median over the pairs of the dispatcher's speed over the bare loop's."""
        pairs = zip(self.of(BARE), self.of(SHIPPED), strict=True)
        return statistics.median(shipped.rate / bare.rate for bare, shipped in pairs)

    @property
    def targets(self) -> tuple[Target, ...]:
        """What must hold of the dispatcher."""
        return (
            Target("speed, as a part of the bare loop's", self.ratio, 0.9, at_least=True),
            Target("WAL bytes per message", self.median(SHIPPED, per_message("wal_bytes")), 450, at_least=False),
            Target("statements per message", self.median(SHIPPED, per_message("statements")), 0.1, at_least=False),
        )


def per_message(figure: str) -> Callable[[Run], float]:
    """Return a function that divides one count of a run by its messages."""
    return lambda run: run.per_message(figure)


def measure(messages: int, pairs: int, progress: Callable[[str], None] = lambda text: None) -> Report:
    """Run the pairs, bare and shipped in turns, and return what was measured.

    Raises:
        EmbeddedError: the server cannot be started.
        FencepostError: a contender failed, or did not drain everything.
    """
    with running_server() as url:
        runs = []
        for pair in range(pairs):
            for name, trial in TRIALS.items():
                progress(f"pair {pair + 1} of {pairs}: {name}")
                runs.append(measured(url, trial, messages))
        return Report(major_version(url), tuple(runs))
