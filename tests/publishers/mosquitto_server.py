"""A real mosquitto broker in a process and a directory of its own, stopped by its pid."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from fencepost.embedded.ports import free_port
from fencepost.testing.publisher_conformance import Received, received_from
from tests.servers import ServerProcess, found

MqttProperties: Any = Properties
"""paho's are not typed."""


class MosquittoServer(ServerProcess):
    """``mosquitto``: what it keeps is on its disk when it ends; `ready` and `client` tell when it answers."""

    def __init__(self, directory: Path, *settings: str) -> None:
        program, port = found("mosquitto", "install mosquitto"), free_port()
        config = directory / "mosquitto.conf"
        super().__init__(directory, port, [program, "-c", str(config)])
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

    @asynccontextmanager
    async def client(
        self, identifier: str = "", *, user: str | None = None, password: str | None = None
    ) -> AsyncIterator[aiomqtt.Client]:
        """Provide a client of the tests' own once the broker answers; with an identifier its session stays."""
        properties = MqttProperties(PacketTypes.CONNECT)
        if identifier:
            properties.SessionExpiryInterval = 3_600

        async def entered() -> aiomqtt.Client:
            return await aiomqtt.Client(
                "127.0.0.1",
                self.port,
                protocol=aiomqtt.ProtocolVersion.V5,
                identifier=identifier or None,
                clean_start=not identifier,
                properties=properties,
                username=user,
                password=password,
            ).__aenter__()

        client = await self.first_awaited(entered, aiomqtt.MqttError)
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
    async with server.client(session) as client, asyncio.timeout(server.ready_seconds):
        async for message in client.messages:
            if message.topic.value == end:
                break
            if not message.topic.value.startswith(end.rpartition("/")[0]):
                arrived.append(as_received(message))
    return arrived
