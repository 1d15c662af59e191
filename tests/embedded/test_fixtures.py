"""The servers and databases that the other tests stand on."""

from __future__ import annotations

from urllib.parse import urlsplit

import psycopg
import pytest

from fencepost.embedded import PostgresServer
from tests.postgres import fresh_database


def setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def test_each_major_version_runs_with_the_settings_of_the_tests(
    database: str, request: pytest.FixtureRequest
) -> None:
    major = "18" if "pg18" in request.node.name else "15"
    with psycopg.connect(database) as connection:
        assert setting(connection, "server_version").startswith(major)
        assert setting(connection, "fsync") == "off"
        assert setting(connection, "wal_level") == "logical"
        assert setting(connection, "max_connections") == "200"
        assert setting(connection, "log_line_prefix") == "%m [%p] %a "
        assert setting(connection, "autovacuum") == "on"


def test_a_database_is_empty_and_gone_afterwards_whoever_is_connected(postgres18: PostgresServer) -> None:
    with fresh_database(postgres18) as url, psycopg.connect(url) as left_open:
        found = left_open.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        assert found == (0,)
        left_open.commit()
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_create_logical_replication_slot('left_behind', 'test_decoding')")
            other.execute("CREATE TABLE kept (id int)")
            other.execute("BEGIN")
            other.execute("INSERT INTO kept VALUES (1)")
            other.execute("PREPARE TRANSACTION 'left behind'")
    with psycopg.connect(postgres18.url) as administrator:
        name = urlsplit(url).path.removeprefix("/")
        found = administrator.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        assert found is None
