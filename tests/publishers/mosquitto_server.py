"""A real mosquitto broker in a process and a directory of its own, stopped by its pid."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from fencepost.testing.publisher_conformance import Received, received_from

REQUIRE = "FENCEPOST_REQUIRE_SERVERS"
READY_SECONDS = 10.0
MqttProperties: Any = Properties
"""paho's are not typed."""


def binary() -> str:
    """Return the path of mosquitto; without one, skip, or fail where the servers are required."""
    found = shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if found is None:
        reason = "mosquitto is not installed: install mosquitto"
        if os.environ.get("CI") or os.environ.get(REQUIRE) == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class MosquittoServer:
    """``mosquitto`` on a port that stays the same over restarts; what it keeps is on its disk when it ends."""

    def __init__(self, directory: Path, port: int, *settings: str) -> None:
        self.port = port
        directory.mkdir(exist_ok=True)
        config = directory / "mosquitto.conf"
        lines = [
            f"listener {port} 127.0.0.1",
            "persistence true",
            f"persistence_location {directory}/",
            "max_queued_messages 0",
            *settings,
        ]
        if os.geteuid() == 0:
            lines.append("user root")  # or it becomes another one, who may not write here
        if not any(line.startswith("allow_anonymous") for line in settings):
            lines.append("allow_anonymous true")
        config.write_text("\n".join(lines) + "\n")
        self._command = [binary(), "-c", str(config)]
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # A signal is not yet a stop: a thread of the broker could still answer meanwhile.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    @asynccontextmanager
    async def client(
        self, identifier: str = "", *, user: str | None = None, password: str | None = None
    ) -> AsyncIterator[aiomqtt.Client]:
        """Provide a client of the tests' own once the broker answers; with an identifier its session stays."""
        properties = MqttProperties(PacketTypes.CONNECT)
        if identifier:
            properties.SessionExpiryInterval = 3_600
        async with asyncio.timeout(READY_SECONDS):
            while True:
                client = aiomqtt.Client(
                    "127.0.0.1",
                    self.port,
                    protocol=aiomqtt.ProtocolVersion.V5,
                    identifier=identifier or None,
                    clean_start=not identifier,
                    properties=properties,
                    username=user,
                    password=password,
                )
                try:
                    await client.__aenter__()
                except aiomqtt.MqttError:
                    await asyncio.sleep(0.02)  # between two looks at the condition, which is "it answers"
                else:
                    break
        try:
            yield client
        finally:
            await client.__aexit__(None, None, None)

    async def ready(self) -> None:
        """Return once the broker answers."""
        async with self.client():
            pass


def as_received(message: aiomqtt.Message) -> Received:
    """Decode a message by the documented rule: headers are user properties, the content type a property."""
    properties: Any = message.properties
    assert isinstance(message.payload, bytes)
    headers = dict(getattr(properties, "UserProperty", []))
    headers["Content-Type"] = properties.ContentType
    return received_from(message.payload, headers)


async def read_all(server: MosquittoServer, session: str, topics: str) -> list[Received]:
    """Return what the broker keeps for a session that has subscribed to the topics, up to now."""
    end = f"{topics.removesuffix('#')}end/{secrets.token_hex(8)}"
    async with server.client() as other:
        await other.publish(end, qos=1)
    arrived = []
    async with server.client(session) as client, asyncio.timeout(READY_SECONDS):
        async for message in client.messages:
            if message.topic.value == end:
                break
            if not message.topic.value.startswith(end.rpartition("/")[0]):
                arrived.append(as_received(message))
    return arrived
