"""Many histories, by Hypothesis: counted, and made short where one disagrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from fencepost.store import expand
from lab.conformance.fake import FakeStore
from lab.conformance.histories import HISTORIES
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
    disagreement: str | None = None
    history: History = ()


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
            Run(stores, report.counts if report.disagreement is None else Counter()).history(history)
        except Disagreement as found:
            report.disagreement, report.history = str(found), history
            raise
        report.seconds = monotonic() - began
        progress(report)

    with _minutes_only():
        with suppress(Disagreement):
            one()
        if shrink and report.disagreement is not None:
            report.history, report.disagreement = _shorter(stores, report.history, report.disagreement)
    report.seconds = monotonic() - began
    return report


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
def _minutes_only() -> Iterator[None]:
    """Let the one pause that the library fixes below a second be as long as everything else in a history."""
    before, expand.BUSY_PAUSE = expand.BUSY_PAUSE, timedelta(minutes=BUSY_MINUTES)
    try:
        yield
    finally:
        expand.BUSY_PAUSE = before
