"""The store's address: what is refused before libpq can repeat a password, and what is shown."""

from __future__ import annotations

import pytest

from fencepost.cli.settings.addresses import (
    check_store,
    check_target,
    shown_store,
    shown_target,
    spellings,
    store_secrets,
    target_secrets,
)

GOOD = [
    "postgresql://app@db/shop",
    "postgres://app:pw@db:5432/shop",
    "postgresql:///shop",
    "postgresql://app:p%40w%2F%25@db/shop?sslmode=require&application_name=x",
    "postgresql://a:1@h1:5432,h2:5433/shop?target_session_attrs=read-write",
    "postgresql://app@%2Fvar%2Frun%2Fpostgresql/shop",
    "postgresql://[::1]:5432/shop",
    "host=db user=app password='p w' dbname=shop",
    "dbname=shop",
    "embedded:",
    "embedded:/some/where with blanks",
]


@pytest.mark.parametrize("address", GOOD)
def test_accepts(address: str) -> None:
    assert check_store(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://app:s3@cret@db/shop",
        "postgresql://app:s3/cret@db/shop",
        "postgresql://app:12/cret@db/shop",
        "postgresql://app:s3#cret@db/shop",
        "postgresql://app:s3?cret@db/shop",
        "postgresql://app:12?cret@db/shop",
        "postgresql://app:s3%cret@db/shop",
        "postgresql://app:s3%00cret@db/shop",
        "postgresql://app:s3 cret@db/shop",
        "postgresql://app:s3\ncret@db/shop",
        "postgresql://app:s3[cret@db/shop",
        "host=db password=s3 cret",
        "host=db password='cret",
        "s3cret",
        "",
        "mysql://app:s3cret@db/shop",
        "postgresql+psycopg://app:s3cret@db/shop",
        "embedded://cret",
    ],
)
def test_refuses_without_repeating_a_secret(address: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_store(address)
    assert "cret" not in str(caught.value)


def test_names_the_remedy_for_an_address_of_sqlalchemy() -> None:
    with pytest.raises(ValueError, match="write postgresql:// without a driver"):
        check_store("postgresql+psycopg://db/shop")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://app:pw@db/shop", "postgresql://app:***@db/shop"),
        ("postgresql://app@db/shop", "postgresql://app@db/shop"),
        ("postgresql://:pw@db/shop", "postgresql://:***@db/shop"),
        ("postgresql://db/shop?password=pw&sslmode=require", "postgresql://db/shop?password=***&sslmode=require"),
        ("host=db password='p w' user=app", "host=db password=*** user=app"),
        ("host=db sslpassword = pw", "host=db sslpassword=***"),
        ("embedded:/some/where", "embedded:/some/where"),
    ],
)
def test_shows_no_password(address: str, shown: str) -> None:
    assert shown_store(check_store(address)) == shown


def test_knows_the_secrets_of_an_address() -> None:
    assert list(store_secrets("postgresql://app:p%40w@db/shop?sslpassword=x1&sslmode=require")) == ["p%40w", "x1"]
    assert list(store_secrets(r"host=db password='it\'s' user=app")) == ["it's"]
    assert spellings("p%40w") == {"p%40w", "p@w"}
    assert list(store_secrets("embedded:/pass")) == []


def test_targets() -> None:
    assert check_target("*", "stdout:") == "stdout:"
    assert check_target("*", "python:shop.events:Publisher.make") == "python:shop.events:Publisher.make"
    assert shown_target("https://u:pw@h/p?secret=x&timeout=3") == "https://***@h/p?secret=***&timeout=***"
    assert set(target_secrets("https://u:pw@h/p?secret=xyz&timeout=3")) == {"u:pw", "pw", "xyz"}


@pytest.mark.parametrize("target", ["stdout", "python:", "python:shop", "python:shop:a b", 5, None, ["stdout:"]])
def test_refuses_what_is_no_target(target: object) -> None:
    with pytest.raises(ValueError):
        check_target("order.*", target)
