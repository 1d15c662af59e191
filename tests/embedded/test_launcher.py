"""One server: starting, stopping, and starting again after every kind of accident."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from fencepost.embedded import PostgresServer, binaries, launcher, ports, processes
from fencepost.embedded.account import run, server_account
from fencepost.embedded.processes import wait_until
from fencepost.errors import EmbeddedError
from tests.embedded.users import program_environment
from tests.postgres import SETTINGS

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its server to somebody else")


def value(server: PostgresServer, query: str) -> object:
    """The first column of the only row."""
    with psycopg.connect(server.url) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return row[0]


def live(server: PostgresServer) -> list[int]:
    return processes.find(processes.cluster_name(server.directory / "cluster"))


def pid_file(server: PostgresServer) -> Path:
    return server.directory / "cluster" / "data" / "postmaster.pid"


@pytest.fixture
def listener() -> Iterator[Callable[[int], socket.socket]]:
    """Occupy ports for the length of the test."""
    opened = []

    def occupy(port: int) -> socket.socket:
        taken = socket.create_server(("127.0.0.1", port))
        opened.append(taken)
        return taken

    yield occupy
    for each in opened:
        each.close()


class TestARunningServer:
    def test_accepts_its_password_only(self, server: PostgresServer) -> None:
        server.start()
        assert server.url.startswith("postgresql://postgres:")
        assert server.url.endswith(f"@127.0.0.1:{server.port}/postgres")
        assert value(server, "SELECT current_user") == "postgres"
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"postgresql://postgres:wrong@127.0.0.1:{server.port}/postgres")

    def test_is_the_same_for_another_object(self, server: PostgresServer) -> None:
        server.start()
        other = PostgresServer.create_or_open(server.directory)
        other.start()
        assert (other.pid, other.url) == (server.pid, server.url)
        other.stop()
        assert not server.running

    def test_has_the_settings_of_its_last_start(self, server: PostgresServer) -> None:
        odd = r"a 'quoted' \ back#slash"
        settings = {**SETTINGS, "log_line_prefix": odd, "fencepost.test": "x", "geqo": False}
        changed = PostgresServer.create_or_open(server.directory, settings=settings)
        changed.start()
        assert value(changed, "SHOW log_line_prefix") == odd
        assert value(changed, "SHOW geqo") == "off"
        assert value(changed, "SELECT current_setting('fencepost.test')") == "x"

    def test_ends_with_all_its_processes(self, server: PostgresServer) -> None:
        server.start()
        port = server.port
        assert server.pid in live(server)
        server.stop()
        assert live(server) == []
        assert not ports.listening(port)
        assert not server.running
        server.stop()
        with pytest.raises(EmbeddedError, match="not running"):
            _ = server.url

    def test_keeps_its_files_to_itself(self, server: PostgresServer) -> None:
        server.start()
        password = server.directory / "cluster" / "password"
        assert stat.S_IMODE(password.stat().st_mode) == 0o600
        assert stat.S_IMODE(server.log_path.stat().st_mode) == 0o600
        assert not password.with_name("password-for-initdb").exists()


class TestThePort:
    def test_stays_the_same_after_a_restart(self, server: PostgresServer) -> None:
        server.start()
        port = server.port
        server.stop()
        server.start()
        assert server.port == port

    def test_changes_when_something_else_took_it(
        self, server: PostgresServer, listener: Callable[[int], socket.socket]
    ) -> None:
        server.start()
        port = server.port
        server.stop()
        listener(port)
        server.start()
        assert server.port != port
        assert value(server, "SELECT 1") == 1

    def test_is_chosen_again_when_something_took_it_just_before(
        self,
        server: PostgresServer,
        listener: Callable[[int], socket.socket],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        occupied = listener(0).getsockname()[1]
        free = ports.free_port()
        offered = iter([occupied, free])
        monkeypatch.setattr(launcher, "free_port", lambda: next(offered))
        monkeypatch.setattr(launcher, "taken", lambda port: True)
        server.start()
        assert server.port == free

    def test_is_found_free_by_binding_it(self, listener: Callable[[int], socket.socket]) -> None:
        port = ports.free_port()
        assert not ports.taken(port)
        listener(port)
        assert ports.taken(port)


def test_a_failed_start_shows_the_end_of_the_log(server: PostgresServer) -> None:
    broken = PostgresServer.create_or_open(server.directory, settings={"wal_level": "nonsense"})
    with pytest.raises(EmbeddedError, match="wal_level") as caught:
        broken.start()
    assert str(server.log_path) in str(caught.value)
    assert not broken.running
    server.start()
    assert server.running


def test_a_large_log_makes_room_for_a_new_one(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start()
    server.stop()
    before = server.log_path.read_text()
    monkeypatch.setattr(launcher, "_LARGE_LOG", 10)
    server.start()
    assert server.log_path.with_name("postgres.log.1").read_text() == before
    assert "ready to accept connections" in server.log_path.read_text()


class TestAfterACrash:
    def test_of_everything_the_committed_data_is_there(self, server: PostgresServer) -> None:
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute("CREATE TABLE survivor AS SELECT 7 AS id")
        server.kill()
        assert not server.running
        assert live(server) == []
        assert pid_file(server).exists()
        server.start()
        assert value(server, "SELECT id FROM survivor") == 7

    def test_of_the_postmaster_a_backend_that_did_not_notice_is_ended(self, server: PostgresServer) -> None:
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            backend = connection.info.backend_pid
            busy = threading.Thread(target=lambda: self._compute(connection))
            busy.start()
            assert wait_until(
                lambda: value(server, f"SELECT state FROM pg_stat_activity WHERE pid = {backend}") == "active",
                30,
            )
            # Stopped, it cannot notice the end of its postmaster, as in a long computation.
            os.kill(backend, signal.SIGSTOP)
            os.kill(server.pid, signal.SIGKILL)
            assert wait_until(lambda: not server.running, 30)
            assert backend in live(server)
            server.start()
            busy.join(30)
            assert not busy.is_alive()
            assert backend not in live(server)
        assert value(server, "SELECT 1") == 1

    @staticmethod
    def _compute(connection: psycopg.Connection) -> None:
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_sleep(100)")

    def test_a_pid_file_that_names_another_program_is_no_obstacle(self, server: PostgresServer) -> None:
        self._forge(server, os.getpid())
        server.start()
        assert server.running
        assert server.pid != os.getpid()

    def test_a_pid_file_that_names_a_zombie_is_no_obstacle(self, server: PostgresServer) -> None:
        account = server_account(pid_file(server).parent)
        with subprocess.Popen(["/bin/true"], user=account.uid if account else None) as ended:
            # Nobody waits for it before the end of the block, so it stays in the process table.
            assert wait_until(lambda: processes.command_line(ended.pid) is None, 30)
            self._forge(server, ended.pid)
            server.start()
            assert server.running

    def test_a_pid_file_of_another_cluster_of_ours_is_no_obstacle(
        self, server: PostgresServer, postgres18: PostgresServer
    ) -> None:
        self._forge(server, postgres18.pid)
        server.start()
        assert server.running
        assert postgres18.running

    def test_a_pid_file_that_was_half_written_is_no_obstacle(self, server: PostgresServer) -> None:
        pid_file(server).write_text("")
        server.start()
        assert server.running

    @staticmethod
    def _forge(server: PostgresServer, pid: int) -> None:
        data = pid_file(server).parent
        pid_file(server).write_text(f"{pid}\n{data}\n1\n5432\n\n127.0.0.1\n 0 0\nready\n")
        owner = data.stat()
        os.chown(pid_file(server), owner.st_uid, owner.st_gid)


def test_a_server_that_somebody_started_by_hand_is_refused_and_left_alone(server: PostgresServer) -> None:
    data = pid_file(server).parent
    account = server_account(data)
    pg_ctl = [str(binaries.runnable(binaries.wheel_bin_dir(), account) / "pg_ctl"), "-D", str(data)]
    # A start first, so that there are settings to start with.
    server.start()
    server.stop()
    assert run([*pg_ctl, "-w", "-l", str(data / "by-hand.log"), "start"], account=account)[0] == 0
    try:
        by_hand = int(pid_file(server).read_text().split()[0])
        with pytest.raises(EmbeddedError, match=f"process {by_hand} "):
            server.start()
        assert int(pid_file(server).read_text().split()[0]) == by_hand
        assert processes.command_line(by_hand)
    finally:
        assert run([*pg_ctl, "-m", "immediate", "-w", "stop"], account=account)[0] == 0
    server.start()
    assert server.running


def test_a_server_in_another_container_is_refused(server: PostgresServer) -> None:
    """It cannot be seen, but it holds the lock that every process of a server inherits."""
    server.start()
    server.stop()
    with server.directory.joinpath("cluster", "alive").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedError, match="another server"):
            server.start()
    server.start()
    with (
        server.directory.joinpath("cluster", "alive").open() as wanted,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(wanted, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_data_of_another_major_version_is_refused(server: PostgresServer) -> None:
    version = pid_file(server).with_name("PG_VERSION")
    written = version.read_text()
    version.write_text("14\n")
    try:
        with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 14, .* PostgreSQL 18"):
            PostgresServer.create_or_open(server.directory)
    finally:
        version.write_text(written)


class TestTheDirectory:
    def test_with_other_contents_is_refused_untouched(self, directory: Path) -> None:
        directory.joinpath("letter").write_text("dear")
        before = directory.stat()
        with pytest.raises(EmbeddedError, match=f"{directory} is not empty"):
            PostgresServer.create_or_open(directory)
        assert directory.stat() == before
        assert [path.name for path in directory.iterdir()] == ["letter"]

    def test_that_is_a_file_is_refused(self, directory: Path) -> None:
        directory.joinpath("file").write_text("x")
        for name in ("file", "file/below"):
            with pytest.raises(EmbeddedError, match="cannot use"):
                PostgresServer.create_or_open(directory / name)
        assert [path.name for path in directory.iterdir()] == ["file"]

    @as_root
    def test_that_the_server_cannot_reach_is_refused_and_stays_closed(self, directory: Path) -> None:
        closed = directory / "closed"
        closed.mkdir(mode=0o700)
        before = closed.stat()
        with pytest.raises(EmbeddedError, match=rf"because {closed} is closed .*chmod o\+x {closed}"):
            PostgresServer.create_or_open(closed / "new" / "pg")
        assert closed.stat() == before
        assert list(closed.iterdir()) == []

    def test_may_be_deep_and_is_created_with_its_parents_and_nothing_above_changes(self, directory: Path) -> None:
        deep = directory.joinpath(*["long" * 20] * 3, "pg")
        before = _permissions(directory)
        umask = os.umask(0o077)
        try:
            server = PostgresServer.create_or_open(deep, settings=SETTINGS)
            server.start()
        finally:
            os.umask(umask)
        assert value(server, "SELECT 1") == 1
        server.stop("immediate")
        assert _permissions(directory) == before

    def test_survives_an_interrupted_initdb(self, directory: Path) -> None:
        program = (
            "import sys; from fencepost.embedded import PostgresServer; PostgresServer.create_or_open(sys.argv[1])"
        )
        target = directory / "pg"
        with subprocess.Popen(
            [sys.executable, "-c", program, target], env=program_environment(), start_new_session=True
        ) as process:
            under_way = "draft-*/data/base/1/*"
            assert wait_until(lambda: any(target.glob(under_way)) or process.poll() is not None, 60)
            assert process.poll() is None
            os.killpg(process.pid, signal.SIGKILL)
        assert not target.joinpath("cluster").exists()
        server = PostgresServer.create_or_open(target, settings=SETTINGS)
        server.start()
        assert value(server, "SELECT 1") == 1
        assert list(target.glob("draft-*")) == []
        server.stop("immediate")


def _permissions(directory: Path) -> list[tuple[int, int, int]]:
    found = [path.stat() for path in (directory, *directory.parents)]
    return [(each.st_mode, each.st_uid, each.st_gid) for each in found]
