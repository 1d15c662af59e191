"""The PostgreSQL servers that every directory of tests shares; other fixtures live beside their tests.

Each pytest-xdist worker starts its own servers, on free ports, when a test first asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fencepost.embedded import PostgresServer
from tests.postgres import fresh_database, pg15_bin_dir, pg18_bin_dir, running_server, shared_server
from tests.servers import REQUIRE


def _hidden(config: pytest.Config) -> int:
    """Count the skipped tests where every server is required: what they would have found stays hidden."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or os.environ.get(REQUIRE) != "1":
        return 0
    return len(reporter.stats.get("skipped", []))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where every server is required, a skipped test makes the run fail."""
    # A worker of pytest-xdist sees its own part only: the process that heard from all of them decides.
    if not hasattr(session.config, "workerinput") and _hidden(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why a run fails in which no test did."""
    if count := _hidden(config):
        terminalreporter.write_line(f"{count} skipped tests, and every server is required", red=True)


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    """A running PostgreSQL 18: one of the tests' own, or the one that `shared_server` names."""
    if (shared := shared_server()) is not None:
        yield shared
        return
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
