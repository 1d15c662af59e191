"""How fast the dispatcher gets messages to real destinations, beside what each client library does by itself."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fencepost.bench import contender
from fencepost.bench.bench import Bench
from fencepost.bench.clients import target_of
from fencepost.bench.contender import BATCH, WARM_UP, Assignment
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Chart, Section, Series, Table, Target, at_least
from fencepost.bench.shipped import DESTINATION, WHOLE
from fencepost.bench.trial import Trial, measured
from fencepost.errors import FencepostError
from fencepost.publishers.address import scheme_of

NAME = "destinations"
MODULE = "fencepost.bench.clients"
PAYLOAD_BYTES = 1_000
LEAST_ROUNDS, ROUNDS, FULL_ROUNDS = 2, 3, 5
LIMIT = 0.5

MESSAGES: Mapping[str, int] = {"kafka": 20_000, "nats": 20_000, "redis": 20_000, "sqs": 1_000, "sns": 1_000}
"""For each run, so that it takes seconds."""
OTHER_MESSAGES = 10_000

HOW_TO = (
    "No destination was given, so there is nothing here. Give some, each a server that you may fill, as "
    "`--destination nats=nats://127.0.0.1:4222`; the event type is `bench.message`, so that topic, queue or "
    "stream must be there. In a checkout, `make bench-report` starts a server of each kind for it."
)
METHOD = (
    f"Messages of {PAYLOAD_BYTES:,} bytes without ordering keys. In each round, one after another: the client "
    "library's own loop, which reads no database and sends no headers but a message id where the protocol has a "
    f"place for it; a dispatcher with default settings (batch {BATCH}) that drains as many from the outbox into "
    "the destination; and a dispatcher that drains as many into a batch publisher that does nothing, which is "
    "the store's ceiling. Figures are medians of the rounds, parts those of the rounds' parts.",
    f"Each run is one fresh process, on the same event loop, connected, with {WARM_UP} messages delivered before "
    "the clock starts. Everything counts once it is acknowledged; a dispatcher's message once it is finalized.",
    "Servers, and the database where there is one, share the machine with the process that is measured: on few "
    "cores they take its time, and a server that is slow makes all loops look alike.",
)


@dataclass(frozen=True, slots=True)
class Round:
    """Messages a second in one round."""

    client: float
    shipped: float
    ceiling: float

    @property
    def part(self) -> float:
        """What the dispatcher reached of the client's loop, or of the ceiling where that is lower."""
        return self.shipped / min(self.client, self.ceiling)


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of one destination; or why it was not, and then no rounds."""

    name: str
    words: str
    messages: int
    rounds: Sequence[Round]
    failure: str = ""

    def median(self, figure: Callable[[Round], float]) -> float:
        return statistics.median(map(figure, self.rounds)) if self.rounds else 0.0

    @property
    def part(self) -> float:
        return self.median(lambda each: each.part)


def measure(bench: Bench) -> Section:
    """Measure each destination that was given; one that fails is told, and misses its figure."""
    found = [_found(bench, name, url) for name, url in bench.destinations]
    if not found:
        bench.say("left out: give some with --destination NAME=URL")
        return Section(NAME, SECTIONS[NAME], notes=(HOW_TO,))
    reached = [each for each in found if each.rounds]
    return Section(
        NAME,
        SECTIONS[NAME],
        (*METHOD, *(f"{each.name}: {each.words}; {each.messages:,} messages a run." for each in reached)),
        tables=(_table(found), _rounds(reached)) if reached else (_table(found),),
        charts=(_chart(reached),) if reached else (),
        targets=tuple(_target(each) for each in found),
        notes=tuple(f"{each.name} could not be measured: {each.failure}" for each in found if each.failure),
    )


def _found(bench: Bench, name: str, url: str) -> Found:
    scheme = scheme_of(url)
    messages = bench.count(MESSAGES.get(scheme, OTHER_MESSAGES))
    number = max(LEAST_ROUNDS, bench.rounds(FULL_ROUNDS if bench.full else ROUNDS))
    words = target_of(url, PAYLOAD_BYTES)[0].words
    try:
        turns = [f"round {turn} of {number}" for turn in range(1, number + 1)]
        return Found(name, words, messages, [_round(bench, name, url, messages, turn) for turn in turns])
    except FencepostError as error:
        # Its traceback is not for the report; the last line says what it was.
        failure = (str(error).splitlines() or [""])[-1]
        bench.say(f"{name} failed: {failure}")
        return Found(name, words, messages, (), failure)


def _round(bench: Bench, name: str, url: str, messages: int, when: str) -> Round:
    bench.say(f"{name}: the client's own loop ({when})")
    assignment = Assignment("", messages, destination=url, payload_bytes=PAYLOAD_BYTES)
    sent = contender.run(MODULE, assignment)
    bench.say(f"{name}: a dispatcher ({when})")
    shipped = measured(
        bench.url, Trial(name, kind=DESTINATION, payload_bytes=PAYLOAD_BYTES, destination=url), messages
    )
    bench.say(f"{name}: the store's ceiling ({when})")
    ceiling = measured(bench.url, Trial("ceiling", kind=WHOLE, payload_bytes=PAYLOAD_BYTES), messages)
    return Round(sent.messages / sent.seconds, shipped.rate, ceiling.rate)


def _target(found: Found) -> Target:
    name = f"{found.name}: part of its client's own loop, or of the store's ceiling where that is lower"
    return at_least(name, found.part, LIMIT)


COLUMNS: Sequence[tuple[str, Callable[[Round], float]]] = (
    ("client's own loop", lambda each: each.client),
    ("fencepost", lambda each: each.shipped),
    ("the store's ceiling", lambda each: each.ceiling),
)


def _table(found: Sequence[Found]) -> Table:
    return Table(
        ("destination", *(f"{header}, messages/s" for header, _ in COLUMNS), "part of the lower", f"≥ {LIMIT:g}"),
        tuple(
            (
                each.name,
                *(_rate(each.median(figure)) for _, figure in COLUMNS),
                f"{each.part:.2f}" if each.rounds else "-",
                "failed" if each.failure else _target(each).verdict,
            )
            for each in found
        ),
    )


def _rounds(found: Sequence[Found]) -> Table:
    return Table(
        ("destination and round", *(header for header, _ in COLUMNS), "part of the lower"),
        tuple(
            (f"{each.name} {turn}", *(_rate(figure(one)) for _, figure in COLUMNS), f"{one.part:.2f}")
            for each in found
            for turn, one in enumerate(each.rounds, 1)
        ),
    )


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate else "-"


def _chart(found: Sequence[Found]) -> Chart:
    return Chart(
        NAME,
        "To a destination, one process, 1 kB",
        "destination",
        "messages/s",
        tuple(each.name for each in found),
        tuple(Series(header, tuple(each.median(figure) for each in found)) for header, figure in COLUMNS),
        kind="bar",
    )
