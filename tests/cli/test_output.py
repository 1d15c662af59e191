"""What is printed: aligned in a pipe, safe for a terminal, JSON where asked for."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from fencepost.cli.output import Output, ago, plain_table
from fencepost.cli.redaction import Redactor
from fencepost.config import ConfiguredRoute, Settings


@pytest.fixture
def out() -> Output:
    redact = Redactor()
    redact.learn(
        Settings(
            store="postgresql://app:p%40ss@db/shop",
            routes=(ConfiguredRoute("*", "https://user:hook@h/?secret=whsec_1"),),
        )
    )
    return Output(redact)


def test_columns_are_aligned_and_never_cut() -> None:
    lines = plain_table(("id", "name"), [("1", "a" * 300), ("100", "b")])
    assert lines == ["id   name", "1    " + "a" * 300, "100  b"]


def test_a_table_in_a_pipe_is_plain_text(out: Output, capsys: pytest.CaptureFixture[str]) -> None:
    out.table(("queue", "count"), [("default", 3), ("mail", None)])
    assert capsys.readouterr().out == "queue    count\ndefault  3\nmail     -\n"


def test_control_characters_cannot_drive_a_terminal(out: Output) -> None:
    assert out.cell("\x1b[31mred\x07\x9b\u202e\ud800") == "\\x1b[31mred\\x07\\x9b\\u202e\\ud800"
    assert out.cell("two\nlines\r\tand é ✓") == "two\\nlines\\r\\tand é ✓"
    assert out.text("two\nlines") == "two\nlines"


def test_markup_of_rich_is_text(out: Output) -> None:
    from rich.console import Console

    from fencepost.cli.output import rich_table

    console = Console(width=60)
    with console.capture() as captured:
        console.print(rich_table(["name"], [["[bold]x[/bold] :smile:"]]))
    assert "[bold]x[/bold] :smile:" in captured.get()


def test_secrets_are_masked_in_every_form(out: Output, capsys: pytest.CaptureFixture[str]) -> None:
    text = "p%40ss and p@ss, user:hook whsec_1 at postgresql://other:Unknown1@h/x"
    masked = "*** and ***, *** *** at postgresql://other:***@h/x"
    assert out.text(text) == masked
    out.line(text)
    out.note(text)
    out.json({"text": [text]})
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [masked, json.dumps({"text": [masked]})]
    assert printed.err == masked + "\n"


def test_a_password_that_is_a_common_word_masks_whole_words_only() -> None:
    redact = Redactor()
    redact.learn_store("postgresql://app:postgres@db/shop")
    assert redact("postgresql and postgres") == "postgresql and ***"


def test_json_keeps_numbers_and_writes_instants_and_durations(
    out: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {
        "n": 1,
        "yes": True,
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "age": timedelta(seconds=1.5),
        "none": None,
    }
    out.json(value)
    assert json.loads(capsys.readouterr().out) == {
        "n": 1,
        "yes": True,
        "at": "2026-01-02T00:00:00+00:00",
        "age": 1.5,
        "none": None,
    }


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59.9, "59s"), (61, "1m 1s"), (90_061, "1d 1h"), (-5, "0s"), (3_600, "1h")]
)
def test_ages(seconds: float, shown: str) -> None:
    assert ago(timedelta(seconds=seconds)) == shown
