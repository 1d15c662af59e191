"""One connection to NATS: what came back on it, and requests whose answers are awaited together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

CLOSE_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Request:
    """One message on its way, and how its publish ended."""

    subject: str
    headers: Mapping[str, str]
    payload: bytes
    outcome: Exception | None = None


class Link:
    """A connection with one subscription, to which all answers come.

    nats-py's own ``request`` makes a task for each message, and its ``publish_async`` waits for ever for an answer
    that it cannot read.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.errors = 0
        """How many errors the client reported apart from any call, such as a missing permission."""
        self.last_error = ""
        self.is_gone = False
        """True as soon as the connection is closed, by whichever side."""
        self._inbox = ""
        self._answers: dict[str, asyncio.Future[Msg | None]] = {}
        self._count = 0

    @property
    def usable(self) -> bool:
        return not self.is_gone and self.client.is_connected

    def seen(self) -> tuple[int, int]:
        """Return how many messages and how many errors came back so far."""
        return int(self.client.stats["in_msgs"]), self.errors

    async def listen(self) -> None:
        """Subscribe to the answers; once, after the client connected."""
        self._inbox = self.client.new_inbox() + "."
        await self.client.subscribe(f"{self._inbox}*", cb=self._answered)

    async def ask(self, requests: Sequence[Request], deadline: float) -> list[Msg | Exception | None]:
        """Send all and return the answers, in the requests' order, by the deadline (of `time.monotonic`).

        An exception is nats-py's refusal to send that one; None is no answer, because it did not come in time or
        the connection is gone.
        """
        asked = [self._expect() for _ in requests]
        refused: dict[int, Exception] = {}
        # A task of its own, because nats-py swallows a cancellation while it flushes: we can leave it behind.
        sending = asyncio.create_task(self._send(requests, asked, refused))
        futures = [future for _, future in asked]
        try:
            if futures:
                await asyncio.wait(futures, timeout=max(0.0, deadline - time.monotonic()))
        finally:
            for name, future in asked:
                self._answers.pop(name, None)
                if not future.done():
                    future.cancel()  # also tells a task that still sends to send no more of these
            sending.cancel()
        return [
            refused.get(place) or (None if future.cancelled() else future.result())
            for place, future in enumerate(futures)
        ]

    def lose(self) -> None:
        """Note that the connection is closed: nothing more will be answered."""
        self.is_gone = True
        for future in self._answers.values():
            _resolve(future, None)

    async def drop(self) -> None:
        """Close the connection, at once where its peer no longer reads."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.client.close()
        except Exception:  # noqa: BLE001, S110 - the connection is given up either way
            pass
        finally:
            # nats-py has no way to drop a connection whose peer no longer reads: its close flushes first.
            writer = getattr(getattr(self.client, "_transport", None), "_io_writer", None)
            if writer is not None:
                writer.transport.abort()

    def _expect(self) -> tuple[str, asyncio.Future[Msg | None]]:
        self._count += 1
        name = f"{self._inbox}{self._count}"
        future: asyncio.Future[Msg | None] = asyncio.get_running_loop().create_future()
        if self.is_gone:
            future.set_result(None)
        self._answers[name] = future
        return name, future

    async def _send(
        self,
        requests: Sequence[Request],
        asked: Sequence[tuple[str, asyncio.Future[Msg | None]]],
        refused: dict[int, Exception],
    ) -> None:
        for place, (request, (inbox, future)) in enumerate(zip(requests, asked, strict=True)):
            if future.done():
                continue  # given up, or the connection is gone
            try:
                await self.client.publish(
                    request.subject, request.payload, reply=inbox, headers=dict(request.headers)
                )
            except Exception as error:  # noqa: BLE001 - judged by who asked, like an answer
                refused[place] = error
                _resolve(future, None)

    async def _answered(self, message: Msg) -> None:
        future = self._answers.get(message.subject)
        if future is not None:
            _resolve(future, message)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
