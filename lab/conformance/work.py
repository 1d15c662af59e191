"""The operation of each step, as the library makes it, for one store: what it claimed is remembered here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import singledispatchmethod
from typing import Any
from uuid import UUID

from fencepost.core.draft import NewMessage, draft
from fencepost.core.fence import Entrance
from fencepost.core.inbox import entry
from fencepost.core.ledger import AttemptResult, Kind
from fencepost.core.operation import Operation
from fencepost.core.outcome import Action, Dead, Done, Expand, Release, Reschedule
from fencepost.core.records import Claimed
from fencepost.core.states import Event, Outcome
from fencepost.store import (
    breaker,
    enqueue,
    fence,
    fenced,
    inbox,
    keys,
    ledger,
    operators,
    outbox,
    queues,
    rate,
    upkeep,
)
from fencepost.store.catalog import Catalog
from fencepost.store.finalize import finalize, needs_transaction
from fencepost.store.forget import Forgotten
from lab.conformance import job_steps as j
from lab.conformance import steps as s
from lab.conformance.job_work import JobWork

CATALOG = Catalog()
BREAKER_MINUTES = 3
PAUSE = timedelta(minutes=BREAKER_MINUTES)

ACTIONS: Mapping[str, Action] = {
    "done": Done(),
    "retry": Reschedule(Event.RETRY, timedelta(minutes=1), "retried", refund_attempt=False),
    "defer": Reschedule(Event.DEFER, timedelta(minutes=5), "deferred", refund_attempt=True),
    "dead": Dead(Event.PERMANENT_FAILURE, Outcome.PERMANENT, "refused"),
    "release": Release(),
    "expand": Expand(("r", "s")),
}


_ATOMIC = (*(s.Skip, s.PromoteStranded, s.Enqueue, s.AcceptNumber, s.Pause, s.Change, s.Break, s.ClaimWithinRate),)
"""Steps that need a transaction around them, whatever they are about."""


def chosen(things: Sequence[Any], places: s.Places) -> list[Any]:
    """Return those that are there, counted from the newest."""
    return [things[-1 - place] for place in places if place < len(things)]


class Work:
    """What the workers of a history hold or held, and how many messages were made up."""

    def __init__(self) -> None:
        self.claims: list[Claimed] = []
        self.made = 0
        self.rows: list[int] = []
        self.probes: list[int] = []
        self.jobs = JobWork()

    def held(self, places: s.Places) -> list[Claimed]:
        """Return claims, each row once: of several claims of a row the first one that is named."""
        found: dict[int, Claimed] = {}
        for each in chosen(self.claims, places):
            found.setdefault(each.id, each)
        return list(found.values())

    def decided(self, step: s.Finalize) -> list[tuple[Claimed, Action]]:
        """Return the results that a step writes. (Only the worker's own queue is expanded.)"""
        words = [step.actions[at % len(step.actions)] for at in range(len(step.claims))]
        decided = [(each, word) for each, word in zip(self.held(step.claims), words, strict=False)]
        return [(each, ACTIONS["done" if word == "expand" and each.routed else word]) for each, word in decided]

    def is_atomic(self, step: s.Step) -> bool:
        """Tell whether the step needs a transaction around it."""
        match step:
            case s.Finalize():
                return needs_transaction(self.decided(step))
            case s.Release():
                return any(each.ledger for each in self.held(step.claims))
        return isinstance(step, _ATOMIC) or self.jobs.is_atomic(step)

    def remember(self, step: s.Step, result: Any) -> None:
        """Keep what later steps name."""
        self.jobs.remember(step, result)
        if isinstance(step, (s.Claim, s.ClaimSuspects)):
            self.claims += result.claimed
        elif isinstance(step, s.ClaimWithinRate):
            self.claims += result[0].claimed
        elif isinstance(step, s.Break) and step.what == "probe":
            found, version = result
            self.claims += found.claimed
            self.probes += [] if version is None else [version]

    @singledispatchmethod
    def operation(self, step: s.Step) -> Operation[Any]:
        """Return what a step asks of the store."""
        return self.jobs.operation(step)

    @operation.register
    def _(self, step: s.Enqueue) -> Operation[Any]:
        drafts = []
        for at, key in enumerate(step.keys):
            self.made += 1
            message = NewMessage(
                event_type="event",
                payload=step.payload if step.dedupe else self.made,
                queue=step.queue,
                delay=timedelta(minutes=step.delay),
                recovery=step.recovery,
                ordering_key=key,
                dedupe_key=None if step.dedupe is None else f"{step.dedupe}{at}",
            )
            drafts.append(draft(message, UUID(int=self.made, version=4)))
        return enqueue.enqueue_events(CATALOG, [[each] for each in drafts], notify=False)

    @operation.register
    def _(self, step: s.Claim) -> Operation[Any]:
        terms = outbox.ClaimTerms(step.worker, timedelta(minutes=step.lease), step.limit)
        scan = outbox.Scan(park_behind_leased=step.park_behind_leased, longest_run=step.longest_run)
        names = None if step.queue is None else [step.queue]
        return outbox.claim(CATALOG, terms, queues=names, batch=step.batch, scan=scan)

    @operation.register
    def _(self, step: s.ClaimWithinRate) -> Operation[Any]:
        terms = outbox.ClaimTerms(step.worker, timedelta(minutes=1), 3)

        def claim(number: int) -> Operation[outbox.ClaimResult]:
            return outbox.claim(CATALOG, terms, queues=[step.queue], batch=number)

        return rate.claim_within_rate(CATALOG, step.queue, step.batch, claim)

    @operation.register
    def _(self, step: s.ClaimSuspects) -> Operation[Any]:
        return outbox.claim_suspects(
            CATALOG,
            outbox.ClaimTerms(step.worker, timedelta(minutes=1), step.limit),
            queues=[step.queue],
            batch=step.batch,
            max_reclaims=step.max_reclaims,
            spare_attempts=step.spare_attempts,
        )

    @operation.register
    def _(self, step: s.Heartbeat) -> Operation[Any]:
        return fenced.heartbeat(CATALOG, self.held(step.claims), timedelta(minutes=step.lease))

    @operation.register
    def _(self, step: s.Finalize) -> Operation[Any]:
        return finalize(CATALOG, self.decided(step))

    @operation.register
    def _(self, step: s.Release) -> Operation[Any]:
        held = self.held(step.claims)
        write = fenced.release(CATALOG, held, refund_attempt=False)
        return ledger.recorded(CATALOG, write, held, lambda _: (AttemptResult.UNKNOWN, "cut off"))

    @operation.register
    def _(self, step: s.Reap) -> Operation[Any]:
        return outbox.reap(CATALOG, queues=[step.queue], max_attempts=step.max_attempts, limit=step.limit)

    @operation.register
    def _(self, step: s.Retry) -> Operation[Any]:
        return operators.retry_dead(CATALOG, chosen(self.rows, step.rows), actor="op", reason=None, notify=False)

    @operation.register
    def _(self, step: s.Skip) -> Operation[Any]:
        return operators.skip_dead(CATALOG, chosen(self.rows, step.rows), actor="op", reason="why", notify=False)

    @operation.register
    def _(self, step: s.Pause) -> Operation[Any]:
        return queues.set_paused(CATALOG, step.queue, step.paused, actor="op", notify=False)

    @operation.register
    def _(self, step: s.Change) -> Operation[Any]:
        pace = None if step.every is None else 1_000_000.0 if step.every == 0 else 1 / (60 * step.every)
        changes = {"max_attempts": step.max_attempts, "sequenced": step.sequenced, "ledger": step.ledger}
        return _nothing_of(queues.change(CATALOG, step.queue, changes | {"rate": pace}, actor="op", notify=False))

    @operation.register
    def _(self, step: s.PromoteStranded) -> Operation[Any]:
        return keys.promote_stranded(CATALOG, after=None, limit=100)

    @operation.register
    def _(self, step: s.Purge) -> Operation[Any]:
        return upkeep.purge(CATALOG, older_than=timedelta(minutes=step.older_than), limit=step.limit)

    @operation.register
    def _(self, step: s.Stats) -> Operation[Any]:
        return upkeep.stats(CATALOG)

    @operation.register
    def _(self, step: s.Read) -> Operation[Any]:
        return _all_of({name: read(chosen(self.rows, step.rows)) for name, read in READINGS.items()})

    @operation.register
    def _(self, step: s.Accept) -> Operation[Any]:
        body = None if step.body is None else str(step.body).encode()
        return inbox.accept(CATALOG, entry("consumer", step.message, step.fence, body))

    @operation.register
    def _(self, step: s.AcceptNumber) -> Operation[Any]:
        return inbox.accept_in_sequence(
            CATALOG, "consumer", step.key, step.number, allow_gap=step.allow_gap, first=1
        )

    @operation.register
    def _(self, step: s.Admit) -> Operation[Any]:
        return fence.admit(CATALOG, Entrance("receiver", step.resource, step.token))

    @operation.register
    def _(self, step: s.Forget) -> Operation[Any]:
        forget, whose = (inbox.purge, "consumer") if step.what == "inbox" else (fence.purge, "receiver")
        return _only_count(forget(CATALOG, whose, older_than=timedelta(minutes=step.older_than), limit=step.limit))

    @operation.register
    def _(self, step: j.ReadLedger) -> Operation[Any]:
        rows = {Kind.MESSAGE: self.rows, Kind.JOB: self.jobs.rows}
        return _all_of({str(kind): ledger.attempts(CATALOG, kind, chosen(rows[kind], step.rows)) for kind in rows})

    @operation.register
    def _(self, step: j.PurgeLedger) -> Operation[Any]:
        return ledger.purge(CATALOG, older_than=timedelta(minutes=step.older_than), limit=step.limit)

    @operation.register
    def _(self, step: s.Break) -> Operation[Any]:
        return _BREAKERS[step.what](self, step.queue)


def _by_message_id(ids: Sequence[int]) -> Operation[Any]:
    """Look a message up by its row, and by its message id what has the same one."""
    message = yield from operators.show(CATALOG, ids[0] if ids else 0)
    if message is None:
        return None
    first = yield from operators.show(CATALOG, message.message.message_id)
    return first, (yield from operators.show_all(CATALOG, message.message.message_id))


READINGS: Mapping[str, Callable[[Sequence[int]], Operation[Any]]] = {
    "dead": lambda _: operators.list_dead(CATALOG, queue="q", outcome=None, after=0, limit=2),
    "by message id": _by_message_id,
    "freed": lambda ids: keys.freed(CATALOG, ids),
    "queues": lambda _: queues.queue_settings(CATALOG),
    "open": lambda _: queues.has_open(CATALOG, "r"),
    "inbox": lambda _: inbox.has_accepted(CATALOG, "consumer", "m"),
    "number": lambda _: inbox.last_in_sequence(CATALOG, "consumer", "k"),
}


def _nothing_of(operation: Operation[Any]) -> Operation[None]:
    """Leave the result out: it has the instant of the change."""
    yield from operation


def _only_count(operation: Operation[Forgotten]) -> Operation[tuple[int, bool]]:
    """Leave out the instant behind which to go on."""
    found = yield from operation
    return found.count, found.after is None


def _all_of(operations: Mapping[str, Operation[Any]]) -> Operation[dict[str, Any]]:
    """Run operations one after the other; return what each one did."""
    found = {}
    for name, operation in operations.items():
        found[name] = yield from operation
    return found


def _probe(queue: str) -> Operation[Any]:
    terms = outbox.ClaimTerms("w3", timedelta(minutes=1), 3)
    return breaker.claim_probe(CATALOG, terms, queue, patience=PAUSE)


_BREAKERS: Mapping[str, Callable[[Work, str], Operation[Any]]] = {
    "failed": lambda _, queue: breaker.note_unavailable(CATALOG, queue, threshold=2, pause=PAUSE, error="away"),
    "delivered": lambda _, queue: breaker.note_delivered(CATALOG, queue),
    "probe": lambda _, queue: _probe(queue),
    "close": lambda work, queue: breaker.close_breaker(
        CATALOG, queue, version=(work.probes or [1])[-1], notify=False
    ),
    "reopen": lambda work, queue: breaker.reopen_breaker(
        CATALOG, queue, version=(work.probes or [1])[-1], pause=PAUSE, error="still away"
    ),
}
