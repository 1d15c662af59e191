"""A real RabbitMQ broker in processes and a directory of its own, stopped by their pids."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import aio_pika
import trustme

from fencepost.embedded.ports import free_port
from fencepost.testing.publisher_conformance import Received, received_from
from tests.servers import ServerProcess, found

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
"""Not the wrapper in /usr/sbin: that one changes the user, and starts a broker even for ``--help``."""
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


class RabbitServer(ServerProcess):
    """``rabbitmq-server`` with an Erlang port mapper of its own; `ready` and `connect` tell when it answers."""

    ready_seconds = 60.0

    def __init__(self, directory: Path) -> None:
        program = found("rabbitmq-server", "install rabbitmq-server", SCRIPTS)
        mapper, mapper_port = found("epmd", "install rabbitmq-server"), free_port()
        port = free_port()
        self._node = f"fp{port}@localhost"
        config = directory / "rabbitmq.conf"
        config.write_text(CONFIG + self._tls(directory))
        directory.joinpath("enabled_plugins").write_text("[rabbitmq_auth_mechanism_ssl].\n")
        self._variables = os.environ | {
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
            "ERL_CRASH_DUMP": str(directory / "erl_crash.dump"),  # and not where the tests were started
            # Makes the script replace itself by the virtual machine, so that our pid is the broker's.
            "RABBITMQ_ALLOW_INPUT": "1",
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        super().__init__(directory, port, [program], self._variables)
        self._mapper = ServerProcess(
            directory, mapper_port, [mapper, "-port", str(mapper_port), "-address", "127.0.0.1"], self._variables
        )

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

    def start(self) -> None:
        if not self._mapper.is_running:
            self._mapper.start()
        super().start()

    def stop(self) -> None:
        """Stop the broker at once, as a crash would; what it confirmed is on its disk."""
        self.kill()

    def close(self) -> None:
        super().close()
        self._mapper.kill()

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
            command, env=self._variables, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def connect(self) -> aio_pika.abc.AbstractConnection:
        """Return a connection of the tests' own once the broker answers."""
        refusals = (OSError, aio_pika.exceptions.AMQPError)
        return await self.first_awaited(lambda: aio_pika.connect(self.url), *refusals)

    async def ready(self) -> None:
        """Return once the broker answers."""
        await (await self.connect()).close()


def as_received(message: aio_pika.abc.AbstractIncomingMessage) -> Received:
    """Decode a message by the documented rule: the content type is a property, where it fits."""
    headers = {name: str(value) for name, value in message.headers.items()}
    if message.content_type is not None:
        headers["Content-Type"] = message.content_type
    return received_from(message.body, headers)
