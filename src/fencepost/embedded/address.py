"""``embedded:`` addresses: a server that runs for as long as somebody uses its directory.

Every user holds a shared lock on the file ``users`` for as long as it uses the server; who comes or goes
holds ``gate`` meanwhile. Whoever leaves and can lock ``users`` for itself alone was the last, and stops the
server. The kernel releases the locks of a process however it ends, so a crashed user is not counted for
ever: at worst its server keeps running until the next user leaves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fencepost.embedded.launcher import PostgresServer
from fencepost.embedded.preparation import refuse_other_systems, reporting
from fencepost.errors import EmbeddedError

_SCHEME = "embedded:"


def is_embedded(address: str) -> bool:
    """Whether ``address`` asks for the embedded server."""
    return address.startswith(_SCHEME)


@contextmanager
def open_store(address: str) -> Iterator[str]:
    """The database URL to connect to for ``address``, valid for the length of the ``with`` block.

    ``embedded:DIRECTORY`` starts the PostgreSQL server in that directory, creating it at first use, or joins
    it when another process or thread uses it already; the last user to leave stops it. The directory may be
    relative or start with ``~``; it is taken as it is written, spaces and percent signs included. Plain
    ``embedded:`` means ``FENCEPOST_EMBEDDED_DIR``, or else ``/var/lib/fencepost/embedded`` for root and
    ``fencepost/embedded`` in the user's data directory for others. A child process forked inside the block
    may use the URL while the parent does, and never stops the server. Any other address is given back
    unchanged.

    Raises:
        EmbeddedError: the server cannot be created or started; the message names the remedy.
    """
    if not is_embedded(address):
        yield address
        return
    refuse_other_systems()
    use = _join(_directory(address))
    try:
        yield use.url
    finally:
        _leave(use)


@dataclass(frozen=True)
class _Use:
    server: PostgresServer
    url: str
    lock: int
    pid: int


def _directory(address: str) -> Path:
    """The directory that an ``embedded:`` address means."""
    written = address.removeprefix(_SCHEME) or os.environ.get("FENCEPOST_EMBEDDED_DIR") or _default_directory()
    if written.startswith("//") and not written.startswith("///"):
        raise EmbeddedError(f"{address!r} has no directory: write embedded:/some/directory, without //")
    if "\0" in written:
        raise EmbeddedError(f"{address!r} has a NUL character in its directory")
    try:
        return Path(os.path.abspath(Path(written).expanduser()))
    except RuntimeError as error:  # no such user, or no home directory
        raise EmbeddedError(f"{address!r}: {error}") from error


def _default_directory() -> str:
    if os.geteuid() == 0:
        return "/var/lib/fencepost/embedded"
    data_home = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification has relative values ignored.
    base = data_home if os.path.isabs(data_home) else "~/.local/share"
    return os.path.join(base, "fencepost", "embedded")


def _join(directory: Path) -> _Use:
    from fencepost.embedded import locks

    server = PostgresServer.create_or_open(directory)
    with reporting(directory), _gate(directory):
        lock = locks.open_lock_file(directory / "users")
        try:
            if not locks.try_shared(lock):
                raise EmbeddedError(
                    f"a process forked by a user that crashed while leaving still holds {directory / 'users'}: "
                    "find it (fuser, lsof) and end it"
                )
            server.start()
            return _Use(server, server.url, lock, os.getpid())
        except BaseException:
            _let_go(server, lock)
            raise


def _leave(use: _Use) -> None:
    if os.getpid() != use.pid:
        os.close(use.lock)  # our copy; the lock itself is the parent's
        return
    directory = use.server.directory
    if not directory.exists():
        use.server.kill()  # somebody removed it under the server: there is nothing left to keep
        os.close(use.lock)
        return
    with reporting(directory), _gate(directory):
        _let_go(use.server, use.lock)


def _let_go(server: PostgresServer, lock: int) -> None:
    """Stop being a user, and stop the server if that was the last. The caller holds the gate."""
    from fencepost.embedded import locks

    locks.unlock_and_close(lock)
    # A new descriptor: a forked child may share the old one, and would keep an exclusive lock on it alive.
    alone = locks.open_lock_file(server.directory / "users")
    try:
        if locks.try_exclusive(alone):
            server.stop()
    finally:
        locks.unlock_and_close(alone)


def _gate(directory: Path) -> AbstractContextManager[None]:
    from fencepost.embedded.locks import exclusive

    return exclusive(directory / "gate")
