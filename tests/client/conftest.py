"""An outbox on PostgreSQL 18, each kind of connection in turn, and a look into the table from outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from fencepost.embedded import PostgresServer
from tests.client.adapters import ADAPTERS, Adapter
from tests.store.databases import Migrated, migrated_database


class Table:
    """The outbox as another session sees it: committed rows only."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.conn = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def rows(self) -> list[dict[str, Any]]:
        return self.conn.execute(
            "SELECT *, payload::text AS text, headers::text AS header_text FROM outbox ORDER BY id"
        ).fetchall()

    def types(self) -> list[str]:
        return [row["event_type"] for row in self.rows()]


@pytest.fixture(scope="package")
def migrated(postgres18: PostgresServer) -> Iterator[Migrated]:
    """One database for all these tests: making one takes longer than most of them."""
    with migrated_database(postgres18) as found:
        found.janitor.execute("CREATE TABLE orders (id int)")
        yield found


@pytest.fixture
def table(migrated: Migrated) -> Iterator[Table]:
    migrated.empty()
    migrated.janitor.execute("DELETE FROM orders")
    made = Table(migrated.url)
    yield made
    made.conn.close()


@pytest.fixture(params=ADAPTERS, ids=str)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    found: Adapter = request.param
    return found
