"""Claims and nothing else, timed: the store's own statement in a session with a dispatcher's own settings.

Each claim is finalized, and as many messages are added as it took, so that the backlog keeps its depth; neither is
timed. Run as ``python -m fencepost.bench.claiming``; see `fencepost.bench.contender`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import psycopg

from fencepost.bench import tables
from fencepost.bench.contender import Assignment, Drained, Start, report
from fencepost.core.operation import Rows, Statement, run
from fencepost.core.records import Claimed
from fencepost.drivers.psycopg import PsycopgDriver
from fencepost.runtime.floor import ScanFloor
from fencepost.runtime.link import Limits
from fencepost.store import fenced
from fencepost.store import outbox as store
from fencepost.store.catalog import Catalog

FLOOR = "floor"
"""The kind that claims from a `ScanFloor`, as a dispatcher does; the others look everywhere."""

WARM_UP = 20
"""Claims that are not reported: psycopg prepares after 5, and then PostgreSQL takes 5 to settle on a plan."""

_LEASE = timedelta(seconds=60)


class Claimant:
    """One connection that claims."""

    def __init__(self, connection: tables.Connection, batch: int, *, from_floor: bool = False) -> None:
        self._connection = connection
        self._driver = PsycopgDriver(connection)
        self._catalog = Catalog()
        self._terms = store.ClaimTerms("bench", _LEASE, max_attempts=12)
        self._batch = batch
        self._floor = ScanFloor() if from_floor else None
        self._seconds = 0.0
        self._driver.execute(Limits.below(_LEASE).statement_for(self._catalog, local=False))

    def claim(self) -> tuple[float, list[Claimed]]:
        """Claim once; return the seconds from sending the first statement to the last row, and what came."""
        began = time.monotonic()
        floor = 0 if self._floor is None else self._floor.choose(began)
        self._seconds = 0.0
        result = run(
            store.claim(
                self._catalog, self._terms, queues=["default"], batch=self._batch, scan=store.Scan(floor=floor)
            ),
            self._timed,
        )
        if self._floor is not None:
            self._floor.looked(floor, result.lowest, began, time.monotonic())
        return self._seconds, result.claimed

    def finalize(self, claimed: list[Claimed]) -> None:
        """Write down that all of it was delivered."""
        with self._connection.transaction():
            run(fenced.mark_done(self._catalog, claimed), self._driver.execute)

    def _timed(self, statement: Statement) -> Rows:
        began = time.perf_counter()
        rows = self._driver.execute(statement)
        self._seconds += time.perf_counter() - began
        return rows


def claim_repeatedly(assignment: Assignment, start: Start) -> Drained:
    """Make the claims and report the time and the rows of each, but of the first few."""
    samples: list[tuple[float, int]] = []
    with (
        psycopg.connect(assignment.url, autocommit=True) as claims,
        psycopg.connect(assignment.url, autocommit=True) as additions,
    ):
        claimant = Claimant(claims, assignment.batch, from_floor=assignment.kind == FLOOR)
        add = _adder(additions, assignment.keys)
        start()
        started = time.monotonic()
        for _ in range(WARM_UP + assignment.claims):
            seconds, claimed = claimant.claim()
            samples.append((seconds, len(claimed)))
            claimant.finalize(claimed)
            add(len(claimed))
        rows = sum(count for _, count in samples)
        return Drained(rows, time.monotonic() - started, claims=samples[WARM_UP:])


def _adder(connection: tables.Connection, keys: int) -> Callable[[int], None]:
    def add(messages: int) -> None:
        if messages:
            tables.add(connection, tables.Load(messages, keys))

    return add


if __name__ == "__main__":
    report(claim_repeatedly)
