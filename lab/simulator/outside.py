"""Those who stand outside and are never hurt: producers, and an operator."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from uuid import UUID

import psycopg

from fencepost.core.draft import Draft
from fencepost.core.operation import Operation, Statement, arun
from fencepost.core.states import Recovery
from fencepost.store import operators, queues
from fencepost.store.enqueue import enqueue_many
from lab.simulator.plan import Fault, Planned
from lab.simulator.process import Client
from lab.simulator.server import ServerSession

if TYPE_CHECKING:
    from lab.simulator.run import MessageRun, Run


class Enqueued(Protocol):
    """What is enqueued, as far as its producer must know it; what shares a transaction stands together."""

    @property
    def transaction(self) -> int: ...

    @property
    def at(self) -> float: ...


E = TypeVar("E", bound=Enqueued)

BEGIN, COMMIT, ROLLBACK = (Statement(name, name) for name in ("BEGIN", "COMMIT", "ROLLBACK"))


class Producers(Client, ABC, Generic[E]):
    """Enqueue what is planned, a task for each transaction."""

    def __init__(self, run: Run, planned: Iterable[E]) -> None:
        super().__init__(run, "producer")
        self.loop = run.server.loop
        self.left = 0
        self._planned = planned

    def start(self) -> None:
        for _, group in itertools.groupby(self._planned, key=lambda each: each.transaction):
            together = list(group)
            self.left += 1
            self.loop.call_later(together[0].at, self._produce, together)

    def _produce(self, together: Sequence[E]) -> None:
        self.loop.create_task(self._in_one_transaction(together))

    async def _in_one_transaction(self, together: Sequence[E]) -> None:
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                await self._in_one_session(together)
                break
            await asyncio.sleep(0.05)  # the server is down: a caller would tell its own caller, and be asked again
        self.left -= 1

    async def _in_one_session(self, together: Sequence[E]) -> None:
        session = self.run.server.admit(self, "produce")
        try:
            await self._written(session, together)
        finally:
            session.end()

    @abstractmethod
    async def _written(self, session: ServerSession, together: Sequence[E]) -> None:
        """Enqueue; what travels is left out, but for the time between the statements and the end."""


class MessageProducers(Producers[Planned]):
    """Enqueue messages."""

    async def _written(self, session: ServerSession, together: Sequence[Planned]) -> None:
        run = self.run
        await session.at_once(BEGIN)
        drafts = [_draft(each) for each in together]
        await arun(enqueue_many(run.catalog, drafts, notify=run.plan.notify), session.at_once)
        await asyncio.sleep(6 * run.latency())
        if together[0].is_rolled_back:
            run.rolled_back.update(each.number for each in together)
            await session.at_once(ROLLBACK)
        else:
            await session.at_once(COMMIT)


def _draft(message: Planned) -> Draft:
    return Draft(
        message_id=UUID(int=message.number + 1),
        queue="default",
        event_type=f"event.{message.number}",
        aggregate_type=None,
        aggregate_id=None,
        ordering_key=message.key,
        payload=f'{{"n":{message.number}}}',
        payload_bytes=None,
        content_type=None,
        headers="{}",
        dedupe_key=None,
        recovery=Recovery(message.recovery),
        available_at=None,
        delay=message.delay,
    )


class Operator(Client, ABC):
    """Who acts by hand."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, "operator")
        self.busy = 0

    def plan(self, fault: Fault) -> None:
        self.loop.call_later(fault.at, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        if not self.run.are_faults_over:
            self.run.fault_happens(fault, None)
            self._act(fault)

    @abstractmethod
    def _act(self, fault: Fault) -> None:
        """Do what is planned."""

    @abstractmethod
    def resolve(self, how: str) -> None:
        """Retry, or skip, everything that is dead."""

    def _do(self, *acts: Callable[[], Operation[Any]], pause: float = 0.0) -> None:
        self.busy += 1
        self.loop.create_task(self._done(acts, pause))

    async def _done(self, acts: Sequence[Callable[[], Operation[Any]]], pause: float) -> None:
        """Do one thing after the other: none of them may overtake another one while the server is down."""
        for number, make in enumerate(acts):
            if number:
                await asyncio.sleep(pause)
            await self._one(make)
        self.busy -= 1

    async def _one(self, make: Callable[[], Operation[Any]]) -> None:
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                await self._in_one_try(make)
                break
            await asyncio.sleep(0.05)

    async def _in_one_try(self, make: Callable[[], Operation[Any]]) -> None:
        connection = await self.run.server.connect(self, "operate")
        try:
            await connection.execute(BEGIN)
            await arun(make(), connection.execute)
            await connection.execute(COMMIT)
        except psycopg.IntegrityError:
            self.run.trace("operator", "is refused")  # as somebody else came first
        finally:
            await connection.close()


class MessageOperator(Operator):
    """Retries and skips what is dead, and pauses the queue for a while."""

    run: MessageRun

    def _act(self, fault: Fault) -> None:
        if fault.kind == "pause":
            self._do(lambda: self._pause(True), lambda: self._pause(False), pause=fault.seconds)
        else:
            self.resolve(fault.kind)

    def resolve(self, how: str) -> None:
        ids = sorted(self.run.watch.dead)
        act = operators.retry_dead if how == "retry" else operators.skip_dead
        if ids:
            self._do(
                lambda: act(self.run.catalog, ids, actor="operator", reason=None, notify=self.run.plan.notify)
            )

    def _pause(self, paused: bool) -> Operation[bool]:
        return queues.set_paused(self.run.catalog, "default", paused, actor="operator", notify=True)
