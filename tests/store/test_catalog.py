"""The SQL files themselves."""

from __future__ import annotations

import re

import pytest

from fencepost.core.operation import Statement
from fencepost.store import schema
from fencepost.store.catalog import Catalog, Names, _folder

CATALOG = Catalog(Names("Ein-Schema", "Ausgang"))
FILES = sorted(
    file.name.removesuffix(".sql") for file in _folder("postgresql").iterdir() if file.name.endswith(".sql")
)


def statements() -> list[Statement]:
    parts = [
        Statement(f"{step.name} {n}", part)
        for step in schema.migrations(CATALOG)
        for n, part in enumerate(step.statements)
    ]
    return [CATALOG.statement(name) for name in FILES] + parts


@pytest.mark.parametrize("statement", statements(), ids=lambda each: each.name)
def test_a_statement_is_one_with_every_mark_filled_in_and_no_other_percent_sign(statement: Statement) -> None:
    text = re.sub(r"--.*", "", statement.sql)
    text = re.sub(r"'[^']*'", "''", text)
    assert ";" not in text
    assert not re.search(r"[{}]", text)
    # A percent sign of another kind is an error in psycopg2, also in a comment.
    assert "%" not in re.sub(r"%\(\w+\)s", "", statement.sql)
    # Every parameter's type is said, so that no driver has to guess it.
    assert not re.search(r"%\(\w+\)s(?!::)", statement.sql), statement.sql


def test_an_unknown_statement_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        CATALOG.statement("no such statement")


def test_migrations_are_numbered_without_gaps() -> None:
    assert [step.version for step in schema.migrations(CATALOG)] == list(
        range(1, len(schema.migrations(CATALOG)) + 1)
    )


def test_a_checksum_does_not_depend_on_the_names() -> None:
    here = [step.checksum for step in schema.migrations(CATALOG)]
    assert here == [step.checksum for step in schema.migrations(Catalog())]


def test_a_name_with_two_dashes_is_no_comment() -> None:
    """A legal name, and comments are left out of statements."""
    text = Catalog(Names("public", "a--b")).statement("mark_done").sql
    assert '"public"."a--b"' in text
    assert "lease_version" in text


def test_no_fragment_has_the_name_of_a_table_or_an_index() -> None:
    """It would stand in for it, in migrations as well."""
    fragments = {file.name.removesuffix(".sql") for file in (_folder("postgresql") / "fragments").iterdir()}
    assert fragments
    assert not fragments & set(Names().placeholders())
