"""Enqueue, store, claim, fail, claim again: the very same bytes, or a refusal before any database work.

A batch of cases is one transaction of a producer. What was refused must have sent nothing to the database, and the
transaction goes on; what was accepted is claimed twice and compared with what was given.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ClassVar
from uuid import UUID

import psycopg
from sqlalchemy import event
from tests.client.adapters import ADAPTERS, Producer

from fencepost import Claimed, NewMessage
from fencepost.errors import DedupeConflict, FencepostError
from lab.fuzz.messages import BAD, GOOD, message
from lab.fuzz.places import Places
from lab.fuzz.target import ACCEPTED, Case, Loop, Result, Target, against_case, failed, refused, unexpected

TOGETHER = 25
"""Messages of one ``enqueue_many``."""
ERROR = "it \x00 failed \ud800 😀"
LATEST = """
SELECT id, (extract(epoch FROM available_at) * 1000000)::bigint, (extract(epoch FROM created_at) * 1000000)::bigint
FROM outbox
"""
ALL_DUE = "UPDATE outbox SET available_at = statement_timestamp() WHERE status = 'pending'"
DAY_ONE = datetime(1970, 1, 1, tzinfo=UTC)


class Sent:
    """Counts the statements that a connection sends."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, conn: Any) -> None:
        """Count from now on what is sent over this connection."""
        if isinstance(conn, psycopg.Connection | psycopg.AsyncConnection):
            self._watch_psycopg(conn)
            return
        engine = getattr(conn, "engine", None) or conn.get_bind().engine
        event.listen(getattr(engine, "sync_engine", engine), "before_cursor_execute", self._note)

    def _watch_psycopg(self, conn: Any) -> None:
        wait = conn.wait

        def watched(*given: Any, **named: Any) -> Any:
            self.count += 1
            return wait(*given, **named)

        conn.wait = watched

    def _note(self, *_: Any) -> None:
        self.count += 1


class _Enqueue(Target):
    adapter: ClassVar[str]
    batch = 200

    def __init__(self) -> None:
        self._loop = Loop()
        self._sent = Sent()
        self._producer: Producer | None = None

    @contextmanager
    def opened(self, places: Places) -> Iterator[None]:
        url = places.database("producers")
        with self._loop.running():
            stack = AsyncExitStack()
            self._producer = self._loop.run(lambda: stack.enter_async_context(self._connected(url)))
            try:
                yield
            finally:
                self._loop.run(stack.aclose)

    @asynccontextmanager
    async def _connected(self, url: str) -> AsyncIterator[Producer]:
        adapter = next(each for each in ADAPTERS if each.name == self.adapter)
        async with adapter.producer(url) as producer:
            self._sent.watch(producer.conn)
            yield producer

    def case(self, chance: Random) -> Case:
        return message(chance)

    def judged(self, cases: Sequence[Case]) -> list[Result]:
        return self._loop.run(lambda: self._judged(cases))

    async def _judged(self, cases: Sequence[Case]) -> list[Result]:
        producer = self._producer
        assert producer is not None, "it is open"  # noqa: S101 - for the reader and mypy
        run = _Run(producer, self._sent, cases)
        try:
            await run.enqueue_all()
            await run.claim_twice()
        except Exception as error:  # noqa: BLE001 - one of the cases broke it for all
            run.blame(unexpected(error))
            await producer.rollback()
        await producer.execute("TRUNCATE outbox")
        await producer.commit()
        return [run.results.get(number, failed("never claimed")) for number in range(len(cases))]


class EnqueuePsycopg(_Enqueue):
    name = "enqueue"
    share = 16
    adapter = "psycopg"


class EnqueueAsync(_Enqueue):
    name = "enqueue-async"
    share = 6
    adapter = "psycopg async"


class EnqueueSqlalchemy(_Enqueue):
    name = "enqueue-asyncpg"
    share = 4
    adapter = "AsyncSession asyncpg"


class EnqueueSession(_Enqueue):
    name = "enqueue-psycopg2"
    share = 4
    adapter = "Session psycopg2"


class _Run:
    """One batch on its way."""

    def __init__(self, producer: Producer, sent: Sent, cases: Sequence[Case]) -> None:
        self.results: dict[int, Result] = {}
        self._producer, self._sent, self._cases = producer, sent, cases
        self._rows: dict[int, int] = {}
        """From a row's id to the number of its case."""
        self._unwanted: set[int] = set()

    def blame(self, result: Result) -> None:
        """Give this verdict to every case that has none."""
        for number in range(len(self._cases)):
            self.results.setdefault(number, result)

    async def enqueue_all(self) -> None:
        """Enqueue: good ones many at once, since that is much quicker, and the others one by one."""
        together: list[int] = []
        for number, case in enumerate(self._cases):
            if case.get("expected") == GOOD and number % 4:
                together.append(number)
            else:
                await self._enqueue_alone(number, case)
            if len(together) == TOGETHER:
                await self._enqueue_together(together)
                together = []
        await self._enqueue_together(together)
        await self._check_dues()
        await self._producer.execute(ALL_DUE)
        await self._producer.commit()

    async def _enqueue_alone(self, number: int, case: Mapping[str, Any]) -> None:
        result = await self._enqueue(number, case)
        if result is not None:
            self.results[number] = result

    async def _enqueue_together(self, numbers: Sequence[int]) -> None:
        """Enqueue these with one call; one by one where that is refused, to learn which one it was."""
        given = [self._new(self._cases[number]) for number in numbers]
        try:
            receipts = await self._producer.enqueue_many(given)
        except FencepostError:
            for number in numbers:
                await self._enqueue_alone(number, self._cases[number])
        else:
            self._rows |= {receipt.id: number for receipt, number in zip(receipts, numbers, strict=True)}

    def _new(self, case: Mapping[str, Any]) -> NewMessage:
        given = {"event_type": "x", "payload": None, **case}
        return NewMessage(event_type=given["event_type"], payload=given["payload"], **case.get("options", {}))

    async def _enqueue(self, number: int, case: Mapping[str, Any]) -> Result | None:
        """Return a verdict, None where the message is in and has to come out yet."""
        before = self._sent.count
        try:
            receipt = await self._one(number, case)
        except DedupeConflict as error:
            await self._producer.execute("SELECT 1")
            return refused(error)
        except FencepostError as error:
            if self._sent.count != before:
                return failed("refused after database work", error)
            await self._producer.execute("SELECT 1")  # fails where the transaction is spoilt
            return against_case("refused", error) if case.get("expected") == GOOD else refused(error)
        except Exception as error:  # noqa: BLE001 - the finding
            await self._start_anew(number)
            return unexpected(error)
        if case.get("expected") == BAD:
            self._unwanted.add(receipt.id)
            return against_case("accepted what it must refuse", receipt)
        self._rows[receipt.id] = number
        return None

    async def _one(self, number: int, case: Mapping[str, Any]) -> Any:
        options = case.get("options", {})
        event_type, payload = case.get("event_type", "x"), case.get("payload")
        if number % 3:
            return await self._producer.enqueue(event_type, payload, **options)
        return (await self._producer.enqueue_many([self._new(case)]))[0]

    async def _start_anew(self, number: int) -> None:
        """Enqueue once more what an error of the database took with it."""
        await self._producer.rollback()
        again, self._rows = list(self._rows.values()), {}
        for other in again:
            receipt = await self._one(other, self._cases[other])
            self._rows[receipt.id] = other

    async def _check_dues(self) -> None:
        for row_id, due, created in await self._producer.execute(LATEST):
            if row_id in self._unwanted:
                continue
            number = self._rows[row_id]
            options = self._cases[number].get("options", {})
            expected = created + _microseconds(options.get("delay") or timedelta(0))
            if options.get("available_at") is not None:
                expected = _microseconds(options["available_at"] - DAY_ONE)
            if due != expected:
                self.results[number] = failed("another instant", f"{due} instead of {expected}")

    async def claim_twice(self) -> None:
        """Claim all of it, compare, give it back as failed, claim and compare again."""
        for attempt in (1, 2):
            claimed = [each for each in await self._claim_all() if each.id not in self._unwanted]
            for each in claimed:
                number = self._rows[each.id]
                if number not in self.results or (attempt == 2 and self.results[number] is ACCEPTED):
                    self.results[number] = self._compared(each, self._cases[number], attempt)
            if attempt == 1:
                lost = await self._producer.call("reschedule", claimed, timedelta(0), ERROR)
            else:
                lost = await self._producer.call("mark_done", claimed)
            for each in lost:
                self.results[self._rows[each.id]] = failed("lost lease")
            seen = {self._rows[each.id] for each in claimed}
            for number in set(self._rows.values()) - seen:
                self.results[number] = failed("not claimed", f"attempt {attempt}")
            await self._producer.commit()

    async def _claim_all(self) -> list[Claimed]:
        found: list[Claimed] = []
        empty = 0
        while len(found) < len(self._rows) and empty < 3:
            claimed = await self._producer.call("claim", "fuzz", None, 500)
            await self._producer.commit()
            found += claimed
            empty = 0 if claimed else empty + 1
        return found

    def _compared(self, claimed: Claimed, case: Mapping[str, Any], attempt: int) -> Result:
        message = claimed.message
        for name, wanted in _expected(case).items():
            got = getattr(message, name)
            if got != wanted or type(got) is not type(wanted):
                return failed(f"another {name}", f"{got!r:.300} instead of {wanted!r:.300}")
        if dict(message.headers) != dict(case.get("options", {}).get("headers") or {}):
            return failed("other headers", dict(message.headers))
        if claimed.attempt != attempt:
            return failed("another attempt", claimed.attempt)
        return ACCEPTED


def _expected(case: Mapping[str, Any]) -> dict[str, Any]:
    options: Mapping[str, Any] = case.get("options", {})
    payload: Any = case.get("payload")
    is_bytes = isinstance(payload, bytes | bytearray | memoryview)
    pair = options.get("aggregate") or (None, None)
    key = options.get("ordering_key")
    if key is None and options.get("ordered"):
        key = json.dumps(list(pair), ensure_ascii=False, separators=(",", ":"))
    default_type = "application/octet-stream" if is_bytes else "application/json"
    found: dict[str, Any] = {
        "event_type": case.get("event_type", "x"),
        "payload": bytes(payload) if is_bytes else _as_json(payload),
        "queue": options.get("queue", "default"),
        "aggregate_type": pair[0],
        "aggregate_id": pair[1],
        "ordering_key": key,
        "content_type": options.get("content_type") or default_type,
    }
    if isinstance(options.get("message_id"), UUID):
        found["message_id"] = options["message_id"]
    return found


def _as_json(payload: Any) -> bytes:
    # JSON text is kept as it stands; of anything else Python's own writing of it is what is promised.
    if type(payload).__name__ == "JsonText":
        return str(payload).encode()
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
