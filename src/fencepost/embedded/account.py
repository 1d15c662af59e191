"""The operating system account that PostgreSQL runs as, and running its programs as that account."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fencepost.errors import EmbeddedError


@dataclass(frozen=True)
class Account:
    """A user and its group, by number."""

    uid: int
    gid: int


def server_account(data: Path) -> Account | None:
    """The account to switch to before a PostgreSQL program starts, or None to stay as we are.

    PostgreSQL refuses to run as root, so root steps down: to the owner of ``data`` when that exists (a
    directory made by an ordinary user keeps working for that user), else to ``nobody``.

    Raises:
        EmbeddedError: we are root and the system has no user ``nobody``.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    import pwd  # POSIX only, and this module is imported everywhere

    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedError(
            "PostgreSQL refuses to run as root and this system has no user 'nobody' to run it as: "
            "start fencepost as an ordinary user"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    account: Account | None,
    cwd: Path | str = "/",
    timeout: float = 60,
    inherit: Sequence[int] = (),
) -> tuple[int, str]:
    """Run a program to its end as ``account`` and return its exit status and everything it printed.

    The output goes to a file: ``pg_ctl start`` leaves a server behind, and a server that held a pipe would
    keep the reader waiting for ever.

    Raises:
        OSError: the program could not be started (``PermissionError`` when the account cannot reach it).
        subprocess.TimeoutExpired: it was killed after ``timeout`` seconds.
    """
    with tempfile.TemporaryFile() as output:
        finished = subprocess.run(  # noqa: S603  # our own programs, no shell
            [os.fspath(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=_environment(),
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            pass_fds=inherit,
            timeout=timeout,
            check=False,
        )
        output.seek(0)
        return finished.returncode, output.read().decode(errors="replace").strip()


def can_enter(directory: Path, account: Account | None) -> bool:
    """Whether the account can make ``directory`` its working directory, judged by trying."""
    if account is None:
        return os.access(directory, os.X_OK)
    status, _ = run(["/bin/sh", "-c", 'cd -- "$1"', "sh", directory], account=account)
    return status == 0


def closed_parent(path: Path, account: Account) -> Path:
    """The outermost part of ``path`` that the account may not pass, by its mode bits; for messages."""
    for part in [*reversed(path.parents), path]:
        found = part.stat()
        if found.st_uid == account.uid:
            allowed = found.st_mode & 0o100
        elif found.st_gid == account.gid:
            allowed = found.st_mode & 0o010
        else:
            allowed = found.st_mode & 0o001
        if not allowed:
            return part
    return path


def _environment() -> dict[str, str]:
    """Ours without the PG* variables (they would redirect the programs), with messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C"}
