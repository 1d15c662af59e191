"""``fencepost bench drain``: the dispatcher beside a bare claim-and-finalize loop, on one server in one run."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from fencepost.bench import contender
from fencepost.bench.contender import Assignment
from fencepost.client.outbox import Outbox
from fencepost.embedded import PostgresServer
from fencepost.embedded.launcher import Setting
from fencepost.errors import FencepostError

BARE, SHIPPED = "bare loop", "dispatcher"
MODULES: Mapping[str, str] = {BARE: "fencepost.bench.bare", SHIPPED: "fencepost.bench.shipped"}
PAYLOAD_BYTES = 200

SERVER_SETTINGS: Mapping[str, Setting] = {
    # PostgreSQL's own default; with logical, updates log whole rows and both sides write 2.4 times as much.
    "wal_level": "replica",
    # No checkpoint and no vacuum during a run: either would hit one run and spare another.
    "checkpoint_timeout": "1h",
    "max_wal_size": "16GB",
    "autovacuum": False,
    "shared_preload_libraries": "pg_stat_statements",
}

METHOD = (
    f"Each run is one fresh process on a freshly filled table: batch {contender.BATCH}, {PAYLOAD_BYTES}-byte "
    "payloads, fsync on, wal_level replica, no checkpoint and no vacuum during a run.",
    "The bare loop sends the store's own claim and finalize statements with psycopg, a commit after each.",
    "Statements are what pg_stat_statements counts for the whole process, BEGIN, COMMIT and its start included.",
    "Heap-only (HOT) updates and dead tuples are what pg_stat_user_tables counts for the outbox after a run.",
    "WAL is the difference of pg_current_wal_lsn() around a run (wal_level logical writes 2.4 times as much).",
    "Speed is the median of the pairs' ratios. CPU is the process's own, its start included.",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One drain, measured."""

    contender: str
    messages: int
    seconds: float
    cpu_seconds: float
    wal_bytes: int
    statements: int
    updates: int
    hot_updates: int
    dead_tuples: int

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that must hold."""

    name: str
    measured: float
    limit: float
    at_least: bool

    @property
    def held(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


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
            Target("speed, as a part of the bare loop's", self.ratio, 0.5, at_least=True),
            Target("WAL bytes per message", self.median(SHIPPED, per_message("wal_bytes")), 450, at_least=False),
            Target("statements per message", self.median(SHIPPED, per_message("statements")), 0.1, at_least=False),
        )


def per_message(figure: str) -> Callable[[Run], float]:
    """Return a function that divides one count of a run by its messages."""
    return lambda run: float(getattr(run, figure)) / run.messages


def measure(messages: int, pairs: int, progress: Callable[[str], None] = lambda text: None) -> Report:
    """Run the pairs, bare and shipped in turns, and return what was measured.

    Raises:
        EmbeddedError: the server cannot be started.
        FencepostError: a contender failed, or did not drain everything.
    """
    with _server() as (url, version):
        runs = []
        for pair in range(pairs):
            for name in (BARE, SHIPPED):
                progress(f"pair {pair + 1} of {pairs}: {name}")
                runs.append(_run(name, url, messages))
        return Report(version, tuple(runs))


@contextmanager
def _server() -> Iterator[tuple[str, str]]:
    """A server that lives for the length of the block, with migrated tables; its address and version."""
    directory = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    try:
        directory.chmod(0o711)  # as root the server runs as another user, who has to pass
        server = PostgresServer.create_or_open(directory / "pg", settings=SERVER_SETTINGS)
        server.start()
        try:
            with psycopg.connect(server.url) as connection:
                Outbox().migrate(connection)
                connection.execute("CREATE EXTENSION pg_stat_statements")
                version = str(connection.info.server_version // 10_000)
            yield server.url, f"PostgreSQL {version}"
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(name: str, url: str, messages: int) -> Run:
    with psycopg.connect(url, autocommit=True) as connection:
        _fill(connection, messages)
        before = _wal_position(connection)
        connection.execute("SELECT pg_stat_statements_reset()")
        drained = contender.run(MODULES[name], Assignment(url, messages))
        statements = _statements(connection)
        wal_bytes = _wal_position(connection) - before
        if drained.messages != messages:
            raise FencepostError(f"{name} finalized {drained.messages} of {messages} messages")
        updates, hot, dead = _table_counts(connection)
    return Run(name, messages, drained.seconds, drained.cpu_seconds, wal_bytes, statements, updates, hot, dead)


def _fill(connection: psycopg.Connection[Any], messages: int) -> None:
    payload = json.dumps({"text": "x" * (PAYLOAD_BYTES - len('{"text": ""}'))})
    connection.execute("TRUNCATE outbox")
    connection.execute(
        "INSERT INTO outbox (event_type, payload) SELECT 'bench.message', %s::json FROM generate_series(1, %s)",
        [payload, messages],
    )
    connection.execute("ANALYZE outbox")
    connection.execute("SELECT pg_stat_reset_single_table_counters('outbox'::regclass)")


def _wal_position(connection: psycopg.Connection[Any]) -> int:
    return int(_value(connection, "SELECT pg_current_wal_lsn() - '0/0'"))


def _statements(connection: psycopg.Connection[Any]) -> int:
    """Count what was executed since the reset, less the reset itself."""
    return int(
        _value(
            connection,
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE toplevel"
            " AND query NOT LIKE 'SELECT pg_stat_statements_reset%%'",
        )
    )


def _table_counts(connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute(
        "SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox'::regclass"
    ).fetchone()
    return row if row is not None else (0, 0, 0)


def _value(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]
