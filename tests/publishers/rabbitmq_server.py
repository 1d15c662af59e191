"""A real RabbitMQ broker in processes and a directory of its own, stopped by their pids."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import aio_pika
import pytest
import trustme

from fencepost.testing.publisher_conformance import Received, received_from

REQUIRE = "FENCEPOST_REQUIRE_SERVERS"
SCRIPTS = Path("/usr/lib/rabbitmq/bin")
"""Not the wrapper in /usr/sbin: that one changes the user, and starts a broker even for ``--help``."""
READY_SECONDS = 60.0
MAX_MESSAGE_BYTES = 100_000
"""Far below RabbitMQ's own limit, so that a test need not send 128 MiB."""
COOKIE = "fencepost-tests"
CERTIFICATE_USER = "certified"
CONFIG = f"""\
max_message_size = {MAX_MESSAGE_BYTES}
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
ssl_cert_login_from = common_name
"""


def check_installed() -> None:
    """Without the broker, skip the test, or fail where the servers are required."""
    if not SCRIPTS.joinpath("rabbitmq-server").exists() or shutil.which("epmd") is None:
        reason = f"no RabbitMQ in {SCRIPTS}: install rabbitmq-server"
        if os.environ.get("CI") or os.environ.get(REQUIRE) == "1":
            pytest.fail(reason)
        pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RabbitServer:
    """``rabbitmq-server`` on a port that stays the same over restarts, with an Erlang port mapper of its own."""

    def __init__(self, directory: Path) -> None:
        check_installed()
        self.port = port = free_port()
        self._log = directory / "server.log"
        self._node = f"fp{port}@localhost"
        config = directory / "rabbitmq.conf"
        config.write_text(CONFIG + self._tls(directory))
        directory.joinpath("enabled_plugins").write_text("[rabbitmq_auth_mechanism_ssl].\n")
        mapper_port = free_port()
        self._environment = os.environ | {
            "HOME": str(directory),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-kernel inet_dist_use_interface {{127,0,0,1}} -setcookie {COOKIE} +S 1:1 +sbwt none -noinput"
            ),
            # Makes the script replace itself by the virtual machine, so that our pid is the broker's.
            "RABBITMQ_ALLOW_INPUT": "1",
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self._mapper_command = ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"]
        self._mapper: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    def _tls(self, directory: Path) -> str:
        """Make the certificates, and return the settings of a TLS port whose clients may log in with one."""
        authority = trustme.CA()
        self.tls_port = free_port()
        self.ca, self.client_certificate = directory / "ca.pem", directory / "client.pem"
        authority.cert_pem.write_to_path(self.ca)
        server, client = (
            authority.issue_cert("127.0.0.1"),
            authority.issue_cert("client.test", common_name=CERTIFICATE_USER),
        )
        client.private_key_and_cert_chain_pem.write_to_path(self.client_certificate)
        server.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
        return (
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.cacertfile = {self.ca}\n"
            f"ssl_options.certfile = {directory / 'server.pem'}\n"
            f"ssl_options.keyfile = {directory / 'server.pem'}\n"
            "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = false\n"
        )

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def is_running(self) -> bool:
        return self._broker is not None

    def start(self) -> None:
        """Start the broker; `ready` tells when it answers."""
        if self._mapper is None:
            self._mapper = self._spawn(self._mapper_command)
        self._broker = self._spawn([str(SCRIPTS / "rabbitmq-server")])

    def stop(self) -> None:
        """Stop the broker at once, as a crash would; what it confirmed is on its disk."""
        process, self._broker = self._broker, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop everything."""
        self.stop()
        mapper, self._mapper = self._mapper, None
        if mapper is not None:
            mapper.kill()
            mapper.wait()

    def pause(self) -> None:
        assert self._broker is not None
        self._broker.send_signal(signal.SIGSTOP)
        # A signal is not yet a stop: a thread of the broker could still answer meanwhile.
        os.waitid(os.P_PID, self._broker.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        if self._broker is not None:
            self._broker.send_signal(signal.SIGCONT)

    def control(self, *arguments: str) -> str:
        """Run ``rabbitmqctl``; it takes a second or two to come up."""
        command = [
            str(SCRIPTS / "rabbitmqctl"),
            "--quiet",
            "-n",
            self._node,
            "--erlang-cookie",
            COOKIE,
            *arguments,
        ]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def connect(self) -> aio_pika.abc.AbstractConnection:
        """Return a connection of the tests' own once the broker answers."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                try:
                    return await aio_pika.connect(self.url)
                except (OSError, aio_pika.exceptions.AMQPError):
                    assert self._broker is not None
                    assert self._broker.poll() is None, self._log.read_text()
                    await asyncio.sleep(0.05)  # between two looks at the condition, which is "it answers"

    async def ready(self) -> None:
        """Return once the broker answers."""
        await (await self.connect()).close()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )


def as_received(message: aio_pika.abc.AbstractIncomingMessage) -> Received:
    """Decode a message by the documented rule: the content type is a property, where it fits."""
    headers = {name: str(value) for name, value in message.headers.items()}
    if message.content_type is not None:
        headers["Content-Type"] = message.content_type
    return received_from(message.body, headers)
