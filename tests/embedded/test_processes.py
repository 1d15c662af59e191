"""Telling a server's processes apart from all others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fencepost.embedded import PostgresServer, processes


@pytest.fixture(params=["proc", "ps"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of listing processes: /proc, and ps for systems without it."""
    if request.param == "ps":
        monkeypatch.setattr(processes, "_PROC", Path("/nowhere"))


@pytest.mark.usefixtures("source")
def test_all_of_a_server_is_found_and_nothing_else(postgres18: PostgresServer) -> None:
    found = processes.find(processes.cluster_name(postgres18.directory / "cluster"))
    assert postgres18.pid in found
    assert len(found) > 3
    assert os.getpid() not in found
    for pid in found:
        line = processes.command_line(pid)
        assert line is not None
        assert processes.is_postgres(line)
        assert processes.has_cluster_name(line)


@pytest.mark.usefixtures("source")
def test_ourselves_we_are_no_postgres() -> None:
    line = processes.command_line(os.getpid())
    assert line is not None
    assert not processes.is_postgres(line)


@pytest.mark.parametrize(
    ("line", "postgres", "ours"),
    [
        ("postgres: fencepost-fe01-2a3: walwriter ", True, True),
        ("/usr/bin/postgres -D data -c cluster_name=fencepost-fe01-2a3", True, True),
        ("/usr/bin/postgres -D /var/lib/fencepost-fe01-2a3", True, False),
        ("postgres: 15/main: walwriter ", True, False),
        ("/usr/bin/vim postgres", False, False),
    ],
)
def test_what_command_lines_say(line: str, *, postgres: bool, ours: bool) -> None:
    assert processes.is_postgres(line) is postgres
    assert processes.has_cluster_name(line) is ours


def test_killing_what_is_gone_is_no_error() -> None:
    with subprocess.Popen(["true"]) as child:
        pass
    processes.kill([child.pid])
