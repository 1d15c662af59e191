"""The demonstration's schema: made anew each time, and nobody else's things are ever dropped with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fencepost import ConfigError
from fencepost.demo.tables import hold_the_stage, make_schema


@pytest.fixture
def connection(database18: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database18, autocommit=True) as connection:
        yield connection


def _count(connection: psycopg.Connection[Any], table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


def test_it_is_made_anew_each_time(connection: psycopg.Connection[Any]) -> None:
    make_schema(connection)
    connection.execute("INSERT INTO fencepost_demo.naive_outbox DEFAULT VALUES")

    make_schema(connection)

    assert _count(connection, "fencepost_demo.naive_outbox") == 0


@pytest.mark.parametrize(
    "theirs",
    [
        "CREATE TABLE fencepost_demo.theirs (id int)",
        "CREATE FUNCTION fencepost_demo.theirs() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE VIEW public.theirs AS SELECT * FROM fencepost_demo.orders",
    ],
    ids=["a table in it", "a function in it", "a view on it"],
)
def test_what_others_made_is_left_alone(connection: psycopg.Connection[Any], theirs: str) -> None:
    make_schema(connection)
    connection.execute("INSERT INTO fencepost_demo.naive_outbox DEFAULT VALUES")
    connection.execute(theirs.encode())

    with pytest.raises(ConfigError, match="no demo made"):
        make_schema(connection)

    assert _count(connection, "fencepost_demo.naive_outbox") == 1


def test_a_schema_that_others_made_is_left_alone(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE SCHEMA fencepost_demo")
    connection.execute("CREATE TABLE fencepost_demo.orders (id int)")

    with pytest.raises(ConfigError, match="no demo made"):
        make_schema(connection)

    assert _count(connection, "fencepost_demo.orders") == 0


def test_two_at_once_do_not_share_the_tables(connection: psycopg.Connection[Any], database18: str) -> None:
    hold_the_stage(connection)

    with psycopg.connect(database18) as another, pytest.raises(ConfigError, match="another demo is running"):
        hold_the_stage(another)
