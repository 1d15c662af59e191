"""Many histories, by Hypothesis: counted, and made short where one disagrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky

from fencepost.store import expand, jobs
from lab.conformance.fake import FakeStore
from lab.conformance.histories import HISTORIES
from lab.conformance.job_work import STEP
from lab.conformance.model_holders import BUSY_MINUTES
from lab.conformance.model_rows import Disagreement
from lab.conformance.run import Run
from lab.conformance.steps import History
from lab.conformance.store import Store


@dataclass
class Report:
    """What a campaign ran, and the disagreement that ended it."""

    seed: int
    stores: list[str]
    histories: int = 0
    steps: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    statements: dict[str, int] = field(default_factory=dict)
    """How often each was sent to the fake store, and so to each of the others."""
    disagreement: str | None = None
    history: History = ()

    def add(self, other: Report) -> None:
        """Count another campaign in, on the same stores."""
        self.histories += other.histories
        self.steps += other.steps
        self.seconds += other.seconds
        self.counts += other.counts
        self.statements = other.statements  # (the store counts on)
        self.disagreement, self.history = other.disagreement, other.history


def campaign(
    stores: Sequence[Store],
    *,
    histories: int,
    seed_number: int,
    shrink: bool = True,
    concerns: str | None = None,
    progress: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Run histories until one disagrees.

    Args:
        stores: the fake one first.
        concerns: run only histories that send this statement.
        shrink: make a history that disagrees short; without, the first one is reported as it is.
    """
    report = Report(seed_number, [store.name for store in stores])
    began = monotonic()
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    @seed(seed_number)
    @settings(
        max_examples=histories,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
    )
    @given(HISTORIES)
    def one(history: History) -> None:
        if concerns is not None and not _sends(stores[0], history, concerns):
            return
        if report.disagreement is None:
            report.histories += 1
            report.steps += len(history)
        try:
            _in_time(stores, history, report)
        except Disagreement as found:
            report.disagreement, report.history = str(found), history
            raise
        report.seconds = monotonic() - began
        progress(report)

    with small_figures():
        with suppress(Disagreement, Flaky):  # (what does not come again is one all the same)
            one()
        if shrink and report.disagreement is not None:
            report.history, report.disagreement = _shorter(stores, report.history, report.disagreement)
    report.seconds = monotonic() - began
    if isinstance(stores[0], FakeStore):
        report.statements = dict(sorted(stores[0].sent.items()))
    return report


TOO_LONG = 10.0
"""Seconds past which a history proves nothing: instants are compared in minutes, and its machine stood still."""

TRIES = 5


def _in_time(stores: Sequence[Store], history: History, report: Report) -> None:
    """Run a history; where it disagrees after it took too long, begin it anew."""
    for left in reversed(range(TRIES)):
        began = monotonic()
        counts: Counter[str] = Counter()
        try:
            Run(stores, counts).history(history)
        except Disagreement:
            if left == 0 or monotonic() - began < TOO_LONG:
                raise
            report.counts[BEGUN_ANEW] += 1
            continue
        if report.disagreement is None:
            report.counts += counts
        return


BEGUN_ANEW = "(begun anew, as the machine stood still)"


def _sends(fake: Store, history: History, statement: str) -> bool:
    if not isinstance(fake, FakeStore):
        raise TypeError("the first store is the fake one")
    Run([fake], Counter()).history(history)
    return statement in fake.used


def _shorter(stores: Sequence[Store], history: History, found: str) -> tuple[History, str]:
    """Leave out step after step, as long as it still disagrees. (Hypothesis keeps their number.)"""
    for place in reversed(range(len(history))):
        fewer = history[:place] + history[place + 1 :]
        try:
            Run(stores, Counter()).history(fewer)
        except Disagreement as still:
            history, found = fewer, str(still)
    return history, found


@contextmanager
def small_figures() -> Iterator[None]:
    """Let the one pause that the library fixes below a second be as long as everything else in a history.

    And what it fixes at hundreds, lanes that one claim walks through, be as small.
    """
    before = expand.BUSY_PAUSE, jobs.LANES_PER_LOOK
    expand.BUSY_PAUSE, jobs.LANES_PER_LOOK = timedelta(minutes=BUSY_MINUTES), STEP
    try:
        yield
    finally:
        expand.BUSY_PAUSE, jobs.LANES_PER_LOOK = before
