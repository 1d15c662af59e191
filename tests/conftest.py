"""The PostgreSQL servers that every directory of tests shares; other fixtures live beside their tests.

Each pytest-xdist worker starts its own servers, on free ports, when a test first asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fencepost.embedded import PostgresServer
from tests.postgres import fresh_database, pg15_bin_dir, pg18_bin_dir, running_server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where every server is required, a skipped test hides something: the run fails."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped and os.environ.get("FENCEPOST_REQUIRE_SERVERS") == "1":
        terminalreporter.write_line(f"{len(skipped)} skipped tests, and every server is required", red=True)
        terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    """A running PostgreSQL 18."""
    with running_server(pg18_bin_dir()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres15() -> Iterator[PostgresServer]:
    """A running PostgreSQL 15."""
    with running_server(pg15_bin_dir()) as server:
        yield server


@pytest.fixture(scope="session", params=["pg18", "pg15"])
def postgres(request: pytest.FixtureRequest) -> PostgresServer:
    """Each of the supported major versions in turn, running."""
    server: PostgresServer = request.getfixturevalue({"pg18": "postgres18", "pg15": "postgres15"}[request.param])
    return server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database of the test's own, on each major version in turn."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def database18(postgres18: PostgresServer) -> Iterator[str]:
    """The URL of an empty database of the test's own, on PostgreSQL 18 only."""
    with fresh_database(postgres18) as url:
        yield url
