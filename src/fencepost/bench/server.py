"""The server that a benchmark starts for itself, and what a reader has to know about it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from fencepost.client.outbox import Outbox
from fencepost.embedded import PostgresServer
from fencepost.embedded.launcher import Setting

SERVER_SETTINGS: Mapping[str, Setting] = {
    # PostgreSQL's own default; with logical, updates log whole rows and both sides write 2.4 times as much.
    "wal_level": "replica",
    # No checkpoint and no vacuum during a run: either would hit one run and spare another.
    "checkpoint_timeout": "1h",
    "max_wal_size": "16GB",
    "autovacuum": False,
    "shared_preload_libraries": "pg_stat_statements",
}

SHOWN_SETTINGS = (
    *("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "work_mem"),
    *("checkpoint_timeout", "max_wal_size", "autovacuum", "max_connections"),
)


@contextmanager
def running_server() -> Iterator[str]:
    """The address of a server that lives for the length of the block, with migrated tables."""
    directory = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    try:
        directory.chmod(0o711)  # as root the server runs as another user, who has to pass
        server = PostgresServer.create_or_open(directory / "pg", settings=SERVER_SETTINGS)
        server.start()
        try:
            with psycopg.connect(server.url) as connection:
                Outbox().migrate(connection)
                connection.execute("CREATE EXTENSION pg_stat_statements")
            yield server.url
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def major_version(url: str) -> str:
    """Return the server's name and major version."""
    with psycopg.connect(url) as connection:
        return f"PostgreSQL {connection.info.server_version // 10_000}"


def described(url: str) -> list[tuple[str, str]]:
    """Return the server's version and the settings that its figures depend on."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)", [list(SHOWN_SETTINGS)]
        ).fetchall()
        found: dict[str, str] = dict(rows)
        version = connection.info.parameter_status("server_version") or "unknown"
    settings = ", ".join(f"`{name} = {found[name]}`" for name in SHOWN_SETTINGS)
    return [("PostgreSQL", version), ("settings", settings)]
