"""A dispatcher whose publisher misbehaves at random: ``python -m tests.order.worker URL NAME SEED``.

While the table ``calm`` is there it behaves, so that the campaign can come to its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from datetime import timedelta

import psycopg

from fencepost import Defer, Delivery, Dispatcher, Message, Permanent, Retryable, Route
from tests.order.record import ACCEPT

LEASE = timedelta(seconds=1)


class Receiver:
    """Accepts a message into the table ``accepted``; before or after that, something may go wrong."""

    def __init__(self, url: str, seed: str) -> None:
        self._url = url
        self._random = random.Random(seed)  # noqa: S311 - a campaign that can be repeated
        self._calm = False

    async def open(self) -> None:
        self._conn = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        await self._conn.close()

    async def publish(self, message: Message, delivery: Delivery) -> None:
        fault = self._fault()
        if fault == "crash":
            os._exit(9)
        if fault == "stall":
            time.sleep(1.3 * LEASE.total_seconds())  # noqa: ASYNC251 - it blocks the loop past the lease, on purpose
        if fault == "retry":
            raise Retryable("refused before it arrived")
        if fault == "defer":
            raise Defer(timedelta(milliseconds=self._random.randrange(200)), "not yet")
        if fault == "refuse":
            raise Permanent("no")
        if fault == "hang":
            await asyncio.Event().wait()
        await self._accept(message, delivery)
        if fault == "crash after":
            os._exit(9)
        if fault == "retry after":
            raise Retryable("it arrived, and its answer was lost")

    async def _accept(self, message: Message, delivery: Delivery) -> None:
        async with self._turn:
            if not self._calm:
                row = await (await self._conn.execute("SELECT to_regclass('public.calm') IS NOT NULL")).fetchone()
                self._calm = row == (True,)
            await self._conn.execute(ACCEPT, {"id": message.id, "token": delivery.token})

    def _fault(self) -> str | None:
        if self._calm:
            return None
        draw = self._random.random()
        for fault, share in FAULTS.items():
            draw -= share
            if draw < 0:
                return fault
        return None


FAULTS = {
    "crash": 0.001,
    "crash after": 0.001,
    "stall": 0.001,
    "hang": 0.001,
    "retry": 0.02,
    "retry after": 0.01,
    "defer": 0.01,
    "refuse": 0.004,
}


async def _run(url: str, name: str, seed: str) -> None:
    dispatcher = Dispatcher(
        url,
        [Route("*", Receiver(url, seed))],
        owner=name,
        lease=LEASE,
        publish_timeout=LEASE / 2,
        poll_interval=timedelta(milliseconds=100),
        backoff_base=timedelta(milliseconds=1),
        backoff_cap=timedelta(milliseconds=100),
        max_attempts=8,
        batch=30,
        concurrency=30,
    )
    await dispatcher.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    asyncio.run(_run(*sys.argv[1:4]))
