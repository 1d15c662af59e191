"""Wakes the dispatcher when something was enqueued; polling goes on behind it, so a lost notice costs a poll.

LISTEN is bound to its session, hence a connection of its own, which may be lost without harm.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import psycopg
from psycopg import sql

from fencepost.core.error_text import describe
from fencepost.runtime.link import Limits, connect

log = logging.getLogger("fencepost.wakeup")

_LONGEST_PAUSE = 30.0


class Wakeup:
    """An event that notices set."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._connection: psycopg.AsyncConnection[Any] | None = None

    def set(self) -> None:
        """Wake whoever waits, or the next one who does."""
        self._event.set()

    async def wait(self, timeout: float) -> None:
        """Wait for a notice, at most ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()

    async def close(self) -> None:
        """Close the listening connection; to be called before `listen` is cancelled.

        Otherwise psycopg would answer the cancellation by asking a server that may have gone silent.
        """
        if self._connection is not None:
            await self._connection.close()

    async def listen(self, url: str, channel: str, limits: Limits) -> None:
        """Listen until cancelled; connection losses are warned of once, until it works again."""
        pause, told = 1.0, False
        while True:
            try:
                async with asyncio.timeout(limits.connect):
                    connection = await connect(url, "listen", limits)
                self._connection = connection
                async with connection:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                    pause, told = 1.0, False
                    self.set()  # notices may have been missed while we were away
                    async for _ in connection.notifies():
                        self.set()
            except Exception as error:  # noqa: BLE001 - polling goes on whatever happens here
                if not told:
                    log.warning(
                        "not listening for notices: %s; polling goes on, and so do attempts to listen",
                        describe(error),
                    )
                    told = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, _LONGEST_PAUSE)
