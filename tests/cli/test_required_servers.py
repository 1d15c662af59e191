"""Where the servers are required, a missing one fails its tests, and a run with a skipped test fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.bench.brokers import BROKERS
from tests.cli.program import clean_environment
from tests.postgres import pg15_bin_dir, running_server
from tests.runtime.pgbouncer import pgbouncer
from tests.servers import REQUIRE

ROOT = Path(__file__).parents[2]

SERVERS: dict[str, Callable[[Path], AbstractContextManager[object]]] = {
    **{name: started for name, started in BROKERS.items() if name != "http"},  # its receiver is our own
    "pgbouncer": lambda _: pgbouncer("postgresql://127.0.0.1:1/none"),
    "postgresql 15": lambda _: running_server(pg15_bin_dir()),
}

CONFTEST = "from tests.conftest import pytest_sessionfinish, pytest_terminal_summary\n"
ONE_SKIPPED = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="no server")
def test_is_skipped():
    pass
"""
NONE_SKIPPED = "def test_runs(): pass\n"


def run(folder: Path, tests: str, required: bool, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder.joinpath("conftest.py").write_text(CONFTEST)
    folder.joinpath("pytest.ini").write_text("[pytest]\n")
    folder.joinpath("test_tiny.py").write_text(tests)
    # Without the plugins that it does not need it starts in half the time.
    environ = clean_environment() | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist", *arguments],
        cwd=folder,
        env=environ | ({REQUIRE: "1"} if required else {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("tests", "required", "code"), [(ONE_SKIPPED, True, 1), (ONE_SKIPPED, False, 0), (NONE_SKIPPED, True, 0)]
)
def test_a_skipped_test(tmp_path: Path, tests: str, required: bool, code: int, arguments: tuple[str, ...]) -> None:
    result = run(tmp_path, tests, required, *arguments)
    assert result.returncode == code, result.stdout + result.stderr
    said = "1 skipped tests, and every server is required" in result.stdout
    assert said == (code == 1)
    assert "1 passed" in result.stdout


def test_other_ends_keep_their_code(tmp_path: Path) -> None:
    assert run(tmp_path, "", True).returncode == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    ("environ", "outcome"),
    [
        ({}, pytest.skip.Exception),
        ({REQUIRE: ""}, pytest.skip.Exception),
        ({REQUIRE: "1"}, pytest.fail.Exception),
        ({"CI": "true"}, pytest.fail.Exception),
    ],
    ids=["neither", "empty", "required", "ci"],
)
def test_a_missing_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, environ: dict[str, str], outcome: type[Exception]
) -> None:
    for name in ("CI", REQUIRE):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(outcome, match=r"is not installed.*: (pip )?(install|run) "), SERVERS[server](tmp_path):
        pytest.fail("it was started")
