"""What the targets of brokers have in common."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from random import Random

from fencepost.core.records import Message
from fencepost.publishers.base import DestinationPublisher
from lab.fuzz import values
from lab.fuzz.answers import DELIVERED, AnswerProxy, Answers, Lane, as_result, how_it_is_sent
from lab.fuzz.places import Places
from lab.fuzz.target import Case, Result, failed

STORED_SECONDS = 20.0
"""Until what was delivered must be seen by a reader."""


class BrokerAnswers(Answers):
    """Publishes to a real broker whose answers are damaged, or made up: delivered only where it is stored."""

    made_up: tuple[bytes, ...] = ()
    """None of them is an acknowledgement."""

    def case(self, chance: Random) -> Case:
        if self.made_up and values.often(chance, 0.4):
            answer = chance.choice(self.made_up)
            if values.often(chance, 0.2):
                answer = values.data(chance)
            return {"how": "made up", "bytes": answer, **how_it_is_sent(chance, len(answer))}
        how = "damaged" if values.often(chance, 0.7) else "as it is"
        return {"how": how, "chance": chance.randrange(2**32), **how_it_is_sent(chance, 40)}

    async def lane(self, stack: AsyncExitStack, places: Places, number: int) -> Lane:
        if number == 0:
            await stack.enter_async_context(self.broker(places))
        proxy = await stack.enter_async_context(AnswerProxy(self.port).running())
        return Lane(self.publisher(proxy.port), proxy)

    @abstractmethod
    def broker(self, places: Places) -> AbstractAsyncContextManager[None]:
        """Have the broker, and a client of our own."""

    @property
    @abstractmethod
    def port(self) -> int:
        """Where the broker listens."""

    @abstractmethod
    def publisher(self, port: int) -> DestinationPublisher:
        """Return a publisher to this port."""

    async def stored(self, message: Message) -> bool | None:
        """Tell whether the broker has a message; None where it cannot be asked."""
        return None

    def is_calm(self, case: Case) -> bool:
        return case.get("how") == "as it is" and case.get("end") is None

    async def verdict(self, lane: Lane, case: Case, message: Message, outcome: str) -> Result:
        if outcome == DELIVERED:
            if case.get("how") == "made up":
                return failed("delivered after a made-up answer", case.get("bytes", b"")[:300])
            if await self.stored(message) is False:
                return failed("delivered, and not stored", message.message_id)
        elif lane.is_calm and self.is_calm(case):
            return failed("a whole answer was not taken", outcome)
        return as_result(outcome)


class Arrivals:
    """What a reader has got, by its message id."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._news = asyncio.Event()

    def add(self, message_id: str) -> None:
        self._ids.add(message_id)
        self._news.set()

    async def has(self, message: Message) -> bool:
        """Tell whether a message has arrived, and wait for it a while."""
        try:
            async with asyncio.timeout(STORED_SECONDS):
                while message.message_id_text not in self._ids:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True
