"""Where every server is required, a run with a skipped test fails: tests/conftest.py, in a run of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import clean_environment

ROOT = Path(__file__).parents[2]

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
        env=environ | ({"FENCEPOST_REQUIRE_SERVERS": "1"} if required else {}),
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
