"""Error text that any store can hold, made of any exception whatever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.error_text import MAX_ERROR_CHARS, describe, storable


class Hostile(BaseException):
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


def test_nul_and_lone_surrogates_are_shown_as_escapes() -> None:
    assert storable("a\x00b\ud800c") == "a\\x00b\\ud800c"


def test_a_long_text_keeps_its_start_and_its_end() -> None:
    text = storable("start" + "x" * 1_000_000 + "end")
    assert len(text) < MAX_ERROR_CHARS + 100
    assert text.startswith("start")
    assert text.endswith("end")
    assert "characters cut" in text


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_encoded_and_holds_no_nul(text: str) -> None:
    assert b"\x00" not in storable(text).encode("utf-8")


@given(st.text())
def test_ordinary_text_is_left_alone(text: str) -> None:
    if "\x00" not in text and len(text) <= MAX_ERROR_CHARS:
        assert storable(text) == text


def test_an_exception_is_described_by_type_and_text() -> None:
    assert describe(ValueError("no")) == "ValueError: no"
    assert describe(ValueError()) == "ValueError"
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_an_exception_that_cannot_be_printed_is_described_all_the_same() -> None:
    assert describe(Hostile()) == "Hostile: (its text cannot be read: __str__ raised SystemExit)"
