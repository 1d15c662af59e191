"""The receiver that messages are published to: it takes them, refuses them, hangs, or lies about it.

What arrives there does so on the server's loop, whatever has become of the process that sent it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fencepost.core.outcome import Verdict
from fencepost.core.records import Message
from fencepost.errors import Retryable
from fencepost.publishers.base import Delivery
from lab.simulator.failing import fail
from lab.simulator.plan import POISON, Fault

if TYPE_CHECKING:
    from lab.simulator.process import DispatcherProcess
    from lab.simulator.seen import Publish

FASTEST = 0.001
"""Seconds that a publish takes at the least."""

ARRIVES = frozenset(
    {"", "accepted hang", "false failure", "late", "slow", "crash after", "pause after", "block", "stubborn"}
)
"""Kinds of publishes that the receiver takes in the end."""


class Receiver:
    """One process's way to the receiver."""

    def __init__(self, process: DispatcherProcess) -> None:
        self._process = process
        self._incarnation = process.incarnation

    async def publish(self, message: Message, delivery: Delivery) -> None:
        """Publish one message."""
        run = self._process.run
        publish = run.watch.publish_starts(self._process, message, delivery)
        self._begins(publish)
        fault = run.publish_fault(publish)
        if fault is not None:
            run.fault_happens(fault, self._process)
        try:
            await self._send(publish, fault)
        except asyncio.CancelledError:
            run.watch.told(publish, "cut off")
            raise
        except BaseException:
            run.watch.told(publish, "failure" if fault is None else fault.kind)
            raise
        run.watch.told(publish, "delivered")

    async def verify(self, message: Message, delivery: Delivery) -> Verdict:
        """Tell whether an earlier attempt has arrived."""
        await asyncio.sleep(self._process.run.latency())
        return self._process.run.watch.verdict(message, delivery.token)

    async def _send(self, publish: Publish, fault: Fault | None) -> None:
        kind = "" if fault is None else fault.kind
        publish.is_on_its_way = kind in ARRIVES or kind == "pause before"
        run, process, loop = self._process.run, self._process, asyncio.get_running_loop()
        pace = run.plan.pace if publish.nth == 1 else run.plan.pace_again
        seconds = FASTEST + pace * run.chance.random()
        if kind in ("crash before", POISON):
            process.crash(f"{kind} a publish")
            await loop.create_future()
        if fault is not None and kind == "pause before":
            process.pause(fault.seconds)
            await asyncio.sleep(0)
        if fault is not None and kind == "slow":
            seconds = run.plan.publish_timeout * min(0.9, 0.3 + fault.seconds / run.plan.lease)
        if kind in ARRIVES or kind == "pause before":
            arrives_in = seconds / 2
            if fault is not None and kind == "late":
                arrives_in = run.plan.publish_timeout + fault.seconds
            run.world.call_later(arrives_in, run.watch.accepted, publish)
        await self._answer(publish, fault, seconds)

    async def _answer(self, publish: Publish, fault: Fault | None, seconds: float) -> None:
        kind = "" if fault is None else fault.kind
        process, loop = self._process, asyncio.get_running_loop()
        if kind in ("hang", "accepted hang", "late"):
            await loop.create_future()
        await asyncio.sleep(seconds)
        if fault is None:
            return
        if kind == "crash after":
            process.crash("crash after a publish")
            await loop.create_future()
        elif kind == "pause after":
            process.pause(fault.seconds)
            await asyncio.sleep(0)
        elif kind == "block":
            process.block(fault.seconds)
            await asyncio.sleep(0)
        elif kind == "stubborn":
            await self._stubborn(publish, self._process.run.plan.publish_timeout + 1.5)
        fail(kind, fault.seconds)

    async def _stubborn(self, publish: Publish, seconds: float) -> None:
        """Go on for so long, whoever cancels it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError:
                self._ignores_time_out(publish)

    def _begins(self, publish: Publish) -> None:
        """Take note of a publish."""

    def _ignores_time_out(self, publish: Publish) -> None:
        self._process.run.watch.told(publish, "time-out ignored")


@dataclass
class _Batch:
    publishes: list[Publish] = field(default_factory=list)
    """Those that have begun."""
    is_unheard: bool = False
    """It has ignored its time-out: by now nobody may listen to the rest of it."""


class BatchReceiver(Receiver):
    """The same for batches: one message after the other, none behind a failure of its key.

    Where a batch has no answer in time, there is none for any message of it, those that were taken included.
    """

    def __init__(self, process: DispatcherProcess) -> None:
        super().__init__(process)
        self._batches: dict[asyncio.Task[Any] | None, _Batch] = {}
        """Those under way, by the task that publishes each: a lossy failover hands ids and tokens out again."""

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[BaseException | None]:
        """Publish a batch; return an outcome for each message."""
        task, batch = asyncio.current_task(), _Batch()
        self._batches[task] = batch
        self._process.run.watch.handed_over.update(
            (each.id, to.token) for each, to in zip(messages, deliveries, strict=True)
        )
        try:
            return await self._outcomes(messages, deliveries, batch)
        finally:
            del self._batches[task]

    async def _outcomes(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery], batch: _Batch
    ) -> list[BaseException | None]:
        failed: set[str] = set()
        outcomes: list[BaseException | None] = []
        for message, delivery in zip(messages, deliveries, strict=True):
            key = message.ordering_key
            outcome: BaseException | None
            if key is not None and key in failed:
                outcome = Retryable("behind a failure of its key")
            elif delivery.remaining() <= 0:
                outcome = Retryable("its lease is over")  # the process stood still in the midst of the batch
            else:
                outcome = await self._outcome(message, delivery, batch)
                if outcome is not None and key is not None:
                    failed.add(key)
            outcomes.append(outcome)
        return outcomes

    async def _outcome(self, message: Message, delivery: Delivery, batch: _Batch) -> BaseException | None:
        try:
            await self.publish(message, delivery)
        except asyncio.CancelledError:
            self._process.run.watch.cut_off(batch.publishes)
            raise
        except BaseException as error:  # noqa: BLE001 - an outcome, as publishers of batches give them
            return error
        finally:
            if batch.is_unheard:
                self._process.run.watch.cut_off(batch.publishes)
        return None

    def _begins(self, publish: Publish) -> None:
        batch = self._batches.get(asyncio.current_task())
        if batch is not None:  # else it came alone, by `publish`
            batch.publishes.append(publish)

    def _ignores_time_out(self, publish: Publish) -> None:
        batch = self._batches.get(asyncio.current_task())
        if batch is None:
            super()._ignores_time_out(publish)
            return
        batch.is_unheard = True
        self._process.run.watch.cut_off(batch.publishes)
