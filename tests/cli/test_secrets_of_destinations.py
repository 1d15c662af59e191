"""No secret of a destination in any output, log or row: not from its URL, a variable or a file."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from fencepost.errors import PublishFailure
from fencepost.publishers.callable import as_publisher
from fencepost.publishers.registry import publisher_for
from fencepost.testing import sample_delivery, sample_message
from tests.cli.program import Program, Result, enqueue

Call = Callable[..., Result]

SECRET = "hunter2"  # noqa: S105 - it opens nothing
VARIABLE, SIGNING, FILE = "THE_SECRET", "THE_KEY", "secret.txt"
KEY = "whsec_" + base64.b64encode(SECRET.encode() * 4).decode()
ENCODED = base64.b64encode(f"u{SECRET}:p@{SECRET}".encode()).decode().rstrip("=")
TIMEOUT = "timeout=0.5"

OURS = "allow_private=on"

LOGIN = f"u{SECRET}:p%40{SECRET}"
FROM_ELSEWHERE = f"user_env={VARIABLE}&password_file={FILE}"
KEYS_FROM_ELSEWHERE = f"access_key_env={VARIABLE}&secret_key_file={FILE}&session_token_env={VARIABLE}"

DESTINATIONS = {
    "http": f"http://{LOGIN}@HOST/hook?query=key%3D{SECRET}%26b%3D1&{OURS}",
    "http-env": f"http://HOST/hook?{FROM_ELSEWHERE}&secret_env={SIGNING}&{OURS}",
    "http-token": f"http://HOST/hook?token_file={FILE}&{OURS}",
    "https": f"https://{LOGIN}@HOST/hook?query={SECRET}&{OURS}",
    "https-env": f"https://HOST/hook?token_env={VARIABLE}&secret_env={SIGNING}&{OURS}",
    "nats": f"nats://{LOGIN}@HOST?stream=S",
    "nats-token": f"nats://{SECRET}@HOST",
    "nats-env": f"nats://HOST?{FROM_ELSEWHERE}",
    "nats-token-env": f"nats://HOST?token_env={VARIABLE}",
    "kafka": f"kafka://{LOGIN}@HOST?sasl=PLAIN",
    "kafka-scram": f"kafka://{LOGIN}@HOST?sasl=SCRAM-SHA-256&tls=on",
    "kafka-env": f"kafka://HOST?sasl=PLAIN&{FROM_ELSEWHERE}",
    "amqp": f"amqp://{LOGIN}@HOST/shop?exchange=events",
    "amqp-env": f"amqp://HOST/shop?exchange=events&{FROM_ELSEWHERE}",
    "amqps": f"amqps://{LOGIN}@HOST/shop?exchange=events",
    "amqps-env": f"amqps://HOST/shop?exchange=events&{FROM_ELSEWHERE}",
    "redis": f"redis://{LOGIN}@HOST/0?stream=events",
    "redis-env": f"redis://HOST/0?stream=events&{FROM_ELSEWHERE}",
    "rediss": f"rediss://{LOGIN}@HOST/0?stream=events",
    "rediss-env": f"rediss://HOST/0?stream=events&{FROM_ELSEWHERE}",
    "mqtt": f"mqtt://{LOGIN}@HOST",
    "mqtt-env": f"mqtt://HOST?{FROM_ELSEWHERE}",
    "mqtts": f"mqtts://{LOGIN}@HOST",
    "mqtts-env": f"mqtts://HOST?{FROM_ELSEWHERE}",
    "sqs": f"sqs://{LOGIN}@eu-west-1/123456789012/q?endpoint=http://HOST",
    "sqs-env": f"sqs://eu-west-1/123456789012/q?endpoint=http://HOST&{KEYS_FROM_ELSEWHERE}",
    "sns": f"sns://{LOGIN}@eu-west-1/123456789012/t?endpoint=http://HOST",
    "sns-env": f"sns://eu-west-1/123456789012/t?endpoint=http://HOST&{KEYS_FROM_ELSEWHERE}",
}


def url_of(name: str, port: int) -> str:
    url = DESTINATIONS[name].replace("HOST", f"127.0.0.1:{port}")
    return f"{url}{'&' if '?' in url else '?'}{TIMEOUT}"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"v{SECRET}")
    monkeypatch.setenv(SIGNING, KEY)
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath(FILE).write_text(f"f{SECRET}\n")


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Parrot:
    """Says back whatever it is told, and hangs up; a client's error may quote it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(0.5)
        try:
            said = connection.recv(65_536)
            for start in (b"", b"-ERR ", b"HTTP/1.1 401 No\r\nContent-Length: 9999\r\n\r\n"):
                connection.sendall(start + said + b"\r\n")
        except OSError:
            return


@pytest.fixture
def parrot() -> Iterator[Parrot]:
    parrot = Parrot()
    yield parrot
    parrot.close()


def holds_secret(text: str) -> bool:
    return any(secret in text for secret in (SECRET, ENCODED, KEY.removeprefix("whsec_")))


@pytest.mark.parametrize("name", sorted(DESTINATIONS))
@pytest.mark.parametrize("server", ["closed", "parrot"])
def test_not_in_what_a_publisher_raises_logs_or_is_shown_as(
    name: str, server: str, closed_port: int, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    port = closed_port if server == "closed" else request.getfixturevalue("parrot").port

    async def publish() -> str:
        publisher = publisher_for(url_of(name, port))
        invocable = as_publisher(publisher)
        shown = f"{publisher!r} {publisher} {invocable} "
        for message in (sample_message(), sample_message()):
            with pytest.raises(PublishFailure) as caught:
                await invocable.call(message, sample_delivery())
            error: BaseException | None = caught.value
            while error is not None:
                shown += f"{error!r} {error} "
                error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if invocable.close is not None:
            await invocable.close()
        return shown

    shown = asyncio.run(publish())
    assert not holds_secret(shown), shown
    assert not holds_secret(caplog.text), caplog.text


def test_not_in_any_output_nor_in_the_database(
    configured: Program, store: str, folder: Path, closed_port: int
) -> None:
    folder.joinpath(FILE).write_text(f"f{SECRET}\n")
    routes = "".join(f'"{name}" = "{url_of(name, closed_port)}"\n' for name in DESTINATIONS)
    folder.joinpath("fencepost.toml").write_text(f"[routes]\n{routes}")
    configured.environ = {**configured.environ, VARIABLE: f"v{SECRET}", SIGNING: KEY}
    for name in DESTINATIONS:
        enqueue(store, event_type=name)
    results = [
        configured.run("config", "show"),
        configured.run("config", "check", "--json", "--debug"),
        configured.run("dispatch", "--once", "--log-level", "debug", "--debug", "--max-attempts", "2"),
        configured.run("dispatch", "--once", "--log-level", "debug", "--log-json", "--backoff-base", "1ms"),
        configured.run("status", "--json"),
    ]
    for result in results:
        assert not holds_secret(result.out), result.out
        assert not holds_secret(result.err), result.err
    with psycopg.connect(store) as connection:
        rows = connection.execute("SELECT event_type, last_error FROM outbox ORDER BY event_type").fetchall()
    assert [row[0] for row in rows] == sorted(DESTINATIONS)
    assert all(row[1] for row in rows), "each of them has failed, and says why"
    assert not holds_secret(str(rows)), rows


@pytest.mark.parametrize("name", sorted(DESTINATIONS))
def test_not_when_the_address_is_wrong(call: Call, name: str, folder: Path) -> None:
    right = url_of(name, 1)
    for wrong in (
        f"{right}&bogus={SECRET}",
        f"{right}&{TIMEOUT}",
        right.replace(TIMEOUT, f"timeout={SECRET}"),
        right.replace("127.0.0.1:1", f"127.0.0.1:{SECRET}"),
        right.replace("%40", "@"),
        right.replace(LOGIN, f"u:1/{SECRET}"),
        right.replace(LOGIN, f"u:x/{SECRET}"),
        right.replace("127.0.0.1:1", "127.0.0.1:1,").replace("eu-west-1", ""),
        right + f"#{SECRET}",
    ):
        folder.joinpath("fencepost.toml").write_text(f'store = "postgresql://h/d"\n[routes]\n"*" = "{wrong}"\n')
        for arguments in (
            ("config", "check"),
            ("config", "show"),
            ("dispatch", "--once"),
            ("dispatch", "--debug"),
        ):
            result = call(*arguments)
            assert not holds_secret(result.out + result.err), (arguments, wrong, result)
