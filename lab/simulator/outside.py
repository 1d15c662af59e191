"""Those who stand outside and are never hurt: producers, and an operator."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import psycopg

from fencepost.core.draft import Draft
from fencepost.core.operation import Operation, Statement, arun
from fencepost.core.states import Recovery
from fencepost.store import operators, queues
from fencepost.store.enqueue import enqueue_many
from lab.simulator.plan import Fault, Planned
from lab.simulator.process import Client
from lab.simulator.server import Connection

if TYPE_CHECKING:
    from lab.simulator.run import Run

T = TypeVar("T")

_BEGIN, _COMMIT, _ROLLBACK = (Statement(name, name) for name in ("BEGIN", "COMMIT", "ROLLBACK"))


class Producers(Client):
    """Enqueue what is planned, a task for each transaction."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, "producer")
        self.left = 0

    def start(self) -> None:
        for _, group in itertools.groupby(self.run.plan.messages, key=lambda each: each.transaction):
            messages = list(group)
            self.left += 1
            self.loop.call_later(messages[0].at, self._produce, messages)

    def _produce(self, messages: Sequence[Planned]) -> None:
        self.loop.create_task(self._in_one_transaction(messages))

    async def _in_one_transaction(self, messages: Sequence[Planned]) -> None:
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                connection = await self.run.server.connect(self, "produce")
                await self._written(connection, messages)
                break
            await asyncio.sleep(0.05)  # the server is down: a caller would tell its own caller, and be asked again
        await connection.close()
        self.left -= 1

    async def _written(self, connection: Connection, messages: Sequence[Planned]) -> None:
        run = self.run
        await connection.execute(_BEGIN)
        drafts = [_draft(each) for each in messages]
        await arun(enqueue_many(run.catalog, drafts, notify=run.plan.notify), connection.execute)
        if messages[0].is_rolled_back:
            run.rolled_back.update(each.number for each in messages)
            await connection.execute(_ROLLBACK)
        else:
            await connection.execute(_COMMIT)


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


class Operator(Client):
    """Retries and skips what is dead, and pauses the queue for a while."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, "operator")
        self.busy = 0

    def plan(self, fault: Fault) -> None:
        self.loop.call_later(fault.at, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        if self.run.are_faults_over:
            return
        self.run.fault_happens(fault, None)
        if fault.kind == "pause":
            self._do(lambda: self._pause(True))
            self.loop.call_later(fault.seconds, self._do, lambda: self._pause(False))
        else:
            self.resolve(fault.kind)

    def resolve(self, how: str) -> None:
        """Retry, or skip, everything that is dead."""
        ids = sorted(self.run.watch.dead)
        act = operators.retry_dead if how == "retry" else operators.skip_dead
        if ids:
            self._do(
                lambda: act(self.run.catalog, ids, actor="operator", reason=None, notify=self.run.plan.notify)
            )

    def _pause(self, paused: bool) -> Operation[bool]:
        return queues.set_paused(self.run.catalog, "default", paused, actor="operator", notify=True)

    def _do(self, make: Callable[[], Operation[Any]]) -> None:
        self.busy += 1
        self.loop.create_task(self._done(make))

    async def _done(self, make: Callable[[], Operation[Any]]) -> None:
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                connection = await self.run.server.connect(self, "operate")
                await connection.execute(_BEGIN)
                await arun(make(), connection.execute)
                await connection.execute(_COMMIT)
                break
            await asyncio.sleep(0.05)
        await connection.close()
        self.busy -= 1
