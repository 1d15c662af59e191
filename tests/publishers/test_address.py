"""Destination URLs: strict reading, and nothing secret on display."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import ConfigError
from fencepost.publishers.address import masked, parse_address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("stdout:", "stdout:"),
        ("https://h/a", "https://h/a"),
        (
            "https://user:hunter2@h:8443/a?timeout=5&query=sig%3Dhunter2",
            "https://***@h:8443/a?timeout=***&query=***",
        ),
        ("nats://hunter2@h1:4222,h2:4222", "nats://***@h1:4222,h2:4222"),
        ("http://[::1]:80/x#hunter2", "http://[::1]:80/x#***"),
        # An unencoded '/', '?' or '#' in the password makes these invalid; they are masked all the same.
        ("http://user:hunter2/x@h/p", "http://***@h/p"),
        ("http://user:hunter2?x@h/p", "http://***@h/p"),
        ("http://user:hunter2#x@h/p", "http://***@h/p"),
        ("http://h:port/?token=hunter2", "http://h:***/?***"),
        ("user:hunter2@h", "user:***@h"),
        ("no url", "no url"),
        ("hunter2@h", "***"),
        ("amqp:///user:hunter2@h/v", "amqp://***@h/v"),
        ("amqp://user/:hunter2@h/v", "amqp://***@h/v"),
        ("http://h/@user/hook", "http://h/@user/hook"),
        ("h\u00f6st://user:hunter2@h/", "***"),
        ("host=db password=hunter2", "***"),
        ("http://[hunter2@h/", "http://***@h/"),
        ("http://h/\x1b[31m", "http://h/?[31m"),
    ],
)
def test_masked(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert "hunter2" not in masked(url)


@given(st.text())
def test_masked_never_raises(text: str) -> None:
    assert masked(text).isprintable()


@given(st.from_regex(r"[A-Za-z0-9%:/?#@!\[\]-]{12,30}", fullmatch=True))
def test_no_password_survives_in_the_error_for_a_bad_url(password: str) -> None:
    secret = f"S3CR3T{password}"
    try:
        shown = repr(parse_address(f"http://user:{secret}@host/", options=()))
    except ConfigError as error:
        shown = str(error)
    assert "S3CR3T" not in shown


def test_parts_are_decoded() -> None:
    address = parse_address("NATS://us%40er:p%3A%2Fw@[::1]:1,Host/a%20b?timeout=2.5", options={"timeout"})
    assert address.scheme == "nats"
    assert address.hosts == (("::1", 1), ("host", None))
    assert (address.username, address.password) == ("us@er", "p:/w")
    assert address.path == "/a%20b"
    assert address.seconds("timeout", 8.0) == 2.5
    assert address.count("absent", 7, most=9) == 7
    assert "p:/w" not in repr(address)
    assert "us@er" not in repr(address)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("h:1/?x=1", "unknown option 'x'; this destination knows: count, timeout"),
        ("h:?timeout=1&timeout=2", "'timeout' is given twice"),
        ("h://a/#x", "%23"),
        ("h://a b/", "percent-encoded"),
        ("h://a\n/", "percent-encoded"),
        ("h://a:99999/", "not a valid URL"),
        ("h://a:b/", "not a valid URL"),
        ("://a", "must start with a scheme"),
        ("", "must start with a scheme"),
        ("a", "must start with a scheme"),
        ("1a:b", "must start with a scheme"),
    ],
)
def test_a_bad_url_says_what_is_wrong(url: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_address(url, options={"timeout", "count"})
    assert text in str(error.value)


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e9", "5s", "3601"])
def test_seconds_are_checked(value: str) -> None:
    address = parse_address(f"h:?timeout={value}", options={"timeout"})
    with pytest.raises(ConfigError, match="timeout must be seconds"):
        address.seconds("timeout", 8.0)


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "11", "٣", "9" * 5000])
def test_counts_are_checked(value: str) -> None:
    address = parse_address(f"h:?count={value}", options={"count"})
    with pytest.raises(ConfigError, match="count must be a whole number from 1 to 10"):
        address.count("count", 5, most=10)
