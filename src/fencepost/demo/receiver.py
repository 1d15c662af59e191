"""The receiver, a program of its own: acts once on each message id, and can hold its answers back when told to.

A request is one line of JSON about the message, then its payload; the answer is the line ``ok``. An answer is
given after the commit, and an answer that is held back is one whose work is done: a worker that waits for it
is in the middle of its publish.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import psycopg

from fencepost.demo.lifeline import follow_parent, read_settings, report
from fencepost.demo.sabotage import NO_DEDUPE, sabotaged

ANSWER = b"ok\n"


@dataclass(slots=True)
class _Hold:
    """Answers held back from one worker, under the number that the parent gave."""

    number: int
    left: int
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Receiver:
    """Serves the workers over TCP, one request a connection, on one database connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()
        self._holds: dict[str, _Hold] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            about = json.loads(await reader.readline())
            payload = await reader.readexactly(about["size"])
            await self._receive(about, payload)
            await self._hold(about)
            writer.write(ANSWER)
            await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # the worker is gone, or was killed in the middle of its request
        finally:
            writer.close()

    def obey(self, command: dict[str, Any]) -> None:
        """Hold back the next ``answers`` to a worker, or give the ones held back."""
        worker = command["worker"]
        if command["do"] == "hold":
            self._holds[worker] = _Hold(command["number"], command["answers"])
        elif worker in self._holds:
            self._holds.pop(worker).released.set()

    async def _receive(self, about: dict[str, Any], payload: bytes) -> None:
        async with self._turn, self._connection.transaction():
            await self._connection.execute(
                "INSERT INTO fencepost_demo.arrival (message_id, worker, token, payload) VALUES (%s, %s, %s, %s)",
                [about["message_id"], about["worker"], about["token"], payload],
            )
            first = await self._connection.execute(
                "INSERT INTO fencepost_demo.receipt (message_id, token) VALUES (%s, %s) ON CONFLICT DO NOTHING"
                " RETURNING message_id",
                [about["message_id"], about["token"]],
            )
            if await first.fetchone() or sabotaged(NO_DEDUPE):
                await self._connection.execute(
                    "INSERT INTO fencepost_demo.shipment (message_id) VALUES (%s)", [about["message_id"]]
                )

    async def _hold(self, about: dict[str, Any]) -> None:
        hold = self._holds.get(about["worker"])
        if hold is not None and hold.left > 0:
            hold.left -= 1
            report("held", number=hold.number, message_id=about["message_id"], token=about["token"])
            await hold.released.wait()


async def _run(url: str) -> None:
    loop = asyncio.get_running_loop()
    connection = await psycopg.AsyncConnection.connect(
        url, autocommit=True, application_name="fencepost demo receiver"
    )
    receiver = Receiver(connection)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)

    def obey(command: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(receiver.obey, command)

    follow_parent(obey)
    report("ready", port=server.sockets[0].getsockname()[1])
    await server.serve_forever()


def main() -> None:
    settings = read_settings()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(settings["url"]))


if __name__ == "__main__":
    main()
