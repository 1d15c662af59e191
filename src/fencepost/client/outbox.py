"""`Outbox` and `AsyncOutbox`: the operations of `fencepost.store` on the caller's own connection.

None of the methods commits or rolls back. The twins differ in nothing but ``await``; what they share (how
arguments become operations) is in `_OutboxOperations`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar, Unpack
from uuid import uuid4

from fencepost.client.operators import AsyncOperators, Operators
from fencepost.core.draft import MAX_PAYLOAD_BYTES, Draft, MessageOptions, NewMessage, draft
from fencepost.core.ledger import AttemptResult
from fencepost.core.operation import Operation
from fencepost.core.outcome import DONE
from fencepost.core.records import Claimed, Enqueued
from fencepost.core.routing import Routing
from fencepost.core.states import DEAD_OUTCOMES, Outcome
from fencepost.errors import ConfigError, InvalidMessage
from fencepost.observe.tracing import with_current_context
from fencepost.store import fenced, ledger, schema, upkeep
from fencepost.store import outbox as store
from fencepost.store.catalog import Catalog, Names
from fencepost.store.enqueue import enqueue_events
from fencepost.store.finalize import finalize

T = TypeVar("T")

ENQUEUED_IN_AUTOCOMMIT = "the event would be committed apart from the change it announces"
ORDERED_IN_AUTOCOMMIT = "the locks that finalize ordered messages in their turn would not last"


@dataclass(slots=True)
class _Memory:
    """What an outbox remembers from one call to the next, so that each goes on where the last one ended."""

    suspects_turn: bool = False
    queues_to_claim: store.Rotation = field(default_factory=store.Rotation)
    queues_to_reap: store.Rotation = field(default_factory=store.Rotation)
    purged_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutboxOperations:
    """What both twins share: the settings, and how arguments become operations.

    Args:
        schema_name: the schema that holds the tables.
        table: the outbox table's name.
        notify: wake dispatchers with NOTIFY; turn it off for two-phase commit, which forbids it.
        allow_autocommit: accept connections that commit each statement by itself.
        max_payload_bytes: the largest payload to accept.
        routing: the routes, where the producer knows them: a message for each destination is written at once. What
            they do not match is written as it is, for the dispatcher's own routes.
        trace: put the W3C trace context of the current OpenTelemetry span, if there is one, into the headers.
    """

    schema_name: str = "public"
    table: str = "outbox"
    notify: bool = True
    allow_autocommit: bool = False
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    routing: Routing | None = None
    trace: bool = True
    _memory: _Memory = field(default_factory=_Memory, repr=False, compare=False)

    @property
    def catalog(self) -> Catalog:
        """The SQL of this outbox's tables."""
        return Catalog(Names(self.schema_name, self.table))

    def schema_sql(self) -> str:
        """Return the whole schema as one SQL script."""
        return schema.script(self.catalog)

    def _draft(self, message: NewMessage) -> Draft:
        if self.trace:
            headers = with_current_context(message.headers)
            if headers is not message.headers:
                message = replace(message, headers=headers)
        return draft(message, message.message_id or uuid4(), self.max_payload_bytes)

    def _events(self, messages: Iterable[NewMessage]) -> list[list[Draft]]:
        """Return the messages checked, each as one draft, or as one for each of its destinations."""
        drafts = [self._draft(message) for message in messages]
        if len({each.message_id for each in drafts}) < len(drafts):
            raise InvalidMessage("two messages of the batch have one message_id: receivers would drop the second")
        return [self._copies(each) for each in drafts]

    def _copies(self, message: Draft) -> list[Draft]:
        if self.routing is None:
            return [message]
        found = self.routing.destinations(message.event_type, message.queue, message.aggregate_type)
        return [replace(message, queue=queue, routed=True) for queue in found] or [message]

    def _claim(
        self, owner: str, queues: Sequence[str] | None, batch: int, lease: timedelta, max_attempts: int
    ) -> Operation[list[Claimed]]:
        if batch < 1 or max_attempts < 1 or lease <= timedelta(0) or not owner:
            raise ConfigError("claim needs an owner, and batch, lease and max_attempts above 0")
        terms = store.ClaimTerms(owner, lease, max_attempts)
        # A message that may have crashed its last worker is handed out alone, in turns with normal batches,
        # so that neither waits for the other.
        self._memory.suspects_turn = not self._memory.suspects_turn
        return self._claim_in_turn(terms, queues, batch, self._memory.suspects_turn)

    def _claim_in_turn(
        self, terms: store.ClaimTerms, queues: Sequence[str] | None, batch: int, suspects_turn: bool
    ) -> Operation[list[Claimed]]:
        names = list(queues) if queues is not None else (yield from self._due_queues())
        # In a new order each time: no queue stands in front of another.
        random.shuffle(names)
        for suspects in (suspects_turn, not suspects_turn):
            if suspects:
                found = yield from store.claim_suspects(self.catalog, terms, queues=names)
            else:
                found = yield from store.claim(self.catalog, terms, queues=names, batch=batch)
            if found.claimed:
                return found.claimed
        return []

    def _due_queues(self) -> Operation[list[str]]:
        return store.open_queues(self.catalog, rotation=self._memory.queues_to_claim)

    def _heartbeat(
        self, messages: Claimed | Iterable[Claimed], lease: timedelta
    ) -> tuple[list[Claimed], Operation[frozenset[int]]]:
        if lease <= timedelta(0):
            raise ConfigError("heartbeat needs a lease above 0")
        claimed = _many(messages)
        return claimed, fenced.heartbeat(self.catalog, claimed, lease)

    def _reap(
        self, max_attempts: int, queues: Sequence[str] | None, limit: int
    ) -> Operation[list[tuple[int, Outcome]]]:
        if max_attempts < 1 or limit < 1:
            raise ConfigError("reap needs max_attempts and a limit above 0")
        chosen = self._memory.queues_to_reap if queues is None else queues
        return store.reap(self.catalog, queues=chosen, max_attempts=max_attempts, limit=limit)

    def _purge(self, older_than: timedelta, limit: int) -> Operation[int]:
        if older_than < timedelta(0) or limit < 1:
            raise ConfigError("purge needs older_than of at least 0 and a limit above 0")
        return self._purge_on(older_than, limit)

    def _purge_on(self, older_than: timedelta, limit: int) -> Operation[int]:
        after = self._memory.purged_to
        step = yield from upkeep.purge(self.catalog, older_than=older_than, limit=limit, after=after)
        self._memory.purged_to = step.after or 0
        return step.deleted

    def _reschedule(
        self, messages: Claimed | Iterable[Claimed], delay: timedelta, error: str, refund_attempt: bool
    ) -> tuple[list[Claimed], Operation[frozenset[int]]]:
        claimed = _many(messages)
        entries = [fenced.Rescheduled(each, delay, error, refund_attempt) for each in claimed]
        result = AttemptResult.DEFERRED if refund_attempt else AttemptResult.FAILED
        return claimed, self._recorded(fenced.reschedule(self.catalog, entries), claimed, result, error)

    def _mark_dead(
        self, messages: Claimed | Iterable[Claimed], error: str, outcome: str
    ) -> tuple[list[Claimed], Operation[frozenset[int]]]:
        if outcome not in DEAD_OUTCOMES:
            raise ConfigError(f"outcome must be one of {', '.join(sorted(DEAD_OUTCOMES))}, not {outcome!r}")
        claimed = _many(messages)
        entries = [fenced.Buried(each, Outcome(outcome), error) for each in claimed]
        result = _RESULTS_OF_DEAD.get(Outcome(outcome), AttemptResult.FAILED)
        return claimed, self._recorded(fenced.mark_dead(self.catalog, entries), claimed, result, error)

    def _mark_done(self, claimed: Collection[Claimed]) -> Operation[frozenset[int]]:
        found = yield from finalize(self.catalog, [(each, DONE) for each in claimed])
        return found.lost | found.out_of_turn

    def _release(self, claimed: Collection[Claimed], refund_attempt: bool) -> Operation[frozenset[int]]:
        # An attempt that is not given back was begun, and nobody knows what became of it.
        result = AttemptResult.RELEASED if refund_attempt else AttemptResult.UNKNOWN
        write = fenced.release(self.catalog, claimed, refund_attempt=refund_attempt)
        return self._recorded(write, claimed, result)

    def _recorded(
        self,
        write: Operation[frozenset[int]],
        claimed: Collection[Claimed],
        result: AttemptResult,
        error: str | None = None,
    ) -> Operation[frozenset[int]]:
        """Note the end of attempts beside a holder's write, where their queue keeps a ledger."""
        return ledger.recorded(self.catalog, write, claimed, lambda _: (result, error))


_RESULTS_OF_DEAD = {
    Outcome.PERMANENT: AttemptResult.REFUSED,
    Outcome.UNROUTABLE: AttemptResult.REFUSED,
    Outcome.UNKNOWN_OUTCOME: AttemptResult.UNKNOWN,
}


def _any_ordered(claimed: Iterable[Claimed]) -> bool:
    return any(each.message.ordering_key is not None for each in claimed)


def _many(messages: Claimed | Iterable[Claimed]) -> list[Claimed]:
    return [messages] if isinstance(messages, Claimed) else list(messages)


def _chosen(claimed: Iterable[Claimed], ids: frozenset[int]) -> list[Claimed]:
    return [each for each in claimed if each.id in ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox(_OutboxOperations, Operators):
    """The outbox on a sync connection."""

    def enqueue(self, conn: Any, event_type: str, payload: Any, **options: Unpack[MessageOptions]) -> Enqueued:
        """Write one message in the caller's transaction; see `NewMessage` for the options.

        Raises:
            InvalidMessage: refused before any database work; the transaction is untouched.
            AutocommitRefused: the connection is in no transaction.
            DedupeConflict: the dedupe key belongs to another event; the transaction stays usable.
        """
        events = self._events([NewMessage(event_type=event_type, payload=payload, **options)])
        self._refuse_autocommit(conn, ENQUEUED_IN_AUTOCOMMIT)
        return self._run(conn, enqueue_events(self.catalog, events, notify=self.notify))[0]

    def enqueue_many(self, conn: Any, messages: Iterable[NewMessage]) -> list[Enqueued]:
        """Write many messages, some thousands a second; all are checked before the first is sent.

        Transactions that share dedupe keys should name them in one order, sorted, or the database may break
        a deadlock between them by failing one. See `enqueue` for the errors.
        """
        events = self._events(messages)
        self._refuse_autocommit(conn, ENQUEUED_IN_AUTOCOMMIT)
        return self._run(conn, enqueue_events(self.catalog, events, notify=self.notify))

    def claim(
        self,
        conn: Any,
        owner: str,
        queues: Sequence[str] | None = None,
        batch: int = 100,
        lease: timedelta = timedelta(seconds=60),
        max_attempts: int = 12,
    ) -> list[Claimed]:
        """Lease up to ``batch`` due messages; commit before you publish them.

        Attempts are charged here, so that a crash counts. A message taken over from an expired lease comes
        alone. ``owner`` is for people: the token decides.
        """
        return self._run(conn, self._claim(owner, queues, batch, lease, max_attempts))

    def heartbeat(
        self, conn: Any, messages: Claimed | Iterable[Claimed], lease: timedelta = timedelta(seconds=60)
    ) -> list[Claimed]:
        """Extend leases to ``lease`` from now; return the messages whose lease is lost."""
        claimed, operation = self._heartbeat(messages, lease)
        return _chosen(claimed, self._run(conn, operation))

    def mark_done(self, conn: Any, messages: Claimed | Iterable[Claimed]) -> list[Claimed]:
        """Finalize as delivered; return the messages whose lease is lost, of which nothing was changed.

        Ordered messages are finalized in their turn: one that was published although an earlier message of its key
        was lost goes back, and counts as lost. They need a transaction at READ COMMITTED: their keys are locked.

        Raises:
            AutocommitRefused: ordered messages on a connection that is in no transaction.
        """
        claimed = _many(messages)
        if _any_ordered(claimed):
            self._refuse_autocommit(conn, ORDERED_IN_AUTOCOMMIT)
        return _chosen(claimed, self._run(conn, self._mark_done(claimed)))

    def reschedule(
        self,
        conn: Any,
        messages: Claimed | Iterable[Claimed],
        delay: timedelta,
        error: str,
        refund_attempt: bool = False,
    ) -> list[Claimed]:
        """Put back to pending, due after ``delay``; return the messages whose lease is lost.

        It does not compare attempts with the limit: a row at the limit becomes dead at its next claim.
        """
        claimed, operation = self._reschedule(messages, delay, error, refund_attempt)
        return _chosen(claimed, self._run(conn, operation))

    def mark_dead(
        self, conn: Any, messages: Claimed | Iterable[Claimed], error: str, outcome: str = "permanent"
    ) -> list[Claimed]:
        """Make dead, for a person to look at; return the messages whose lease is lost."""
        claimed, operation = self._mark_dead(messages, error, outcome)
        return _chosen(claimed, self._run(conn, operation))

    def release(
        self, conn: Any, messages: Claimed | Iterable[Claimed], refund_attempt: bool = True
    ) -> list[Claimed]:
        """Give back at once what was not started; return the messages whose lease is lost."""
        claimed = _many(messages)
        return _chosen(claimed, self._run(conn, self._release(claimed, refund_attempt)))

    def reap(
        self, conn: Any, max_attempts: int = 12, queues: Sequence[str] | None = None, limit: int = 1_000
    ) -> int:
        """Make dead what expired and may not be taken over, one bounded step; return how many."""
        return len(self._run(conn, self._reap(max_attempts, queues, limit)))

    def purge(self, conn: Any, older_than: timedelta, limit: int = 1_000) -> int:
        """Delete done messages older than ``older_than``, one bounded step; return how many.

        Call it again and again, with pauses: each call goes on where the last one ended, and begins anew at the
        end. Where messages that must stay lie in the way, a step deletes none although there are more.
        """
        return self._run(conn, self._purge(older_than, limit))

    def migrate(self, conn: Any) -> list[schema.Migration]:
        """Bring the tables up to date, in the caller's transaction; return what was applied.

        A transaction of another isolation level becomes READ COMMITTED, which only a fresh one can.

        Raises:
            SchemaError: something else has the tables' names, the database cannot hold them, or the transaction
                is not READ COMMITTED and no longer fresh.
        """
        self._refuse_autocommit(conn, ENQUEUED_IN_AUTOCOMMIT)
        return self._run(conn, schema.migrate(self.catalog))

    def check_schema(self, conn: Any) -> list[str]:
        """Return what is wrong with the tables, each with its remedy."""
        return self._run(conn, schema.check(self.catalog))


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOutbox(_OutboxOperations, AsyncOperators):
    """The outbox on an async connection; the twin of `Outbox`."""

    async def enqueue(
        self, conn: Any, event_type: str, payload: Any, **options: Unpack[MessageOptions]
    ) -> Enqueued:
        """Write one message in the caller's transaction; see `NewMessage` for the options.

        Raises:
            InvalidMessage: refused before any database work; the transaction is untouched.
            AutocommitRefused: the connection is in no transaction.
            DedupeConflict: the dedupe key belongs to another event; the transaction stays usable.
        """
        events = self._events([NewMessage(event_type=event_type, payload=payload, **options)])
        await self._refuse_autocommit(conn, ENQUEUED_IN_AUTOCOMMIT)
        return (await self._run(conn, enqueue_events(self.catalog, events, notify=self.notify)))[0]

    async def enqueue_many(self, conn: Any, messages: Iterable[NewMessage]) -> list[Enqueued]:
        """Write many messages, some thousands a second; all are checked before the first is sent.

        Transactions that share dedupe keys should name them in one order, sorted, or the database may break
        a deadlock between them by failing one. See `enqueue` for the errors.
        """
        events = self._events(messages)
        await self._refuse_autocommit(conn, ENQUEUED_IN_AUTOCOMMIT)
        return await self._run(conn, enqueue_events(self.catalog, events, notify=self.notify))

    async def claim(
        self,
        conn: Any,
        owner: str,
        queues: Sequence[str] | None = None,
        batch: int = 100,
        lease: timedelta = timedelta(seconds=60),
        max_attempts: int = 12,
    ) -> list[Claimed]:
        """Lease up to ``batch`` due messages; commit before you publish them.

        Attempts are charged here, so that a crash counts. A message taken over from an expired lease comes
        alone. ``owner`` is for people: the token decides.
        """
        return await self._run(conn, self._claim(owner, queues, batch, lease, max_attempts))

    async def heartbeat(
        self, conn: Any, messages: Claimed | Iterable[Claimed], lease: timedelta = timedelta(seconds=60)
    ) -> list[Claimed]:
        """Extend leases to ``lease`` from now; return the messages whose lease is lost."""
        claimed, operation = self._heartbeat(messages, lease)
        return _chosen(claimed, await self._run(conn, operation))

    async def mark_done(self, conn: Any, messages: Claimed | Iterable[Claimed]) -> list[Claimed]:
        """Finalize as delivered; return the messages whose lease is lost, of which nothing was changed.

        Ordered messages are finalized in their turn: one that was published although an earlier message of its key
        was lost goes back, and counts as lost. They need a transaction at READ COMMITTED: their keys are locked.

        Raises:
            AutocommitRefused: ordered messages on a connection that is in no transaction.
        """
        claimed = _many(messages)
        if _any_ordered(claimed):
            await self._refuse_autocommit(conn, ORDERED_IN_AUTOCOMMIT)
        return _chosen(claimed, await self._run(conn, self._mark_done(claimed)))

    async def reschedule(
        self,
        conn: Any,
        messages: Claimed | Iterable[Claimed],
        delay: timedelta,
        error: str,
        refund_attempt: bool = False,
    ) -> list[Claimed]:
        """Put back to pending, due after ``delay``; return the messages whose lease is lost.

        It does not compare attempts with the limit: a row at the limit becomes dead at its next claim.
        """
        claimed, operation = self._reschedule(messages, delay, error, refund_attempt)
        return _chosen(claimed, await self._run(conn, operation))

    async def mark_dead(
        self, conn: Any, messages: Claimed | Iterable[Claimed], error: str, outcome: str = "permanent"
    ) -> list[Claimed]:
        """Make dead, for a person to look at; return the messages whose lease is lost."""
        claimed, operation = self._mark_dead(messages, error, outcome)
        return _chosen(claimed, await self._run(conn, operation))

    async def release(
        self, conn: Any, messages: Claimed | Iterable[Claimed], refund_attempt: bool = True
    ) -> list[Claimed]:
        """Give back at once what was not started; return the messages whose lease is lost."""
        claimed = _many(messages)
        return _chosen(claimed, await self._run(conn, self._release(claimed, refund_attempt)))

    async def reap(
        self, conn: Any, max_attempts: int = 12, queues: Sequence[str] | None = None, limit: int = 1_000
    ) -> int:
        """Make dead what expired and may not be taken over, one bounded step; return how many."""
        return len(await self._run(conn, self._reap(max_attempts, queues, limit)))

    async def purge(self, conn: Any, older_than: timedelta, limit: int = 1_000) -> int:
        """Delete done messages older than ``older_than``, one bounded step; return how many.

        Call it again and again, with pauses: each call goes on where the last one ended, and begins anew at the
        end. Where messages that must stay lie in the way, a step deletes none although there are more.
        """
        return await self._run(conn, self._purge(older_than, limit))

    async def migrate(self, conn: Any) -> list[schema.Migration]:
        """Bring the tables up to date, in the caller's transaction; return what was applied.

        A transaction of another isolation level becomes READ COMMITTED, which only a fresh one can.

        Raises:
            SchemaError: something else has the tables' names, the database cannot hold them, or the transaction
                is not READ COMMITTED and no longer fresh.
        """
        await self._refuse_autocommit(conn, ENQUEUED_IN_AUTOCOMMIT)
        return await self._run(conn, schema.migrate(self.catalog))

    async def check_schema(self, conn: Any) -> list[str]:
        """Return what is wrong with the tables, each with its remedy."""
        return await self._run(conn, schema.check(self.catalog))
