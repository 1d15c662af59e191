"""What an inbox adds to a consumer's transaction, small and large."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg

from fencepost.bench import tables
from fencepost.bench.bench import Bench
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import (
    Chart,
    Section,
    Series,
    Table,
    Target,
    at_most,
    milliseconds,
    percentile,
    ratio,
    short,
)
from fencepost.bench.tables import Connection
from fencepost.client.inbox import Inbox
from fencepost.client.outbox import Outbox

NAME = "inbox"
SMALL, LARGE = 10_000, 2_000_000
MESSAGES = 2_000
WARM_UP = 50
COUNTED = 100
RATIO_LIMIT, STATEMENTS_LIMIT = 1.5, 2
CONSUMER = "bench"
BODY = b"x" * 200
NEW, REPEAT = "a new message", "a repeat"

METHOD = (
    f"Two inboxes of one consumer in a database, {SMALL:,} and {LARGE:,} entries. On one connection each accepts "
    f"{MESSAGES:,} new messages and {MESSAGES:,} repeats of random entries, all four in turns, after {WARM_UP} "
    "rounds that are not counted; a token and a body of 200 bytes are given. Timed is the call of accept, in a "
    "transaction of its own whose BEGIN it sends and whose COMMIT is not timed.",
    "Statements are what pg_stat_statements counts for the whole database while messages are accepted, less "
    "BEGIN, COMMIT and its own reset.",
)

_FILL = """
INSERT INTO {table} (consumer, message_id, fence, digest)
SELECT %(consumer)s, md5(n::text)::uuid::text, 1, sha256(%(body)s) FROM generate_series(1, %(entries)s) AS n
"""


@dataclass(frozen=True, slots=True)
class Filled:
    """An inbox with so many entries, whose ids can be told from their numbers."""

    entries: int
    table: str

    @property
    def inbox(self) -> Inbox:
        return Inbox(CONSUMER, table=self.table)

    @property
    def outbox(self) -> Outbox:
        return Outbox(table=self.table)

    def known(self, dice: random.Random) -> UUID:
        """Return the id of a random entry."""
        number = str(dice.randint(1, self.entries)).encode()
        return UUID(hashlib.md5(number, usedforsecurity=False).hexdigest())


Cases = Mapping[tuple[Filled, str], list[float]]


def measure(bench: Bench) -> Section:
    """Fill two inboxes, and accept into both in turns."""
    filled = (Filled(bench.count(SMALL), "bench_small"), Filled(bench.count(LARGE), "bench_large"))
    with psycopg.connect(bench.url, autocommit=True) as connection:
        for each in filled:
            bench.say(f"filling an inbox with {each.entries:,} entries")
            _fill(connection, each)
    bench.say("new messages and repeats, in both by turns")
    seconds = _timed(bench, filled)
    statements = {case: _statements(bench, filled[-1], case) for case in (NEW, REPEAT)}
    with psycopg.connect(bench.url, autocommit=True) as connection:
        for each in filled:
            _drop(connection, each)
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(_times(seconds), _counts(statements)),
        charts=(_chart(seconds, filled),),
        targets=(*_flatness(seconds, filled), _most(statements)),
    )


def _fill(connection: Connection, filled: Filled) -> None:
    with connection.transaction():
        filled.outbox.migrate(connection)
    connection.execute(
        _FILL.format(table=f"{filled.table}_inbox").encode(),
        {"consumer": CONSUMER, "body": BODY, "entries": filled.entries},
    )
    connection.execute(f"VACUUM (ANALYZE) {filled.table}_inbox".encode())


def _drop(connection: Connection, filled: Filled) -> None:
    """Leave the disk to the sections that follow."""
    connection.execute(f"TRUNCATE {filled.table}_inbox".encode())


def _timed(bench: Bench, filled: Sequence[Filled]) -> Cases:
    dice = random.Random(1)  # noqa: S311 - which entries are repeated, the same in every run
    seconds: dict[tuple[Filled, str], list[float]] = {
        (each, case): [] for each in filled for case in (NEW, REPEAT)
    }
    with psycopg.connect(bench.url) as connection:
        for _ in range(WARM_UP + bench.count(MESSAGES)):
            for (each, case), found in seconds.items():
                message_id = uuid4() if case == NEW else each.known(dice)
                began = time.perf_counter()
                each.inbox.accept(connection, message_id, fence=1, body=BODY)
                found.append(time.perf_counter() - began)
                connection.commit()
    return {key: found[WARM_UP:] for key, found in seconds.items()}


def _statements(bench: Bench, filled: Filled, case: str) -> float:
    """Return how many statements one message takes."""
    dice = random.Random(2)  # noqa: S311 - as above
    with psycopg.connect(bench.url, autocommit=True) as watch, psycopg.connect(bench.url) as connection:
        watch.execute("SELECT pg_stat_statements_reset()")
        for _ in range(COUNTED):
            filled.inbox.accept(connection, uuid4() if case == NEW else filled.known(dice), fence=1, body=BODY)
            connection.commit()
        sent = tables.value(
            watch,
            "SELECT sum(calls) FROM pg_stat_statements WHERE toplevel AND query NOT IN ('BEGIN', 'COMMIT')"
            " AND query NOT LIKE 'SELECT pg_stat_statements_reset%'",
        )
    return float(sent) / COUNTED


def _times(seconds: Cases) -> Table:
    return Table(
        ("accept", "entries", "p50 ms", "p99 ms", "messages"),
        tuple(
            (
                case,
                f"{each.entries:,}",
                milliseconds(percentile(found, 50)),
                milliseconds(percentile(found, 99)),
                f"{len(found):,}",
            )
            for (each, case), found in sorted(seconds.items(), key=lambda item: item[0][1])
        ),
    )


def _counts(statements: Mapping[str, float]) -> Table:
    return Table(
        ("accept", "statements a message"), tuple((case, f"{count:.2f}") for case, count in statements.items())
    )


def _flatness(seconds: Cases, filled: Sequence[Filled]) -> tuple[Target, ...]:
    small, large = filled
    return tuple(
        at_most(
            f"accept of {case} at {short(large.entries)} entries against {short(small.entries)}, median",
            ratio(percentile(seconds[large, case], 50), percentile(seconds[small, case], 50)),
            RATIO_LIMIT,
            "x",
        )
        for case in (NEW, REPEAT)
    )


def _most(statements: Mapping[str, float]) -> Target:
    return at_most("statements that accept adds", max(statements.values()), STATEMENTS_LIMIT)


def _chart(seconds: Cases, filled: Sequence[Filled]) -> Chart:
    return Chart(
        NAME,
        "Accepting a message, median",
        "entries in the inbox",
        "ms",
        tuple(short(each.entries) for each in filled),
        tuple(
            Series(case, tuple(percentile(seconds[each, case], 50) * 1e3 for each in filled))
            for case in (NEW, REPEAT)
        ),
        kind="bar",
    )
