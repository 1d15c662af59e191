"""The program in an empty folder, and databases for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from fencepost import Outbox
from fencepost.cli.app import run
from fencepost.cli.settings import SETTINGS
from tests.cli.program import Program, Result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder that the program runs in."""
    return tmp_path


@pytest.fixture
def program(folder: Path) -> Iterator[Program]:
    """The program as a real process, with no store configured."""
    program = Program(folder)
    yield program
    program.end()


@pytest.fixture
def call(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """The program in this process, for what needs neither signals nor pipes: ``call("status", store=url)``."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for name in (*(setting.variable for setting in SETTINGS), "FENCEPOST_CONFIG", "PGPASSWORD", "PGHOST"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, store: str | None = None) -> Result:
        code = run([*arguments, *(["--store", store] if store else [])])
        printed = capsys.readouterr()
        return Result(code, printed.out, printed.err)

    return call


@pytest.fixture
def store(database18: str) -> str:
    """The address of a database with the tables in it."""
    with psycopg.connect(database18) as connection:
        Outbox().migrate(connection)
    return database18


@pytest.fixture
def configured(program: Program, store: str) -> Program:
    """The program as a real process, its store in the environment."""
    program.environ = {"FENCEPOST_STORE": store}
    return program
