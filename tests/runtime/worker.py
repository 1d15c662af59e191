"""A dispatcher in a process of its own, for tests that kill it: ``python -m tests.runtime.worker URL OPTIONS``.

Each publish is written to the table ``published`` over a connection of the publisher's own, so that it is
seen whatever happens to the process next. Some event types misbehave on purpose.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from datetime import timedelta
from typing import Any

import psycopg

from fencepost import Delivery, Dispatcher, Message, Route, Verdict

PUBLISHED = """
CREATE TABLE published (
    at timestamptz DEFAULT clock_timestamp(), id bigint, attempt int, token bigint, owner text, in_flight int
);
CREATE TABLE reached (at timestamptz DEFAULT clock_timestamp(), what text, id bigint, token bigint)
"""


class Recorder:
    """Records a publish, then does what its event type says."""

    def __init__(self, url: str, owner: str) -> None:
        self._url, self._owner = url, owner
        self._in_flight = 0

    async def open(self) -> None:
        self._conn = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        await self._conn.close()

    async def publish(self, message: Message, delivery: Delivery) -> None:
        self._in_flight += 1
        try:
            if message.event_type == "late" and self._owner.startswith("victim"):
                await self._reached("publish", message, delivery)
                await asyncio.Event().wait()
            async with self._turn:
                await self._conn.execute(
                    "INSERT INTO published (id, attempt, token, owner, in_flight) VALUES (%s, %s, %s, %s, %s)",
                    [message.id, delivery.attempt, delivery.token, self._owner, self._in_flight],
                )
            if message.event_type == "poison":
                os._exit(9)
            if message.event_type == "hang" and self._owner.startswith("victim"):
                await asyncio.Event().wait()
            if message.event_type == "slow":
                await asyncio.sleep(0.005)  # work, not a wait for something
        finally:
            self._in_flight -= 1

    async def verify(self, message: Message, delivery: Delivery) -> Verdict:
        """Look at what the receiver has."""
        await self._reached("verify", message, delivery)
        if message.event_type == "hang" and self._owner.startswith("victim"):
            await asyncio.Event().wait()
        async with self._turn:
            cursor = await self._conn.execute("SELECT 1 FROM published WHERE id = %s", [message.id])
            return Verdict.DONE if await cursor.fetchone() else Verdict.NOT_DONE

    async def _reached(self, what: str, message: Message, delivery: Delivery) -> None:
        async with self._turn:
            await self._conn.execute(
                "INSERT INTO reached (what, id, token) VALUES (%s, %s, %s)", [what, message.id, delivery.token]
            )


def main() -> None:
    url, options = sys.argv[1], json.loads(sys.argv[2])
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    runs = options.pop("runs", 1)
    settings: dict[str, Any] = {
        key: timedelta(seconds=value) if isinstance(value, float) else value for key, value in options.items()
    }
    for _ in range(runs):
        dispatcher = Dispatcher(url, [Route("*", Recorder(url, settings["owner"]))], **settings)
        drained = asyncio.run(_run(dispatcher))
        print(json.dumps({"drained": drained, **dispatcher.counters.as_dict()}), flush=True)
    sys.exit(0 if drained else 1)


async def _run(dispatcher: Dispatcher) -> bool:
    async with dispatcher:
        running = asyncio.create_task(dispatcher.run(exit_by_force=True))
        await asyncio.sleep(0)  # its signal handlers are in place now
        print("ready", flush=True)
        return await running


if __name__ == "__main__":
    main()
