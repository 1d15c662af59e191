"""The fake store in a history: driven by hand, without an event loop that runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

from fencepost.core.operation import Operation, Rows, Statement, arun
from lab.conformance.seen import MINUTE, Look, Rest, Seen, SeenJob, minutes
from lab.conformance.store import Ended
from lab.fake_store import FakeDatabase, FakeSession
from lab.fake_store.rows import (
    ATTEMPT,
    AUDIT,
    CRON,
    FAR,
    FENCE,
    INBOX,
    INBOX_KEY,
    JOB,
    JOB_AUDIT,
    KEY,
    OUTBOX,
    QUEUE,
    JobRow,
    OutboxRow,
)
from lab.fake_store.statements import STATEMENTS
from lab.fake_store.turn import Answer

TICK = 1_000
"""Microseconds by which the clock moves on between two statements."""

FIRST = 1_700_000_000 * 1_000_000


class FakeStore:
    """A new fake database for each history."""

    name = "fake"

    def __init__(self, statements: Mapping[str, Answer] = STATEMENTS) -> None:
        self._statements = statements
        self.sent: Counter[str] = Counter()
        """How often each statement was sent, in all histories."""
        self._loop = asyncio.new_event_loop()
        self.now = FIRST
        self.empty(jobs=False)

    def close(self) -> None:
        """Close the event loop that makes the futures."""
        self._loop.close()

    def empty(self, *, jobs: bool) -> None:
        self.now = FIRST
        self.used: set[str] = set()
        """Names of the statements that the history has sent."""
        self._database = FakeDatabase(
            self._clock, statements=self._statements, new_future=self._loop.create_future
        )
        self._sessions = [self._database.session(f"s{number}") for number in (0, 1)]
        self._waiting: dict[int, Coroutine[Any, Any, Ended]] = {}

    def _clock(self) -> float:
        self.now += TICK
        return self.now / 1_000_000

    def begin(self, session: int) -> None:
        self._sessions[session].begin()

    def end(self, session: int, *, commits: bool) -> None:
        if commits:
            _at_once(self._sessions[session].commit())
        else:
            self._sessions[session].rollback()

    def start(
        self, session: int, operation: Operation[Any], *, atomic: bool, will_wait: bool = False
    ) -> Ended | None:
        self._waiting[session] = self._ended(self._sessions[session], operation, atomic)
        return self.settle(session)

    def settle(self, session: int) -> Ended | None:
        try:
            self._waiting[session].send(None)
        except StopIteration as stop:
            del self._waiting[session]
            ended: Ended = stop.value
            return ended
        return None

    async def _ended(self, session: FakeSession, operation: Operation[Any], atomic: bool) -> Ended:
        own = atomic and not session.in_transaction
        try:
            if own:
                session.begin()
            result = await arun(operation, lambda statement: self._sent(session, statement))
            if own:
                await session.commit()
        except Exception as error:  # noqa: BLE001 - it is compared with that of another store
            if own:
                session.rollback()
            return Ended(error=type(error).__name__)
        return Ended(result)

    async def _sent(self, session: FakeSession, statement: Statement) -> Rows:
        self.used.add(statement.name)
        self.sent[statement.name] += 1
        return await session.execute(statement)

    def look(self, session: int) -> Look:
        self.now += TICK
        now = self.now
        rows = self._sessions[session].view(OUTBOX)
        is_open = [row for row in rows if row.is_open]
        order = sorted(is_open, key=lambda row: (row.available_at, row.id))
        jobs = tuple(_seen_job(row, now) for row in self._sessions[session].view(JOB))
        return Look(tuple(_seen(row, now) for row in rows), tuple(row.id for row in order), jobs)

    def rest(self) -> Rest:
        at = self._database.rows
        return Rest(
            tuple(
                (
                    *(row.queue, row.paused, row.max_attempts, row.sequenced, row.breaker_seen),
                    *(row.breaker_version, row.breaker_opened_at is not None, row.breaker_trips),
                    *(row.ledger, self._until(row.rate_spent_until)),
                )
                for row in at(QUEUE)
            ),
            tuple(map(tuple, at(KEY))),
            tuple((row.message_id, row.fence) for row in at(INBOX)),
            tuple((row.key, row.last_sequence) for row in at(INBOX_KEY)),
            tuple((row.resource, row.token) for row in at(FENCE)),
            tuple((row.action, row.row_id, row.before["attempts"], row.before["status"]) for row in at(AUDIT)),
            tuple(
                (row.action, row.row_id, *(row.before[name] for name in ("attempts", "status", "fence")))
                for row in at(JOB_AUDIT)
            ),
            tuple((*row[:4], self._until(row.last_tick), self._until(row.seen_at)) for row in at(CRON)),
            tuple((*row[1:7], row.result, row.error, row.lease_lost) for row in at(ATTEMPT)),
        )

    def _until(self, instant: int | None) -> int | None:
        return None if instant is None else minutes(instant - self.now)

    def pass_time(self, minutes: int) -> None:
        self.now += minutes * MINUTE

    def lose(self, row_id: int) -> None:
        self._database.committed[OUTBOX].pop(row_id, None)


def _seen(row: OutboxRow, now: int) -> Seen:
    return Seen(
        *(row.id, row.queue, row.ordering_key, row.key_sequence, row.recovery_policy, row.status, row.outcome),
        *(row.attempts, row.lease_version, row.reclaim_count, row.lease_owner),
        None if row.available_at == FAR else minutes(row.available_at - now),
        row.available_at <= now,
        None if row.lease_until is None else minutes(row.lease_until - now),
        row.lease_until is not None and row.lease_until < now,
        None if (row.done_at or row.dead_at) is None else minutes((row.done_at or row.dead_at or 0) - now),
        row.last_error,
        row.routed,
    )


def _seen_job(row: JobRow, now: int) -> SeenJob:
    def until(instant: int | None) -> int | None:
        return None if instant is None else minutes(instant - now)

    return SeenJob(
        *(row.id, row.queue, row.task, row.unique_key, row.lane, row.recovery_policy, row.max_attempts),
        *(row.status, row.outcome, row.attempts, row.fence, row.reclaim_count, row.reserved_by),
        minutes(row.available_at - now),
        row.available_at <= now,
        until(row.lease_expires_at),
        row.lease_expires_at is not None and row.lease_expires_at < now,
        until(row.heartbeat_at),
        until(row.finished_at),
        *(row.progress, row.result, row.last_error),
    )


def _at_once(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("a commit waits")
