"""The fault proxy does what it says, also while the test's own loop is blocked."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from fencepost.testing.fault_proxy import FaultProxy

SECONDS = 5.0
SHORT = 0.1
"""How long we look for something that must not come."""


class Echo:
    """Answers each chunk with itself and keeps what it got."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.ended = threading.Event()
        self._more = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def has(self, data: bytes) -> bool:
        """Wait until it got all of this, or more."""
        with self._more:
            self._more.wait_for(lambda: len(self.got) >= len(data), SECONDS)
        return self.got == data

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65_536):
                    with self._more:
                        self.got += data
                        self._more.notify_all()
                    connection.sendall(data)
            except OSError:
                pass
            self.ended.set()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


def connected(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=SECONDS)


def connected_and_read(proxy: FaultProxy) -> bytes:
    with connected(proxy) as client:
        return client.recv(1)


def silent(client: socket.socket) -> bool:
    client.settimeout(SHORT)
    try:
        return not client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(SECONDS)


def test_everything_passes_both_ways_and_an_end_is_an_end(proxy: FaultProxy, echo: Echo) -> None:
    with connected(proxy) as client:
        data = bytes(range(256)) * 4_000
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        got = bytearray()
        while len(got) < len(data):
            got += client.recv(65_536)
        sender.join()
        assert got == data == echo.got
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        assert echo.ended.wait(SECONDS)


def test_refused_and_healed_at_the_same_port(proxy: FaultProxy) -> None:
    port = proxy.port
    with connected(proxy) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)
    proxy.heal()
    assert proxy.port == port
    with connected(proxy) as client:
        client.sendall(b"y")
        assert client.recv(1) == b"y"


def test_a_reset_reaches_both_sides_and_new_connections_pass(proxy: FaultProxy, echo: Echo) -> None:
    with connected(proxy) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        proxy.reset()
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert echo.ended.wait(SECONDS)
    with connected(proxy) as client:
        client.sendall(b"y")
        assert client.recv(1) == b"y"


def test_muted_the_server_gets_it_and_the_answer_comes_late(proxy: FaultProxy, echo: Echo) -> None:
    with connected(proxy) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        proxy.mute()
        client.sendall(b"b")
        assert silent(client)
        assert echo.has(b"ab")
        proxy.heal()
        assert client.recv(1) == b"b"


def test_muted_before_it_connects_the_server_gets_it(proxy: FaultProxy, echo: Echo) -> None:
    proxy.mute()
    with connected(proxy) as client:
        client.sendall(b"b")
        assert silent(client)
        assert echo.has(b"b")


def test_in_a_black_hole_nothing_arrives_and_afterwards_it_does(proxy: FaultProxy, echo: Echo) -> None:
    with connected(proxy) as old:
        old.sendall(b"a")
        assert old.recv(1) == b"a"
        proxy.black_hole()
        old.sendall(b"b")
        with connected(proxy) as new:
            new.sendall(b"lost")
            assert silent(new)
            assert silent(old)
            assert echo.got == b"a"
            proxy.heal()
            assert old.recv(1) == b"b"
            with pytest.raises(ConnectionResetError):
                new.recv(1)
        assert echo.got == b"ab", "a connection that never was has sent nothing"


def test_cut_after_so_many_bytes_of_the_client(proxy: FaultProxy, echo: Echo) -> None:
    with connected(proxy) as client, connected(proxy) as other:
        client.sendall(b"123")
        assert client.recv(3) == b"123"
        proxy.cut_after(4)
        client.sendall(b"45")
        assert client.recv(2) == b"45"
        client.sendall(b"6789")
        with pytest.raises(ConnectionResetError):
            client.recv(3)  # "67" is never answered: both sides are reset at once
        assert bytes(echo.got) in (b"12345", b"1234567"), "a reset may overtake what was just forwarded"
        assert proxy.cuts == 1
        other.sendall(b"x")
        assert other.recv(1) == b"x"


def test_cut_instead_of_an_answer(proxy: FaultProxy, echo: Echo) -> None:
    with connected(proxy) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        proxy.cut_answer()
        client.sendall(b"b")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert echo.has(b"ab")
        assert (proxy.cuts, proxy.connections) == (1, 1)


def test_a_server_that_is_gone_is_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with FaultProxy("127.0.0.1", port) as proxy, pytest.raises(ConnectionResetError):
        connected_and_read(proxy)  # the reset may come while connect still waits for its turn


def test_closed_it_says_so_and_can_be_started_again(echo: Echo) -> None:
    proxy = FaultProxy("127.0.0.1", echo.port)
    proxy.close()
    with pytest.raises(RuntimeError, match="not started"):
        proxy.mute()
    for _ in range(2):
        with proxy, connected(proxy) as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            proxy.mute()
            client.sendall(b"held back")


def asked(client: socket.socket) -> bytes:
    client.sendall(b"?")  # one that was half open for the kernel hears of its end only now
    return client.recv(1)


class Storm(ExitStack):
    """Connects again and again, until it is refused or the listener's backlog might be full."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.connected: list[socket.socket] = []
        self.began = threading.Event()
        self._port = port
        self._thread = threading.Thread(target=self._connect)
        self._thread.start()

    def clients(self) -> list[socket.socket]:
        self._thread.join(SECONDS)
        return self.connected

    def _connect(self) -> None:
        with suppress(ConnectionError):
            while len(self.connected) < 100:
                client = socket.create_connection(("127.0.0.1", self._port), timeout=SECONDS)
                self.connected.append(self.enter_context(client))
                self.began.set()


@pytest.mark.parametrize("end", [FaultProxy.refuse, FaultProxy.close])
def test_what_connects_in_its_last_moment_is_reset(echo: Echo, end: Callable[[FaultProxy], None]) -> None:
    for _ in range(20):
        with FaultProxy("127.0.0.1", echo.port) as proxy, Storm(proxy.port) as storm:
            assert storm.began.wait(SECONDS)
            end(proxy)
            for client in storm.clients():
                with pytest.raises(ConnectionError):
                    asked(client)
    gc.collect()  # what was left open warns here, and a warning is a failure
