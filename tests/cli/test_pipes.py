"""Pipes, terminals and interruptions: a program among others."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import psycopg

from fencepost import Outbox
from tests.cli.program import PATIENCE, Program, Result, bury, clean_environment, deliver, enqueue

Call = Callable[..., Result]

COMMANDS = [
    ("status",),
    ("dead", "list"),
    ("dead", "show", "1"),
    ("config", "show"),
    ("pause", "mail"),
    ("queue", "list"),
    ("queue", "show", "mail"),
    ("keys",),
    ("doctor",),
    ("migrate", "--check"),
    ("purge", "--older-than", "1h"),
    ("--help",),
]


def test_in_a_pipe_output_is_plain_text(call: Call, store: str) -> None:
    bury(store)
    enqueue(store, 2, queue="mail")
    with psycopg.connect(store) as connection:
        for delay in (timedelta(hours=1), None):
            Outbox().enqueue(connection, "e", 1, ordering_key="k", delay=delay)
    for arguments in COMMANDS:
        result = call(*arguments, store=None if arguments == ("--help",) else store)
        assert result.out
        assert "\x1b" not in result.out + result.err
        assert not re.search("[\u2500-\u257f]", result.out)
        assert not re.search(r"[ \t]+$", result.out, re.MULTILINE)


def test_a_reader_that_goes_away_is_no_error(program: Program) -> None:
    for arguments in (("migrate", "--sql"), ("--help",)):
        reader, writer = os.pipe()
        os.close(reader)
        result = program.run(*arguments, stdout=writer)
        os.close(writer)
        assert (result.code, result.err) == (141, "")


def test_a_terminal_gets_a_layout(store: str, configured: Program) -> None:
    bury(store, error="[bold]x[/bold]")
    with psycopg.connect(store) as connection:
        for n in range(2):
            Outbox().enqueue(connection, "e", n, ordering_key="k" * 100)
        head = Outbox().claim(connection, "w", batch=1)
        Outbox().mark_dead(connection, head, "[bold]y[/bold]")
    for arguments, text in (
        (("status",), "permanent 2"),
        (("dead", "list"), "[bold]x[/bold]"),
        (("keys",), "k" * 10),
    ):
        code, shown = on_a_terminal(configured, *arguments)
        assert code == 0
        assert "\x1b[1m" in shown
        assert "─" in shown
        assert text in shown


def test_long_work_shows_its_progress_on_a_terminal(store: str, configured: Program) -> None:
    deliver(store, 3)
    code, shown = on_a_terminal(configured, "purge", "--older-than", "0s")
    assert code == 0
    assert "deleting done messages" in shown
    assert "deleted 3 done messages" in shown
    bury(store, 2)
    code, shown = on_a_terminal(configured, "dead", "retry", "--all", "--yes")
    assert code == 0
    assert "retry dead messages" in shown
    assert "2/2" in shown
    assert "2 messages are pending again" in shown


def test_asking_on_a_terminal(store: str, configured: Program) -> None:
    bury(store)
    code, shown = on_a_terminal(configured, "dead", "skip", "--all", typed=b"n\n")
    assert code == 1
    assert "nothing was changed" in shown
    assert "Skip 1 dead message? [y/N]:" in shown
    assert "skipped" not in shown
    code, shown = on_a_terminal(configured, "dead", "skip", "--all", typed=b"y\n")
    assert code == 0
    assert "1 message is skipped" in shown


def on_a_terminal(program: Program, *arguments: str, typed: bytes = b"") -> tuple[int, str]:
    """Run a command with a terminal for all its streams; return its exit code and what it showed."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fencepost", *arguments],
        cwd=program.folder,
        env=clean_environment() | dict(program.environ) | {"TERM": "xterm", "COLUMNS": "100"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    os.write(master, typed)
    shown = b""
    try:
        while piece := os.read(master, 65_536):
            shown += piece
    except OSError:  # the other side is closed: on Linux a terminal's way to say so
        pass
    finally:
        os.close(master)
    return process.wait(PATIENCE), shown.decode()
