"""Preparing the directory of one server: refusing what is not ours, creating the cluster in one step."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fencepost.embedded import binaries
from fencepost.embedded.account import Account, can_enter, closed_parent, run
from fencepost.errors import EmbeddedError

# The first file in a directory of ours, by which it is recognised; also the lock of whoever changes it.
_MARKER = "fencepost.lock"
_INITDB_OPTIONS = ["-U", "postgres", "--locale=C", "--encoding=UTF8", "--no-instructions", "-A", "scram-sha-256"]


def refuse_other_systems() -> None:
    """The embedded server needs users, signals and locks as POSIX has them.

    Raises:
        EmbeddedError: this is not such a system.
    """
    if os.name != "posix":
        raise EmbeddedError(
            "'embedded:' addresses work on Linux and macOS only: give the address of a PostgreSQL server"
        )


@contextmanager
def reporting(directory: Path) -> Iterator[None]:
    """Turn what the system refuses into our own error, which names the directory."""
    try:
        yield
    except OSError as error:
        refused = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise EmbeddedError(
            f"cannot use {directory} for an embedded PostgreSQL ({refused}): "
            "choose a directory that this user may write"
        ) from error
    except subprocess.TimeoutExpired as error:
        program = os.path.basename(str(error.cmd[0]))
        raise EmbeddedError(f"{program} did not end in {error.timeout:.0f} s for {directory}") from error


@contextmanager
def changing(directory: Path) -> Iterator[None]:
    """One process at a time creates, starts or stops."""
    from fencepost.embedded.locks import exclusive  # POSIX only, and this module is imported everywhere

    with exclusive(directory / _MARKER):
        yield


def make_directory(path: Path, *, private: bool) -> None:
    """Create a directory with its parents, unless private passable by the server's account.

    Each is created under a name of its own and renamed, so that nobody meets it with the wrong permissions.
    """
    if path.is_dir():
        return
    make_directory(path.parent, private=private)
    draft = path.with_name(f".fencepost-{secrets.token_hex(8)}")
    draft.mkdir(mode=0o700)
    if not private:
        draft.chmod(0o755)
    try:
        draft.rename(path)
    except OSError:
        draft.rmdir()
        if not path.is_dir():  # otherwise another process was quicker
            raise


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory with contents that are not from here.

    Raises:
        EmbeddedError: it is such a directory.
    """
    entries = os.listdir(directory) if directory.is_dir() else []
    if entries and _MARKER not in entries:
        raise EmbeddedError(
            f"{directory} is not empty and was not made by fencepost: nothing in it was touched; "
            "name an empty directory, or one that does not exist yet"
        )


def refuse_unreachable(directory: Path, account: Account | None) -> None:
    """Refuse a directory that the server could not enter, before anything of it is created.

    Raises:
        EmbeddedError: the account cannot pass one of the directories on the way.
    """
    existing = next(path for path in (directory, *directory.parents) if path.is_dir())
    if account is None or can_enter(existing, account):
        return
    closed = closed_parent(existing, account)
    raise EmbeddedError(
        f"PostgreSQL does not run as root, and user {account.uid}, as which it would run, cannot reach "
        f"{directory} because {closed} is closed to it: choose a directory elsewhere, such as one below "
        f"/var/lib, or open that one (chmod o+x {closed})"
    )


def refuse_other_version(data: Path, programs: Path, account: Account | None) -> None:
    """Refuse data that these programs cannot read.

    Raises:
        EmbeddedError: another major version made it.
    """
    made_by = int(data.joinpath("PG_VERSION").read_text("utf-8"))
    ours = binaries.major_version(programs, account)
    if made_by != ours:
        raise EmbeddedError(
            f"{data} was made by PostgreSQL {made_by}, and {programs} is PostgreSQL {ours}: dump the data "
            "with the old version and restore it into a new directory, or use the old version's programs"
        )


def initialise(directory: Path, programs: Path, account: Account | None, *, durable: bool) -> None:
    """Create the cluster beside its final name and rename it: an interrupted one is never mistaken for whole.

    Called by one process at a time, so any draft that exists was abandoned.

    Raises:
        EmbeddedError: ``initdb`` failed; the message has what it printed.
    """
    for abandoned in directory.glob("draft-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    draft = directory / f"draft-{secrets.token_hex(8)}"
    draft.mkdir(mode=0o700)
    try:
        _fill(draft, programs, account, durable=durable)
        draft.rename(directory / "cluster")
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    if durable:
        _sync_directory(directory)


def _fill(draft: Path, programs: Path, account: Account | None, *, durable: bool) -> None:
    password = secrets.token_urlsafe(24)
    write_new(draft / "password", password, mode=0o600)
    write_new(draft / "password-for-initdb", password, mode=0o600, account=account)
    write_new(draft / "postgres.log", "", mode=0o600, account=account)
    draft.joinpath("data").mkdir(mode=0o700)
    if account is not None:
        os.chown(draft / "data", account.uid, account.gid)
        draft.chmod(0o711)
    argv = [str(programs / "initdb"), "-D", "data", "--pwfile=password-for-initdb", *_INITDB_OPTIONS]
    if not durable:
        argv.append("--no-sync")
    status, printed = run(argv, account=account, cwd=draft, timeout=120)
    if status != 0:
        raise EmbeddedError(f"initdb failed in {draft.parent}:\n{printed}")
    draft.joinpath("password-for-initdb").unlink()
    configuration = os.open(draft / "data" / "postgresql.conf", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    with os.fdopen(configuration, "w") as file:
        file.write("\ninclude '../fencepost.conf'\n")


def write_new(path: Path, text: str, *, mode: int, account: Account | None = None) -> None:
    """Create a file; ``mode`` holds whatever the umask, and the file belongs to ``account`` when given."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        if account is not None:
            os.fchown(descriptor, account.uid, account.gid)
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
