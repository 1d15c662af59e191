"""What a report says about its machine."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from fencepost.bench import machine


def test_the_machine_is_described_and_its_owner_is_not() -> None:
    found = dict(machine.described())
    assert {"date", "cores", "kernel", "Python", "memory", "data directory on"} <= set(found)
    assert all(found.values())
    assert platform.python_version() in found["Python"]
    assert platform.node() not in " ".join(found.values()).split()


def test_what_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", unreadable)
    found = dict(machine.described())
    assert "memory" not in found
    assert "Python" in found
