"""Many producers on connections of their own, each committing one message at a time.

Run as ``python -m fencepost.bench.producing``; see `fencepost.bench.contender`.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import psycopg

from fencepost.bench.contender import Assignment, Drained, Start, report
from fencepost.bench.tables import PAYLOAD
from fencepost.client.outbox import AsyncOutbox

NOTIFY, SILENT = "notify", "silent"
"""Whether the producers wake dispatchers."""

Connection = psycopg.AsyncConnection[Any]


async def _produce(assignment: Assignment, start: Start) -> Drained:
    """Commit the messages over as many connections as a batch has."""
    outbox = AsyncOutbox(notify=assignment.kind == NOTIFY)
    async with AsyncExitStack() as stack:
        connections = [await _connected(stack, assignment.url) for _ in range(assignment.batch)]
        await asyncio.to_thread(start)
        started = time.monotonic()
        each = assignment.messages // len(connections)
        await asyncio.gather(*(_commit(outbox, connection, each) for connection in connections))
        return Drained(each * len(connections), time.monotonic() - started)


async def _connected(stack: AsyncExitStack, url: str) -> Connection:
    connection: Connection = await psycopg.AsyncConnection.connect(url)
    return await stack.enter_async_context(connection)


async def _commit(outbox: AsyncOutbox, connection: Connection, messages: int) -> None:
    payload = json.loads(PAYLOAD)
    for _ in range(messages):
        await outbox.enqueue(connection, "bench.message", payload)
        await connection.commit()


def produce(assignment: Assignment, start: Start) -> Drained:
    """Run the producers until all of them have committed their part."""
    return asyncio.run(_produce(assignment, start))


if __name__ == "__main__":
    report(produce)
