"""``init`` and ``migrate``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from fencepost import Outbox
from fencepost.cli.settings import SETTINGS, load_settings
from fencepost.config import ConfiguredRoute
from tests.cli.program import Result
from tests.postgres import server_directory

Call = Callable[..., Result]


def test_init_makes_the_tables_and_a_file_and_can_be_repeated(call: Call, database18: str, folder: Path) -> None:
    first = call("init", store=database18)
    assert first.code == 0
    assert first.out.splitlines()[0] == "created the tables public.outbox"
    written = folder.joinpath("fencepost.toml").read_text("utf-8")
    second = call("init", store=database18)
    assert second.out == "the tables public.outbox are up to date\nleft fencepost.toml as it is\n"
    assert folder.joinpath("fencepost.toml").read_text("utf-8") == written
    assert call("migrate", "--check", store=database18).code == 0


def test_the_written_file_works_and_has_every_setting(call: Call, database18: str, folder: Path) -> None:
    call("init", "--table", "out", store=database18)
    text = folder.joinpath("fencepost.toml").read_text("utf-8")
    settings = load_settings(environ={})
    assert (settings.table, settings.store) == ("out", None)
    assert settings.routes == (ConfiguredRoute("*", "stdout:"),)
    # Uncommented, its examples are valid as well.
    folder.joinpath("fencepost.toml").write_text(
        "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    )
    settings = load_settings(environ={})
    unset = {each.name for each in SETTINGS if settings.source(each.name).kind == "default"}
    assert unset == set()


def test_no_password_is_written_to_the_file(call: Call, database18: str, folder: Path) -> None:
    call("init", store=database18)
    text = folder.joinpath("fencepost.toml").read_text("utf-8")
    assert str(urlsplit(database18).password) not in text
    assert "store" not in tomllib.loads(text)
    assert '# store = "postgresql://postgres@127.0.0.1:' in text


def test_an_address_without_a_password_is_written(
    call: Call, database18: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = urlsplit(database18)
    monkeypatch.setenv("PGPASSWORD", address.password or "")
    without = address._replace(netloc=f"{address.username}@{address.hostname}:{address.port}").geturl()
    assert call("init", store=without).code == 0
    assert load_settings(environ={}).store == without


def test_init_says_when_the_file_cannot_be_written(call: Call, database18: str, folder: Path) -> None:
    folder.rmdir()
    result = call("init", store=database18)
    assert result.code == 2
    assert "fencepost.toml cannot be written (No such file or directory); the tables are in place" in result.err


def test_migrate_says_what_it_did(call: Call, database18: str) -> None:
    assert call("migrate", store=database18).out.splitlines() == [
        "applied migration 0001 outbox",
        "applied migration 0002 order_and_queues",
        "applied migration 0003 destinations",
        "applied migration 0004 inbox",
        "applied migration 0005 jobs",
        "applied migration 0006 recovery",
        "applied migration 0007 fence",
    ]
    assert call("migrate", store=database18).out == "the tables public.outbox are up to date\n"
    assert call("migrate", "--json", store=database18).json == {"applied": []}


def test_migrate_in_another_place(call: Call, database18: str) -> None:
    assert call("migrate", "--schema", "events", "--table", "out", "--json", store=database18).json["applied"]
    assert call("status", "--schema", "events", "--table", "out", store=database18).code == 0
    assert call("status", store=database18).code == 4


def test_sql_needs_no_database(call: Call, database18: str) -> None:
    result = call("migrate", "--sql")
    assert (result.code, result.err, result.out) == (0, "", Outbox().schema_sql())
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute(result.out.encode())
    assert call("migrate", "--check", store=database18).out == "the tables public.outbox are in order\n"


def test_check_names_each_problem_and_changes_nothing(call: Call, database18: str) -> None:
    missing = call("migrate", "--check", store=database18)
    assert missing.code == 1
    assert "do not exist: run `fencepost migrate`" in missing.out
    call("migrate", store=database18)
    with psycopg.connect(database18) as connection:
        connection.execute("DROP INDEX outbox_dedupe")
        connection.execute("ALTER TABLE outbox ALTER COLUMN id SET CACHE 5")
    found = call("migrate", "--check", store=database18)
    assert found.code == 1
    assert len(found.out.splitlines()) == 2
    problems = call("migrate", "--check", "--json", store=database18)
    assert problems.code == 1
    assert problems.json["problems"] == found.out.splitlines()


def test_on_a_server_of_our_own(call: Call) -> None:
    with server_directory() as directory:
        store = f"embedded:{directory}/pg"
        assert call("init", store=store).code == 0
        assert load_settings(environ={}).store == store
        assert call("status").out.startswith("no open messages")


def test_tables_of_somebody_else_are_refused(call: Call, database18: str) -> None:
    with psycopg.connect(database18) as connection:
        connection.execute("CREATE TABLE outbox (id int)")
    result = call("migrate", store=database18)
    assert result.code == 4
    assert "choose another name with --table or --schema" in result.err


def test_tables_of_a_newer_version_are_a_problem(call: Call, store: str) -> None:
    with psycopg.connect(store) as connection:
        connection.execute("INSERT INTO outbox_migration (version, name, checksum) VALUES (9999, 'later', 'x')")
    result = call("migrate", "--check", store=store)
    assert result.code == 1
    assert "upgrade fencepost" in result.out
