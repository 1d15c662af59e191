"""The PostgreSQL servers of a run: a primary, a streaming standby, and what can be done to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from fencepost.embedded import PostgresServer
from fencepost.embedded.account import run, server_account
from fencepost.embedded.launcher import Setting
from lab.chaos import disk

SETTINGS: dict[str, Setting] = {
    # Processes are killed here, and no machine loses its power: what was written once is kept by the kernel.
    "fsync": False,
    "full_page_writes": False,
    # This must be on, since a server that is killed loses what it has not written.
    "synchronous_commit": "on",
    "max_connections": 150,
    "shared_buffers": "16MB",
    "max_wal_size": "96MB",
    "min_wal_size": "32MB",
    "wal_keep_size": "64MB",
    "wal_retrieve_retry_interval": "100ms",
    "checkpoint_timeout": "60s",
    "track_commit_timestamp": True,
    "log_line_prefix": "%m [%p] %a ",
}
STANDBY_SECONDS = 30.0
LOOK_SECONDS = 0.02

Connection = psycopg.Connection[Any]


class ClusterError(Exception):
    """A server did not do as it was told, which is a fault of the rig and no finding."""


class Cluster:
    """A primary and, where there is one, its standby; each on a disk of its own.

    Args:
        folder: where their data goes.
        bin_dir: PostgreSQL's programs.
        disk: the size of the tmpfs that each gets, which can be filled, in MB; None for none.
    """

    def __init__(self, folder: Path, bin_dir: Path, *, disk: int | None) -> None:
        self._folder, self._bin_dir, self._disk = folder, bin_dir, disk
        self._made = 0
        self._mounts: dict[Path, contextlib.ExitStack] = {}
        self._servers: list[PostgresServer] = []
        self.standby: PostgresServer | None = None
        try:
            self.primary = self._new_server()
            self.primary.start()
        except BaseException:  # told to end, for example
            self.close()
            raise

    # --- connections ------------------------------------------------------------------------------------

    def connect(self, server: PostgresServer | None = None) -> Connection:
        """Return a connection of the conductor's own, straight to the server."""
        url = (server or self.primary).url
        conn = psycopg.connect(url, autocommit=True, connect_timeout=5, application_name="conductor")
        conn.execute("SET default_transaction_read_only = off")
        conn.execute("SET synchronous_commit = local")  # it must not wait for a standby that is being changed
        return conn

    def tell(self, statement: LiteralString, server: PostgresServer | None = None) -> list[tuple[Any, ...]]:
        """Run one statement."""
        with self.connect(server) as conn:
            cursor = conn.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def reload(self, *settings: LiteralString, server: PostgresServer | None = None) -> None:
        """Change settings of a running server, each the rest of an ALTER SYSTEM."""
        with self.connect(server) as conn:
            for setting in settings:
                conn.execute("ALTER SYSTEM " + setting)
            conn.execute("SELECT pg_reload_conf()")

    # --- the standby ------------------------------------------------------------------------------------

    def add_standby(self) -> None:
        """Copy the primary, and let it wait for the copy with each commit from now on."""
        place = self._place()
        account = server_account(place / "nothing")
        (place / "fencepost.lock").touch()
        cluster = place / "cluster"
        cluster.mkdir(mode=0o711)
        shutil.copy2(self.primary.directory / "cluster" / "password", cluster / "password")
        for made in (cluster / "postgres.log", cluster / "data"):
            made.touch(0o600) if made.suffix else made.mkdir(mode=0o700)
            if account is not None:
                os.chown(made, account.uid, account.gid)
        url = self.primary.url
        argv = [str(self._runnable() / "pg_basebackup"), "-D", "data", "-d", url, "-R", "-c", "fast", "--no-sync"]
        status, printed = run(argv, account=account, cwd=cluster, timeout=60)
        if status != 0:
            raise ClusterError(f"pg_basebackup: {printed}")
        standby = self._server_in(place)
        standby.start()
        self.reload("RESET synchronous_standby_names", server=standby)
        self.standby = standby
        self.await_streaming()
        self.reload("SET synchronous_standby_names = '*'")

    def await_streaming(self) -> None:
        """Wait until the standby follows.

        Raises:
            ClusterError: it does not.
        """
        ends = time.monotonic() + STANDBY_SECONDS
        while time.monotonic() < ends:
            with contextlib.suppress(psycopg.OperationalError):
                if self.tell("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"):
                    return
            time.sleep(LOOK_SECONDS)
        raise ClusterError("the standby does not follow the primary")

    def detach_standby(self) -> None:
        """Let commits wait for the standby no longer, and the standby receive nothing more."""
        assert self.standby is not None  # noqa: S101 - whoever takes it away has looked
        self.reload("RESET synchronous_standby_names")
        self.reload("SET primary_conninfo = ''", server=self.standby)
        ends = time.monotonic() + STANDBY_SECONDS
        while self.tell("SELECT 1 FROM pg_stat_wal_receiver", self.standby):
            if time.monotonic() > ends:
                raise ClusterError("the standby does not let go of the primary")
            time.sleep(LOOK_SECONDS)

    def promote(self) -> None:
        """End the primary at once, and make the standby the primary."""
        assert self.standby is not None  # noqa: S101 - as above
        old, new = self.primary, self.standby
        old.kill()
        if self.tell("SELECT pg_promote(true, 30)", new) != [(True,)]:
            raise ClusterError("the standby was not promoted")
        self.primary, self.standby = new, None
        self._servers.remove(old)
        self._remove(old.directory)

    # --- disks ------------------------------------------------------------------------------------------

    def fill_disk(self) -> int:
        """Leave nothing free on the primary's disk."""
        return disk.fill(self.primary.directory)

    def empty_disk(self) -> None:
        """Free it, and start the primary if it has ended of that."""
        assert self._disk is not None  # noqa: S101 - whoever filled it has looked
        disk.empty(self.primary.directory, self._disk)

    def log(self) -> str:
        """Return what the primary has logged."""
        return (self.primary.directory / "cluster" / "postgres.log").read_text("utf-8", errors="replace")

    def close(self) -> None:
        """End the servers, and remove their data."""
        for server in self._servers:
            server.kill()
        for place in list(self._mounts):
            self._remove(place)

    def _new_server(self) -> PostgresServer:
        return self._server_in(self._place())

    def _server_in(self, place: Path) -> PostgresServer:
        server = PostgresServer.create_or_open(place, bin_dir=self._bin_dir, settings=SETTINGS)
        self._servers.append(server)
        return server

    def _place(self) -> Path:
        """A folder for a server, on a disk of its own where it can be."""
        self._made += 1
        place = self._folder / f"pg{self._made}"
        place.mkdir(mode=0o711)
        mounts = self._mounts[place] = contextlib.ExitStack()
        if self._disk is not None:
            mounts.enter_context(disk.small_disk(place, self._disk))
        return place

    def _remove(self, place: Path) -> None:
        self._mounts.pop(place).close()
        shutil.rmtree(place, ignore_errors=True)

    def _runnable(self) -> Path:
        from fencepost.embedded import binaries

        return binaries.runnable(self._bin_dir, server_account(self._folder / "nothing"))
