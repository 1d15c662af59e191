"""C31: everything at once on the same rows; the database never has to break a deadlock between us."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from fencepost import Claimed, NewMessage, Outbox
from fencepost.drivers import driver_for
from tests.store.ordered import drain
from tests.store.rows import FINALIZES, OUTBOX, Connection, Write, add, all_rows, claim, expire, value

IMMEDIATE: list[Write] = [
    *(FINALIZES[name] for name in ("mark_done", "mark_dead", "release")),
    lambda db, held: OUTBOX.reschedule(db, held, delay=timedelta(0), error="again"),
]
"""Finalizes after which a message may be claimed again at once."""

Job = Callable[[Connection, random.Random], None]

ROWS = 50
SECONDS = 3.0
PATIENCE = 30.0
ENOUGH = 10
LEASE = timedelta(milliseconds=20)


class Crowd:
    """Threads that hammer one outbox until the time is over, and what went wrong in them."""

    def __init__(self, url: str, seed: int, seconds: float) -> None:
        self._url = url
        self._seed = seed
        self._until = time.monotonic() + seconds
        self._failures: list[tuple[str, BaseException]] = []
        self._rounds: list[int] = []
        """Of each job so far."""

    def run(self, *jobs: Job) -> None:
        self._rounds = [0] * len(jobs)
        threads = [threading.Thread(target=self._repeat, args=[job, n]) for n, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not self._failures, f"seed {self._seed}: {self._failures}"
        # It only counts if they all got somewhere.
        assert min(self._rounds) > ENOUGH, f"seed {self._seed}: {self._rounds}"

    def _goes_on(self) -> bool:
        """On a slow machine, and through two sessions, it takes longer until all have got somewhere."""
        now = time.monotonic()
        return now < self._until or (min(self._rounds) <= ENOUGH and now < self._until + PATIENCE)

    def _repeat(self, job: Job, n: int) -> None:
        draw = random.Random(f"{self._seed} {n}")  # noqa: S311 - repeatable, not secret
        try:
            with psycopg.connect(self._url) as connection:
                connection.execute("SET deadlock_timeout = '50ms'; SET statement_timeout = '10s'")
                connection.commit()
                while not self._failures and self._goes_on():
                    job(connection, draw)
                    connection.commit()
                    self._rounds[n] += 1
        except BaseException as error:
            self._failures.append((job.__name__, error))


def dispatcher_session(connection: Connection) -> None:
    """Begin a transaction as a dispatcher does."""
    limits = dict.fromkeys(("statement_ms", "lock_ms", "idle_ms", "transaction_ms"), "10000")
    driver_for(connection).execute(OUTBOX.catalog.statement("session", {**limits, "local": True}))


def test_finalize_heartbeat_reap_purge_operators_and_producers_on_the_same_rows(db: Connection, url: str) -> None:
    seed = secrets.randbelow(10**9)
    add(db, ROWS)
    beating: list[Claimed] = []

    def worker() -> Job:
        outbox, held = Outbox(), list[Claimed]()

        def works(connection: Connection, draw: random.Random) -> None:
            """Claim, and finalize some of what is held or was held before, in any order."""
            held.extend(
                outbox.claim(connection, owner="w", batch=draw.randint(1, 30), lease=LEASE, max_attempts=8)
            )
            connection.commit()
            del held[:-ROWS]
            beating[:] = held
            rows = draw.sample(held, draw.randint(0, len(held)))
            draw.choice(IMMEDIATE)(connection, rows)

        return works

    def heartbeats(connection: Connection, draw: random.Random) -> None:
        OUTBOX.heartbeat(connection, draw.sample(rows := list(beating), len(rows) // 2), lease=LEASE)

    def reaps_and_revives(connection: Connection, draw: random.Random) -> None:
        OUTBOX.reap(connection, max_attempts=2)
        connection.commit()
        dead = [each.message.id for each in OUTBOX.list_dead(connection)]
        draw.shuffle(dead)
        OUTBOX.retry_dead(connection, dead, actor="a")
        connection.commit()
        OUTBOX.skip_dead(connection, dead[:1], actor="b")

    def produces_and_purges(connection: Connection, draw: random.Random) -> None:
        OUTBOX.purge(connection, older_than=timedelta(0), limit=draw.randint(1, ROWS))
        connection.commit()
        keys = sorted(draw.sample(range(ROWS), 10))
        messages = [NewMessage(event_type="e", payload=None, dedupe_key=f"{key}") for key in keys]
        OUTBOX.enqueue_many(connection, messages)

    jobs = (worker(), worker(), worker(), heartbeats, reaps_and_revives, produces_and_purges)
    Crowd(url, seed, SECONDS).run(*jobs)
    assert value(db, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0


def test_claims_closings_and_skips_of_one_key_at_once(db: Connection, url: str) -> None:
    """Its order holds as well: whatever is delivered was first in its key when it was."""
    seed = secrets.randbelow(10**9)
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = value(db, deadlocks)

    def worker() -> Job:
        outbox, held = Outbox(), list[Claimed]()

        def works(connection: Connection, draw: random.Random) -> None:
            """Claim, and finalize some of what is held or was held before, in any order."""
            held.extend(
                outbox.claim(connection, owner="w", batch=draw.randint(1, 20), lease=LEASE, max_attempts=8)
            )
            connection.commit()
            del held[:-ROWS]
            rows = held[-draw.randint(1, 20) :]
            draw.choice([OUTBOX.mark_done, *IMMEDIATE])(
                connection, list({each.id: each for each in rows}.values())
            )

        return works

    def operates(connection: Connection, draw: random.Random) -> None:
        OUTBOX.reap(connection, max_attempts=3)
        connection.commit()
        dead = [each.message.id for each in OUTBOX.list_dead(connection)]
        draw.shuffle(dead)
        OUTBOX.skip_dead(connection, dead[:3], actor="a")
        connection.commit()
        OUTBOX.retry_dead(connection, dead[3:], actor="b")

    def produces(connection: Connection, draw: random.Random) -> None:
        if value(connection, "SELECT count(*) FROM outbox WHERE done_at IS NULL") < ROWS:
            keys = [draw.choice(["hot", "hot", "other", None]) for _ in range(20)]
            OUTBOX.enqueue_many(
                connection, [NewMessage(event_type="e", payload=None, ordering_key=key) for key in keys]
            )

    delivered = "FROM outbox WHERE outcome = 'delivered' AND ordering_key IS NOT NULL"
    for more in range(5):  # a slow machine gets little done in one go
        Crowd(url, seed + more, SECONDS).run(worker(), worker(), worker(), operates, produces)
        if value(db, f"SELECT count(*) {delivered}") > 50:
            break
    assert value(db, deadlocks) == before
    assert value(db, f"SELECT count(*) {delivered}") > 50, f"seed {seed}"
    # One closing of a key has the lock before the statement begins that writes when it was.
    late = f"SELECT done_at < lag(done_at) OVER (PARTITION BY ordering_key ORDER BY id) AS late {delivered}"
    assert value(db, f"SELECT count(*) FROM ({late}) AS pair WHERE late") == 0, f"seed {seed}"
    # Nothing sleeps.
    expire(db)
    dead = [each.message.id for each in OUTBOX.list_dead(db, limit=1_000)]
    with db.transaction():
        OUTBOX.skip_dead(db, dead, actor="a")
    drain(db, max_attempts=1_000)
    assert {each.status for each in all_rows(db)} == {"done"}, f"seed {seed}"


def test_the_same_finalize_at_once_in_any_order(db: Connection, url: str) -> None:
    """A worker whose answer was lost repeats its finalize while the first one may still be running.

    A finalize locks in the order of its scan. The primary key's index gives id order, and is what the planner
    takes for any table of a real size; a dispatcher's session rules the other scans out (session.sql).
    """
    seed = secrets.randbelow(10**9)
    add(db, ROWS)
    held = claim(db)

    def finalizes(connection: Connection, draw: random.Random) -> None:
        dispatcher_session(connection)
        rows = list(held)
        draw.shuffle(rows)
        assert draw.choice(IMMEDIATE)(connection, rows) == []
        connection.rollback()

    def moves_the_rows_about(connection: Connection, draw: random.Random) -> None:
        assert OUTBOX.heartbeat(connection, draw.sample(held, 10)) == []

    Crowd(url, seed, SECONDS / 2).run(finalizes, finalizes, finalizes, moves_the_rows_about)
    assert {each.status for each in all_rows(db)} == {"processing"}


def test_batches_that_name_their_dedupe_keys_in_one_order(db: Connection, url: str) -> None:
    seed = secrets.randbelow(10**9)

    def produces(connection: Connection, draw: random.Random) -> None:
        keys = sorted(draw.sample(range(ROWS), ROWS // 2))
        receipts = OUTBOX.enqueue_many(
            connection, [NewMessage(event_type="e", payload=key, dedupe_key=f"{key:03}") for key in keys]
        )
        assert len(receipts) == len(keys)
        connection.rollback()

    Crowd(url, seed, SECONDS / 3).run(produces, produces, produces)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_ids_of_a_batch_follow_its_order_whatever_its_keys(db: Connection, reverse: bool) -> None:
    messages = [NewMessage(event_type="e", payload=n, dedupe_key=f"k{n:03}") for n in range(30)]
    if reverse:
        messages.reverse()
    with db.transaction():
        receipts = OUTBOX.enqueue_many(db, messages)
    ids = [each.id for each in receipts]
    assert ids == sorted(ids)
    stored = db.execute("SELECT dedupe_key FROM outbox ORDER BY id").fetchall()
    assert [key for (key,) in stored] == [each.dedupe_key for each in messages]
