"""A hot key whose head is dead must not stand in front of the others."""

from __future__ import annotations

import psycopg

from fencepost.bench import contender, tables
from fencepost.bench.bench import Bench
from fencepost.bench.contender import Assignment
from fencepost.bench.contents import SECTIONS
from fencepost.bench.figures import Section, Table, at_most
from fencepost.bench.shipped import TASKS
from fencepost.bench.tables import Load
from fencepost.bench.trial import SHIPPED_MODULE

NAME = "dead-key"
FOLLOWERS = 100_000
FREE = 1_000
LIMIT_SECONDS = 6.0

METHOD = (
    "A dead message, behind it the followers of its key, all of them due, and after them one message of each free "
    "key. Timed from the start of one dispatcher (connected already) until every free message is finalized; "
    "how many followers it had parked by then is what stands in the table afterwards.",
)


def measure(bench: Bench) -> Section:
    """Measure the two alone, then both together."""
    followers, free = bench.count(FOLLOWERS), bench.count(FREE)
    rows, seconds = [], 0.0
    for behind in (0, followers):
        bench.say(f"{free:,} free keys behind {behind:,} followers of a dead message")
        with bench.emptied() as connection:
            if behind:
                tables.add_dead_head(connection, "hot-0")
                tables.add(connection, Load(behind, keys=1, prefix="hot-"))
            tables.add(connection, Load(free, keys=free, prefix="free-"))
            tables.settle(connection)
        seconds = contender.run(SHIPPED_MODULE, Assignment(bench.url, free, kind=TASKS)).seconds
        rows.append((f"{behind:,}", f"{free:,}", f"{seconds:.2f}", f"{_parked(bench):,}"))
    name = f"{free:,} free keys behind {followers:,} followers of a dead message, all delivered"
    return Section(
        NAME,
        SECTIONS[NAME],
        METHOD,
        tables=(Table(("followers", "free keys", "seconds", "parked at the end"), tuple(rows)),),
        targets=(at_most(name, seconds, LIMIT_SECONDS, "s"),),
    )


def _parked(bench: Bench) -> int:
    with psycopg.connect(bench.url) as connection:
        return int(tables.value(connection, "SELECT count(*) FROM outbox WHERE status = 'blocked'"))
