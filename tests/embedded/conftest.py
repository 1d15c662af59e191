"""Directories and stopped servers for these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.embedded import PostgresServer, processes
from tests.postgres import SETTINGS, server_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that exists, is empty, and is reachable by the server; no server survives the test in it."""
    with server_directory() as path:
        try:
            yield path
        finally:
            for cluster in path.rglob("cluster"):
                processes.kill(processes.find(processes.cluster_name(cluster)))


@pytest.fixture(scope="session")
def reused_directory() -> Iterator[Path]:
    """The directory behind ``server``: initdb is slow, so these tests share one."""
    with server_directory() as path:
        yield path / "pg"


@pytest.fixture
def server(reused_directory: Path) -> Iterator[PostgresServer]:
    """A server that does not run. Its data is whatever earlier tests left, so use new names in it."""
    server = PostgresServer.create_or_open(reused_directory, settings=SETTINGS)
    try:
        yield server
    finally:
        server.kill()
