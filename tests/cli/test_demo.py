"""``demo``: how the command line calls the demonstrations, which have tests of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from tests.cli.program import Result

Call = Callable[..., Result]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool]]:
    """What a stand-in for the demonstrations was asked for; it answers 1."""
    asked: list[tuple[str, str, bool]] = []

    def stand_in(name: str) -> Callable[..., int]:
        def play(address: str, *, console: Console, as_json: bool = False) -> int:
            assert isinstance(console, Console)
            asked.append((name, address, as_json))
            return 1

        return play

    module: Any = ModuleType("fencepost.demo")
    module.run_demo, module.run_race = stand_in("demo"), stand_in("race")
    monkeypatch.setitem(sys.modules, "fencepost.demo", module)
    return asked


def test_each_demonstration(
    call: Call, calls: list[tuple[str, str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A configured database is left alone.
    monkeypatch.setenv("FENCEPOST_STORE", "postgresql://app@db/production")
    assert call("demo").code == 1
    assert call("demo", "--json", store="embedded:/x").code == 1
    assert call("demo", "race").code == 1
    assert call("demo", "race", "--json", store="postgresql://app@db/x").code == 1
    assert calls == [
        ("demo", "", False),
        ("demo", "embedded:/x", True),
        ("race", "", False),
        ("race", "postgresql://app@db/x", True),
    ]


def test_wrong_usage(call: Call, calls: list[tuple[str, str, bool]]) -> None:
    assert "write the options behind the command: fencepost demo race" in call("demo", "--json", "race").err
    assert "--store: expected postgresql://" in call("demo", store="shop").err
    assert call("demo", "chase").code == 2
    assert calls == []
