"""Databases with the tables in place, on each major version, and connections to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fencepost.embedded import PostgresServer
from tests.store.databases import Migrated, migrated_database


@pytest.fixture(scope="module")
def migrated(postgres: PostgresServer) -> Iterator[Migrated]:
    """A database with the tables in place for all tests of a module, on each major version in turn."""
    with migrated_database(postgres) as found:
        yield found


@pytest.fixture
def url(migrated: Migrated) -> str:
    """The URL of a database whose outbox is there and empty, on each major version in turn."""
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
