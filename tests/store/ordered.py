"""What tests of ordering keys do: claim with every switch, close in a transaction, wait for a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from fencepost import Claimed
from fencepost.core.operation import Operation, run
from fencepost.drivers import driver_for
from fencepost.store import outbox as store
from tests.store.rows import LEASE, OUTBOX, Connection, all_rows, wait_for

T = TypeVar("T")

CATALOG = OUTBOX.catalog
FAR = "9999-12-31 00:00:00+00"


def do(connection: Connection, operation: Operation[T]) -> T:
    """Run an operation in a transaction of its own, or in the caller's."""
    with connection.transaction():
        return run(operation, driver_for(connection).execute)


def take(
    connection: Connection,
    batch: int = 100,
    *,
    queue: str = "default",
    owner: str = "w",
    max_attempts: int = 12,
    **scan: Any,
) -> store.ClaimResult:
    """Make a normal claim, not one of suspects."""
    terms = store.ClaimTerms(owner, LEASE, max_attempts)
    return do(connection, store.claim(CATALOG, terms, queues=[queue], batch=batch, scan=store.Scan(**scan)))


def take_suspects(connection: Connection, batch: int = 1, owner: str = "w") -> list[Claimed]:
    """Claim what may have crashed its worker."""
    terms = store.ClaimTerms(owner, LEASE, 12)
    return do(connection, store.claim_suspects(CATALOG, terms, queues=["default"], batch=batch)).claimed


def done(connection: Connection, held: Claimed | Iterable[Claimed]) -> list[Claimed]:
    """Close as delivered and commit; return what was lost."""
    with connection.transaction():
        return OUTBOX.mark_done(connection, held)


def ids(held: Iterable[Claimed]) -> list[int]:
    """The ids of what was claimed."""
    return [each.id for each in held]


def states(connection: Connection) -> list[str]:
    """The statuses in id order, shortened to their first letters: b, d(one), D(ead), p, P(rocessing)."""
    letters = {"pending": "p", "processing": "P", "blocked": "b", "done": "d", "dead": "D"}
    return [letters[each.status] for each in all_rows(connection)]


def drain(connection: Connection, **options: Any) -> list[int]:
    """Claim and close until nothing comes; return the ids in the order of their closing."""
    closed: list[int] = []
    while True:
        held = take(connection, **options).claimed or take_suspects(connection)
        if not held:
            return closed
        assert done(connection, held) == []
        closed += ids(held)


def later(connection: Connection, row_ids: Sequence[int], interval: str = "1 hour") -> None:
    """Make pending messages due later, as if they had been deferred."""
    connection.execute(
        "UPDATE outbox SET available_at = statement_timestamp() + %s::interval WHERE id = ANY (%s)",
        [interval, list(row_ids)],
    )


def now(connection: Connection, row_ids: Sequence[int]) -> None:
    """Make pending messages due again."""
    later(connection, row_ids, "-1 s")


class Beside:
    """A connection of its own, on which one thing at a time runs beside the test."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url)
        self.pid = self.connection.info.backend_pid
        self._pool = ThreadPoolExecutor(1)

    def begin(self, work: Callable[[Connection], T]) -> Future[T]:
        """Start work; its result comes by the future."""
        return self._pool.submit(work, self.connection)

    def close(self) -> None:
        """Stop what still waits, so that a failing test ends."""
        self.connection.cancel_safe(timeout=5)
        self._pool.shutdown(wait=True)
        self.connection.close()


@contextmanager
def beside(url: str) -> Iterator[Beside]:
    """Another session for as long as the block lasts."""
    made = Beside(url)
    try:
        yield made
    finally:
        made.close()


def until_it_waits(watcher: Connection, other: Beside) -> None:
    """Return once the other session waits for a lock."""
    wait_for(watcher, "EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)", [other.pid])


def together(*jobs: Callable[[], Any]) -> None:
    """Run jobs in threads of their own that begin at once; raise what one of them raised."""
    start = threading.Barrier(len(jobs))

    def one(job: Callable[[], Any]) -> None:
        start.wait(timeout=20)
        job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(one, job) for job in jobs]:
            future.result(timeout=120)
