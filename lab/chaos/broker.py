"""The broker of the run: a real NATS server whose stream is the receiver's record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from nats.aio.client import Client
from nats.js.api import StreamConfig
from tests.publishers.nats_server import NatsServer

from fencepost.consumers.nats import received
from lab.chaos.terms import CONSUMER, STREAM, SUBJECTS
from lab.checker.recording import Recorder, digest

DUPLICATE_WINDOW = 0.1
"""Seconds, the shortest that NATS has: repeats shall be seen, not dropped."""

T = TypeVar("T")


class Broker:
    """The server, and what the conductor asks it."""

    def __init__(self, folder: Path) -> None:
        self.server = NatsServer(folder)
        try:
            self.server.start()
            self.server.wait_until_it_listens()
            self._ask(_make_stream)
        except BaseException:  # told to end, for example
            self.server.close()
            raise

    @property
    def port(self) -> int:
        """Where it listens, also after a restart."""
        return self.server.port

    def restart(self) -> None:
        """Start it again, unless it runs."""
        if not self.server.is_running:
            self.server.start()
            self.server.wait_until_it_listens()

    def unconsumed(self) -> int:
        """Return how many messages the consumer has not acknowledged yet."""

        async def ask(client: Client) -> int:
            found = await client.jetstream().consumer_info(STREAM, CONSUMER)
            return (found.num_pending or 0) + (found.num_ack_pending or 0)

        return self._ask(ask)

    def write_history(self, folder: Path) -> int:
        """Write what the stream has, in its order, as the receiver's history; return how much."""
        recorder = Recorder(folder, "receiver")
        # The stream notes instants of the machine's clock, the history those of the clock that nobody sets.
        offset = time.time_ns() - time.monotonic_ns()

        async def read(client: Client) -> int:
            stream = client.jetstream()
            count = (await stream.stream_info(STREAM)).state.messages
            pulled = await stream.subscribe(SUBJECTS, stream=STREAM, ordered_consumer=True)
            for _ in range(count):
                message = await pulled.next_msg(timeout=10)
                about = received(message)
                recorder.write(
                    "accepted",
                    at=_nanoseconds(message.metadata.timestamp.timestamp()) - offset,
                    message_id=str(about.message_id),
                    token=about.token,
                    payload=digest(message.data),
                )
            return count

        return self._ask(read)

    def _ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        async def asked() -> T:
            client = await self.server.connect()
            try:
                return await question(client)
            finally:
                await client.close()

        return asyncio.run(asked())


def _nanoseconds(instant: float) -> int:
    return int(instant * 1_000_000_000)


async def _make_stream(client: Client) -> None:
    # nats-py reads the window as seconds.
    await client.jetstream().add_stream(
        StreamConfig(name=STREAM, subjects=[SUBJECTS], duplicate_window=DUPLICATE_WINDOW, max_msg_size=8_000_000)
    )
