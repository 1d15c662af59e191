"""A consumer of the stream: ``python -m lab.chaos.consumer`` makes each effect once, through its inbox."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

import nats
import nats.errors
import nats.js.errors
import psycopg
from nats.aio.msg import Msg

from fencepost import AsyncInbox, InvalidMessage
from fencepost.consumers import AsyncConsumer, Received
from fencepost.consumers.nats import incoming, received
from fencepost.core.inbox import Acceptance
from lab.chaos.terms import CONSUMER, STREAM, SUBJECTS, Told
from lab.checker.recording import Recorder

RESULTS = {Acceptance.STALE: "stale", Acceptance.REPEAT: "repeat"}
_EFFECT = "INSERT INTO lab.effect (consumer, message_id, token) VALUES (%s, %s, %s)"


class Billing:
    """The consuming process."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._recorder = Recorder(told.folder, told.process)
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._consumer = AsyncConsumer(AsyncInbox(CONSUMER), self._connection)
        self._handle = self._consumer.handler(self._effect)

    async def run(self) -> None:
        """Consume until the process ends, and connect anew as often as it takes."""
        self._recorder.write("ready")
        while True:
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError):
                await self._consume()
            await asyncio.sleep(0.1)  # between two tries to reach the broker

    async def _consume(self) -> None:
        client = await nats.connect(
            self._told.broker, allow_reconnect=False, connect_timeout=2, ping_interval=1, max_outstanding_pings=2,
            error_cb=_ignore,
        )  # fmt: skip
        try:
            pulled = await client.jetstream().pull_subscribe(SUBJECTS, durable=CONSUMER, stream=STREAM)
            while not client.is_closed:
                try:
                    messages = await pulled.fetch(20, timeout=1)
                except nats.errors.TimeoutError:
                    continue
                for message in messages:
                    await self._take(message)
        finally:
            with contextlib.suppress(Exception):  # it is gone already
                await asyncio.wait_for(client.close(), 1)

    async def _take(self, message: Msg) -> None:
        about = received(message)
        try:
            acceptance = await self._handle(incoming(message, delay=0.2))
            result = RESULTS.get(acceptance, "accepted")
        except InvalidMessage:
            await message.term()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the message comes again
            # Where the connection broke, nobody knows whether the COMMIT arrived.
            result = "unknown" if isinstance(error, psycopg.OperationalError) else "rolled_back"
        self._recorder.write(
            "inbox", consumer=CONSUMER, message_id=str(about.message_id), token=about.token, result=result
        )

    async def _effect(self, message: Received, connection: Any) -> None:
        await connection.execute(_EFFECT, [CONSUMER, str(message.message_id), message.token])

    async def _connection(self) -> Any:
        """Hand out the one connection, anew where it broke; it stays open behind the handler."""
        if self._conn is None or self._conn.closed or self._conn.broken:
            self._conn = await psycopg.AsyncConnection.connect(
                self._told.store, connect_timeout=2, tcp_user_timeout=2000
            )
            await self._conn.execute("SET statement_timeout = '3s'")
            await self._conn.commit()
        return _kept(self._conn)


@contextlib.asynccontextmanager
async def _kept(connection: psycopg.AsyncConnection[Any]) -> Any:
    yield connection


async def _ignore(error: Exception) -> None:
    """The client is made anew; what it says of the old connection changes nothing."""


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(Billing(Told.from_environment()).run())


if __name__ == "__main__":
    main()
