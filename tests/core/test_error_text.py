"""Error text that any store can hold, made of any exception whatever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.error_text import MAX_ERROR_CHARS, describe, storable


class Hostile(Exception):
    """An exception whose text cannot be had."""

    def __init__(self, raises: BaseException) -> None:
        super().__init__()
        self.raises = raises

    def __str__(self) -> str:
        raise self.raises

    __repr__ = __str__


class NotText(Exception):
    def __str__(self) -> str:
        return 42  # type: ignore[return-value]  # noqa: PLE0307 - on purpose


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a\x00b", "a\\x00b"),
        ("\ud800", "\\ud800"),
        ("🐘 \udc00 é\r\n\t", "🐘 \\udc00 é\r\n\t"),
        ("x" * MAX_ERROR_CHARS, "x" * MAX_ERROR_CHARS),
    ],
)
def test_what_no_store_can_keep_is_shown_as_an_escape(text: str, stored: str) -> None:
    assert storable(text) == stored


def test_a_megabyte_keeps_its_beginning_and_its_end() -> None:
    text = "the beginning " + "x" * 1_000_000 + " the cause"
    stored = storable(text)
    assert len(stored) < MAX_ERROR_CHARS + 100
    assert stored.startswith("the beginning xxx")
    assert stored.endswith("xxx the cause")
    assert f"{len(text) - MAX_ERROR_CHARS} characters cut" in stored


def test_a_limit_of_the_callers() -> None:
    assert storable("0123456789", 8) == "012345 [… 2 characters cut …] 89"


@given(st.text(st.characters(codec=None, exclude_categories=[])))
def test_any_text_becomes_text_that_utf8_and_postgresql_can_hold(text: str) -> None:
    stored = storable(text)
    stored.encode("utf-8")
    assert "\x00" not in stored
    assert storable(stored) == stored


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "ValueError: no such order"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (ExceptionGroup("several", [ValueError("a")]), "ExceptionGroup: several (1 sub-exception)"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("a\x00b \ud800"), "ValueError: a\\x00b \\ud800"),
        (NotText(), "NotText: (its text cannot be read: __str__ raised TypeError)"),
        (Hostile(ValueError()), "Hostile: (its text cannot be read: __str__ raised ValueError)"),
        (Hostile(SystemExit()), "Hostile: (its text cannot be read: __str__ raised SystemExit)"),
        (Hostile(KeyboardInterrupt()), "Hostile: (its text cannot be read: __str__ raised KeyboardInterrupt)"),
        (Hostile(RecursionError()), "Hostile: (its text cannot be read: __str__ raised RecursionError)"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_any_exception_can_be_described(error: BaseException, text: str) -> None:
    assert describe(error) == text


def test_a_description_is_no_longer_than_a_store_should_keep() -> None:
    assert len(describe(ValueError("x" * 10_000_000))) < MAX_ERROR_CHARS + 100
