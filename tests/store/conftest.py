"""Databases with the tables in place, on each major version and through a pooler, and connections to them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from fencepost.embedded import PostgresServer
from tests.store import pooled
from tests.store.databases import Migrated, migrated_database

SERVERS = {"pg18": "postgres18", "pg15": "postgres15", "pg18 pooled": "postgres18"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on each major version in turn, and through a pooler where it can."""
    if "way" in metafunc.fixturenames:
        ways = list(SERVERS)
        if not pooled.runs_pooled(metafunc.definition.path.name, metafunc.definition.originalname):
            ways.remove("pg18 pooled")
        metafunc.parametrize("way", ways, indirect=True, scope="module")


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> str:
    """How the test reaches a database: a key of `SERVERS`."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def pooler18(postgres18: PostgresServer) -> Iterator[str]:
    """The ``host:port`` of a pooler in front of PostgreSQL 18."""
    with pooled.pooler(postgres18) as address:
        yield address


@pytest.fixture(scope="module")
def migrated(way: str, request: pytest.FixtureRequest) -> Iterator[Migrated]:
    """A database with the tables in place for all tests of a module, in each way in turn."""
    with migrated_database(request.getfixturevalue(SERVERS[way])) as found:
        if way == "pg18 pooled":
            yield replace(found, url=pooled.through(request.getfixturevalue("pooler18"), found.url))
        else:
            yield found


@pytest.fixture(autouse=True)
def _as_behind_a_pooler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect without prepared statements, as one has to, to sessions in which others left their settings."""
    if "way" in request.fixturenames and request.getfixturevalue("way") == "pg18 pooled":
        monkeypatch.setattr(psycopg, "connect", functools.partial(psycopg.connect, prepare_threshold=None))
        pooled.leak(request.getfixturevalue("migrated").url)


@pytest.fixture
def url(migrated: Migrated) -> str:
    """The URL of a database whose outbox is there and empty, in each way in turn."""
    migrated.empty()
    return migrated.url


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection to it."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def db2(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A second one."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection
