"""Wakes the dispatcher when something was enqueued; polling goes on behind it, so a lost notice costs a poll.

LISTEN is bound to its session, hence a connection of its own, which may be lost without harm.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from fencepost.core.error_text import describe
from fencepost.runtime.link import Limits, connect, hang_up, is_shared, retrieve

log = logging.getLogger("fencepost.wakeup")

_LONGEST_PAUSE = 30.0

_ASK_EVERY = 30.0
"""Seconds without a notice after which the listening connection has to show that it is alive."""


class Wakeup:
    """An event that notices set."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.on_notice: Callable[[], None] = lambda: None
        """Called at each notice besides."""
        self.has_news = False
        """Whether there was a notice since somebody looked which queues have something due, and cleared this."""
        self._connection: psycopg.AsyncConnection[Any] | None = None

    def set(self) -> None:
        """Wake whoever waits, or the next one who does."""
        self._event.set()

    def notice(self) -> None:
        """Wake whoever waits, since something was enqueued: in any queue, a notice does not say in which."""
        self.has_news = True
        self._event.set()
        self.on_notice()

    async def wait(self, timeout: float) -> bool:
        """Wait for a notice, at most ``timeout`` seconds; return whether there was one."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    async def close(self) -> None:
        """Close the listening connection; to be called before `listen` is cancelled.

        Otherwise psycopg would answer the cancellation by asking a server that may have gone silent.
        """
        if self._connection is not None:
            await hang_up(self._connection)

    async def listen(self, url: str, channel: str, limits: Limits) -> None:
        """Listen until cancelled; connection losses are warned of once, until it works again.

        Where a pooler shares the session, LISTEN would do nothing and say nothing: then it is not even tried.
        """
        pause, told = 1.0, False
        while True:
            try:
                async with asyncio.timeout(limits.connect):
                    connection = await connect(url, "listen", limits)
                self._connection = connection
                async with connection:
                    if await is_shared(connection):
                        break
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                    pause, told = 1.0, False
                    self.notice()  # others may have been missed while we were away
                    await self._hear(connection, limits)
            except Exception as error:  # noqa: BLE001 - polling goes on whatever happens here
                if not told:
                    log.warning(
                        "not listening for notices: %s; polling goes on, and so do attempts to listen",
                        describe(error),
                    )
                    told = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, _LONGEST_PAUSE)
        log.warning(
            "not listening for notices: a pooler shares this session with others, and LISTEN would be lost there; "
            "polling goes on. Set listen_store to an address that leads to the server past the pooler, or set "
            "notify to false to poll without this warning"
        )
        await asyncio.Event().wait()

    async def _hear(self, connection: psycopg.AsyncConnection[Any], limits: Limits) -> None:
        """Pass notices on, and ask now and then whether anybody is there.

        A connection that something on the way has forgotten looks like one on which nothing happens.
        """
        while True:
            async for _ in connection.notifies(timeout=_ASK_EVERY):
                self.notice()
            await self._answer(connection, limits.answer)

    async def _answer(self, connection: psycopg.AsyncConnection[Any], limit: float) -> None:
        asked = asyncio.ensure_future(connection.execute("SELECT 1"))
        try:
            await asyncio.wait([asked], timeout=limit)
            if not asked.done():
                raise TimeoutError(f"no answer from the database within {limit:g} s")
            await asked
        finally:
            if not asked.done():
                # Closed first: psycopg would ask the silent server to cancel, and wait for that.
                await hang_up(connection)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            retrieve(asked)
