"""The publisher of the run: fencepost's own for NATS, and a history line before and after each publish.

``fencepost dispatch --publisher lab.chaos.publisher:publisher`` loads it. Some event types misbehave on purpose.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence

from fencepost import Defer, Delivery, Message, Permanent, Retryable
from fencepost.publishers.nats.publisher import NatsPublisher
from lab.chaos.terms import BROKER_TIMEOUT, LEASE, PUBLISH_TIMEOUT, STREAM, Told, block, seconds
from lab.checker.recording import Recorder, digest, headers_digest


class RecordingPublisher:
    """Publishes one message at a time."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._random = random.Random(told.seed)
        subject = "?subject=lab.{event_type}"
        self._inner = NatsPublisher(f"{told.broker}/{subject}&stream={STREAM}&timeout={BROKER_TIMEOUT:g}")
        self._recorder: Recorder | None = None

    async def open(self) -> None:
        self._recorder = Recorder(self._told.folder, self._told.process)
        self._write("ready")
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def publish(self, message: Message, delivery: Delivery) -> None:
        self._begin(message, delivery)
        result = "unexpected"
        try:
            await self._misbehave(message, delivery)
            await self._inner.publish(message, delivery)
            result = "delivered"
        except BaseException as error:
            result = _result(error)
            raise
        finally:
            self._end(message, delivery, result)

    async def _misbehave(self, message: Message, delivery: Delivery) -> None:
        kind = message.event_type
        if kind == "plain" or self._told.is_calm:
            return
        if kind == "poison":
            self._write("fault", fault_id=self._own_id(message, delivery), fault="poison",
                        target=self._told.process, message_id=str(message.message_id))  # fmt: skip
            os._exit(9)
        if kind == "blocking" and delivery.attempt == 1:
            fault_id = self._own_id(message, delivery)
            self._write("fault", fault_id=fault_id, fault="loop_blocked", target=self._told.process)
            block(LEASE * self._random.uniform(0.3, 1.4))  # the loop, on purpose
            self._write("fault_end", fault_id=fault_id)
        if kind == "slow":
            await asyncio.sleep(self._random.uniform(0, PUBLISH_TIMEOUT * 1.3))  # at times past its time-out
        if kind == "failing":
            self._fail()
        if kind == "permanent":
            raise Permanent("refused\0 for good")

    def _fail(self) -> None:
        draw = self._random.random()
        if draw < 0.3:
            raise Retryable("refused for now")
        if draw < 0.5:
            raise Defer(seconds(self._random.uniform(0, 0.3)), "not yet")
        if draw < 0.6:
            raise ValueError("nobody thought of this")

    def _begin(self, message: Message, delivery: Delivery) -> None:
        self._write(
            "publish_start",
            message_id=str(message.message_id),
            id=message.id,
            queue=message.queue,
            attempt=delivery.attempt,
            token=delivery.token,
            owner=self._told.owner,
            pid=os.getpid(),
            payload=digest(message.payload),
            headers=headers_digest(message.headers),
        )

    def _end(self, message: Message, delivery: Delivery, result: str) -> None:
        about = {"message_id": str(message.message_id), "id": message.id, "token": delivery.token}
        self._write("publish_end", **about, result=result)

    def _own_id(self, message: Message, delivery: Delivery) -> str:
        return f"{self._told.process}-{message.id}-{delivery.token}"

    def _write(self, kind: str, **fields: object) -> None:
        assert self._recorder is not None  # noqa: S101 - `open` is called before anything is published
        self._recorder.write(kind, **fields)


class RecordingBatchPublisher(RecordingPublisher):
    """Publishes whole batches where it can: the messages that behave."""

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        pairs = list(zip(messages, deliveries, strict=True))
        for message, delivery in pairs:
            self._begin(message, delivery)
        outcomes: list[Exception | None] = []
        cut_off: BaseException | None = None
        try:
            outcomes = await self._together(messages, deliveries)
        except BaseException as error:
            cut_off = error
            raise
        finally:
            for place, (message, delivery) in enumerate(pairs):
                outcome = cut_off if cut_off is not None else outcomes[place]
                self._end(message, delivery, "delivered" if outcome is None else _result(outcome))
        return outcomes

    async def _together(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        """Publish up to the first message that fails by itself; what comes behind it is not sent."""
        failure: Exception | None = None
        sent = 0
        for message, delivery in zip(messages, deliveries, strict=True):
            try:
                await self._misbehave(message, delivery)
            except Exception as error:  # noqa: BLE001 - whatever it raises is the outcome of that message
                failure = error
                break
            sent += 1
        outcomes = await self._inner.publish_batch(messages[:sent], deliveries[:sent]) if sent else []
        if failure is not None:
            behind = len(messages) - sent - 1
            outcomes = [*outcomes, failure, *(Retryable("behind one that failed") for _ in range(behind))]
        return outcomes


def _result(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    names = {Retryable: "retryable", Defer: "defer", Permanent: "permanent"}
    return next((name for kind, name in names.items() if isinstance(error, kind)), "unexpected")


def _publisher() -> RecordingPublisher:
    told = Told.from_environment()
    return RecordingBatchPublisher(told) if told.batches else RecordingPublisher(told)


publisher = _publisher()
