"""What targets have in common that give a publisher odd answers over real sockets.

Several lanes go at once, each with a publisher of its own; within a lane one case follows the other on whatever
connection the publisher keeps, so that what one answer leaves behind would be taken for the next one's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Any, ClassVar

from tests.acceptor import Acceptor

from fencepost.core.records import Message
from fencepost.errors import Defer, Permanent, Retryable
from fencepost.publishers.base import DestinationPublisher
from fencepost.testing import sample_delivery, sample_message
from lab.fuzz import values
from lab.fuzz.places import Places
from lab.fuzz.target import ACCEPTED, Case, Loop, Result, Target, failed, refused, unexpected

TIMEOUT = 1.0
"""Of the publishers, in seconds: as little as still lets a healthy answer come on a busy machine."""
SLACK = 10.0
"""How much longer a publish may take on a machine that does other things before it counts as hanging."""
HEALTHY_SECONDS = 60.0
"""Until a publish must be delivered again, once nothing odd is answered any more."""
DELIVERED = "delivered"


class Lane:
    """A publisher, and the case whose answer it gets now."""

    def __init__(self, publisher: DestinationPublisher, proxy: AnswerProxy | None = None) -> None:
        self.publisher, self.proxy = publisher, proxy
        self.case: Case = None
        """None: everything passes as it is."""
        self.is_calm = True
        """Nothing odd came on its connections since a healthy answer."""


class AnswerProxy:
    """Forwards to a server, and changes what comes back.

    Args:
        port: of the server, on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._acceptor = Acceptor(self._serve)
        self.case: Case = None

    @property
    def port(self) -> int:
        return self._acceptor.port

    @asynccontextmanager
    async def running(self) -> AsyncIterator[AnswerProxy]:
        async with self._acceptor:
            yield self

    def cut(self) -> None:
        """End every connection."""
        self._acceptor.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        back = asyncio.create_task(self._answers(server_reader, writer))
        try:
            while data := await reader.read(65_536):
                if not await self._intercepted(writer):
                    server_writer.write(data)
        finally:
            back.cancel()
            server_writer.transport.abort()

    async def _intercepted(self, writer: asyncio.StreamWriter) -> bool:
        """Answer in the place of the server, which never sees the request, where the case says so."""
        case = self.case
        if not case or case.get("how") != "made up":
            return False
        await send(writer, case.get("bytes", b""), case)
        return True

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                case = self.case
                if case and case.get("how") == "damaged":
                    data = values.damaged(Random(case.get("chance", 0)), data)
                await send(writer, data, case or {})
        writer.transport.abort()


async def send(writer: asyncio.StreamWriter, data: bytes, case: Case) -> None:
    """Send an answer in the pieces that the case says, and end the connection where it says so."""
    start = 0
    for cut in sorted(case.get("cuts", ())):
        writer.write(data[start:cut])
        start = max(start, cut)
        await asyncio.sleep(0)
    writer.write(data[start:])
    end = case.get("end")
    if end == "close":
        with suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(writer.drain(), 1)
            writer.write_eof()
            await asyncio.sleep(0.01)
        raise ConnectionResetError("this connection has ended")
    if end == "reset":
        raise ConnectionResetError("this connection is cut")


def how_it_is_sent(chance: Random, size: int) -> dict[str, Any]:
    """Return at which bytes an answer is split, and what becomes of its connection."""
    cuts = [chance.randrange(size + 1) for _ in range(chance.choice((0, 0, 1, 3)))]
    return {"cuts": cuts, "end": chance.choice((None, None, "close", "close", "reset"))}


class Answers(Target):
    """Publishes, and judges how that ends.

    Attributes:
        lanes: publishers at once.
    """

    lanes: ClassVar[int] = 30
    batch = 100

    def __init__(self) -> None:
        self._loop = Loop()
        self._lanes: list[Lane] = []

    @contextmanager
    def opened(self, places: Places) -> Iterator[None]:
        logging.disable()  # what client libraries say of garbage
        with self._loop.running():
            stack = AsyncExitStack()
            self._loop.run(lambda: stack.enter_async_context(self._open(places)))
            try:
                yield
            finally:
                self._loop.run(stack.aclose)
                logging.disable(logging.NOTSET)

    @asynccontextmanager
    async def _open(self, places: Places) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for number in range(self.lanes):
                lane = await self.lane(stack, places, number)
                await lane.publisher.open()
                stack.push_async_callback(lane.publisher.close)
                self._lanes.append(lane)
            # Else the first answer of each connection, which is one to the login, would get all the odd ones.
            await asyncio.gather(*(self._never_recovers(lane) for lane in self._lanes))
            yield

    @abstractmethod
    async def lane(self, stack: AsyncExitStack, places: Places, number: int) -> Lane:
        """Return a publisher and what answers it."""

    @abstractmethod
    def is_calm(self, case: Case) -> bool:
        """Tell whether a case leaves nothing behind that the next one could feel."""

    @abstractmethod
    async def verdict(self, lane: Lane, case: Case, message: Message, outcome: str) -> Result:
        """Judge an outcome that is one of the promised ones: ``delivered`` or the name of a class."""

    def judged(self, cases: Sequence[Case]) -> list[Result]:
        return self._loop.run(lambda: self._judged(cases))

    async def _judged(self, cases: Sequence[Case]) -> list[Result]:
        parts = [range(number, len(cases), self.lanes) for number in range(self.lanes)]
        found: dict[int, Result] = {}
        async with asyncio.TaskGroup() as tasks:
            for lane, part in zip(self._lanes, parts, strict=True):
                tasks.create_task(self._one_lane(lane, cases, part, found))
        return [found[number] for number in range(len(cases))]

    async def _one_lane(self, lane: Lane, cases: Sequence[Case], part: range, found: dict[int, Result]) -> None:
        for number in part:
            self._answer(lane, cases[number])
            found[number] = await self._published(lane, cases[number])
            lane.is_calm = self.is_calm(cases[number])
        self._answer(lane, None)
        if part and (last := await self._never_recovers(lane)):
            for number in part:
                found[number] = failed("does not recover", last)

    def _answer(self, lane: Lane, case: Case) -> None:
        lane.case = case
        if lane.proxy is not None:
            lane.proxy.case = case

    async def _published(self, lane: Lane, case: Case) -> Result:
        message, began = self.message(case), time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT + SLACK + 1):
                outcome = await _outcome(lane.publisher, message)
        except TimeoutError:
            return failed("hangs", f"{time.monotonic() - began:.1f} s")
        except Exception as error:  # noqa: BLE001 - the finding
            return unexpected(error)
        if time.monotonic() - began > TIMEOUT + SLACK:
            return failed("late", f"{time.monotonic() - began:.1f} s")
        if time.monotonic() - began > TIMEOUT / 4:
            lane.is_calm = False  # on a machine that does other things an answer may come too late
        return await self.verdict(lane, case, message, outcome)

    def message(self, case: Case) -> Message:
        """Return what is published; without a case, what must arrive."""
        return sample_message("fuzz.answer")

    async def _never_recovers(self, lane: Lane) -> str | None:
        """Publish until it is delivered; return the last failure where it never is."""
        last, ends = "", time.monotonic() + HEALTHY_SECONDS
        while time.monotonic() < ends:
            try:
                await lane.publisher.publish(self.message(None), sample_delivery())
            except Exception as error:  # noqa: BLE001 - told where it is the last
                last = f"{type(error).__name__}: {error}"
            else:
                lane.is_calm = True
                return None
        return last


async def _outcome(publisher: DestinationPublisher, message: Message) -> str:
    try:
        await publisher.publish(message, sample_delivery())
    except (Retryable, Permanent, Defer) as failure:
        return type(failure).__name__
    return DELIVERED


def as_result(outcome: str) -> Result:
    """Return the verdict on an outcome that may be."""
    return ACCEPTED if outcome == DELIVERED else refused(outcome)
