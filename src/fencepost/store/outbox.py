"""The outbox as operations: enqueue, claim, heartbeat, finalize and reap.

Every write to a claimed row carries the fence ``status = 'processing' AND lease_version = token``. None of
these operations begins or ends a transaction: that is the caller's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from fencepost.core.draft import Draft
from fencepost.core.error_text import storable
from fencepost.core.lease import lost
from fencepost.core.operation import Operation, Row
from fencepost.core.records import Claimed, Enqueued
from fencepost.core.states import Outcome, Recovery, State
from fencepost.errors import DedupeConflict, SchemaError
from fencepost.store.catalog import Catalog
from fencepost.store.limits import MAX_BATCH, seconds
from fencepost.store.rows import MESSAGE_COLUMNS, message_of

FRONT_WINDOW = 10_000
"""Rows that the search for expired leases looks at: leased rows stand at the front of the ready index, so
this is the number of messages in flight, over all workers of a queue, up to which each one is found at once."""

QUEUES_PER_LOOK = 5_000
"""Queues that one look for something due goes through."""

QUEUES_PER_STEP = 100
"""Queues that one claim or reap asks, so that a transaction stays short however many there are."""

UNLIMITED = 1_000_000_000
"""The most attempts and reclaims that the table's checks let a row have."""

MAX_EXHAUSTED = 1_000
"""Rows over the limit of attempts past which a claim stops looking for others behind them."""
_DEDUPE_TRIES = 5

# --- producers -----------------------------------------------------------------------------------------


def enqueue(catalog: Catalog, message: Draft, *, notify: bool) -> Operation[Enqueued]:
    """Insert one message, or find the one that has its dedupe key.

    Raises:
        DedupeConflict: the key exists with another event type or payload.
        SchemaError: something in the database made the INSERT write nothing.
    """
    params = _insert_params(message) | {"channel": catalog.names.channel if notify else None}
    for _ in range(_DEDUPE_TRIES):
        rows = yield catalog.statement("enqueue", params)
        if rows:
            return Enqueued(rows[0][0], message.message_id, created=True)
        if message.dedupe_key is None:
            raise _nothing_inserted(catalog)
        existing = yield from _duplicate_of(catalog, message)
        if existing is not None:
            return existing
        # The row that stood in the way was purged between the two statements: insert again.
    raise DedupeConflict(f"dedupe key {message.dedupe_key!r} of queue {message.queue!r} comes and goes: try again")


def enqueue_many(catalog: Catalog, drafts: Sequence[Draft], *, notify: bool) -> Operation[list[Enqueued]]:
    """Insert many messages with one statement; ids are drawn in the given order."""
    if not drafts:
        return []
    columns = [_insert_params(message) for message in drafts]
    rows = yield catalog.statement("enqueue_many", {key: [row[key] for row in columns] for key in columns[0]})
    ids = {UUID(message_id): row_id for row_id, message_id in rows}
    if notify and ids:
        yield catalog.statement("notify", {"channel": catalog.names.channel})
    receipts = []
    for message in drafts:
        if message.message_id in ids:
            receipts.append(Enqueued(ids[message.message_id], message.message_id, created=True))
        elif message.dedupe_key is None:
            raise _nothing_inserted(catalog)
        else:
            receipts.append((yield from enqueue(catalog, message, notify=notify)))
    return receipts


def _insert_params(message: Draft) -> dict[str, Any]:
    return {
        "message_id": str(message.message_id),
        "queue": message.queue,
        "event_type": message.event_type,
        "aggregate_type": message.aggregate_type,
        "aggregate_id": message.aggregate_id,
        "payload": message.payload,
        "payload_bytes": message.payload_bytes,
        "content_type": message.content_type,
        "headers": message.headers,
        "dedupe_key": message.dedupe_key,
        "recovery": str(message.recovery),
        "available_at": message.available_at,
        "delay": message.delay,
    }


def _nothing_inserted(catalog: Catalog) -> SchemaError:
    # To insert again could only write the message twice.
    return SchemaError(
        f"an INSERT into {catalog.names.placeholders()['outbox']} answered with no row: "
        "remove the trigger or the rule that swallows it, and roll this transaction back"
    )


def _duplicate_of(catalog: Catalog, message: Draft) -> Operation[Enqueued | None]:
    rows = yield catalog.statement(
        "enqueue_duplicate",
        {
            "queue": message.queue,
            "dedupe_key": message.dedupe_key,
            "event_type": message.event_type,
            "payload": message.payload,
            "payload_bytes": message.payload_bytes,
        },
    )
    if not rows:
        return None
    row_id, message_id, same_content = rows[0]
    if not same_content:
        raise DedupeConflict(
            f"dedupe key {message.dedupe_key!r} of queue {message.queue!r} belongs to message {row_id}, "
            "which has another event type or payload: use another key for another event"
        )
    return Enqueued(row_id, UUID(message_id), created=False)


# --- claims --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """Who claims, for how long, and under which limit of attempts."""

    owner: str
    lease: timedelta
    max_attempts: int


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What a claim took, and how many rows it found over the limit of attempts and made dead."""

    claimed: list[Claimed]
    exhausted: int = 0


ClaimOperation = Operation[ClaimResult]
MakeClaim = Callable[[], ClaimOperation]


@dataclass(slots=True)
class Rotation:
    """Where the last look at the queues ended; the next one goes on from there, and begins anew at the end."""

    after: str = ""


def open_queues(
    catalog: Catalog, *, rotation: Rotation | None = None, limit: int = QUEUES_PER_LOOK
) -> Operation[list[str]]:
    """Return the queues that have something due, or leased, by name.

    Args:
        rotation: where to go on, and remembered for the next call; None always begins with the first.
        limit: how many queues to look at, due or not. (Nothing due up to the last one: as many from the first.)
    """
    rotation = rotation or Rotation()
    began_later = rotation.after != ""
    names = yield from _look(catalog, rotation, limit)
    if not names and began_later and rotation.after == "":
        names = yield from _look(catalog, rotation, limit)
    return names


def _look(catalog: Catalog, rotation: Rotation, limit: int) -> Operation[list[str]]:
    rows = yield catalog.statement("queues", {"after": rotation.after, "limit": limit})
    rotation.after = next((queue for queue, _, is_cut_off in rows if is_cut_off), "")
    return [queue for queue, is_due, _ in rows if is_due]


Queues = Sequence[str] | Rotation | None
"""Which queues a step may ask: these, or what `open_queues` finds."""


def _a_few(catalog: Catalog, queues: Queues) -> Operation[Sequence[str]]:
    """Choose what one step asks: the first, so that who rotates them reaches each one, and others by chance."""
    if queues is None or isinstance(queues, Rotation):
        queues = yield from open_queues(catalog, rotation=queues)
    if len(queues) <= QUEUES_PER_STEP:
        return queues
    return [queues[0], *random.sample(queues[1:], QUEUES_PER_STEP - 1)]


def claim(catalog: Catalog, terms: ClaimTerms, *, queues: Queues, batch: int) -> Operation[ClaimResult]:
    """Claim up to ``batch`` due messages that no crash has touched; reclaimed ones come by `claim_suspects`.

    Args:
        queues: the queues to take from, in this order; or those that have something due, going on through
            them by a rotation. Of more than `QUEUES_PER_STEP`, the first is asked and others by chance.
    """
    names = yield from _a_few(catalog, queues)
    claimed: list[Claimed] = []
    exhausted = 0
    for queue in names:
        room = min(batch, MAX_BATCH) - len(claimed)
        if room <= 0:
            break
        found = yield from _take(catalog, "claim", terms, _claim_params(terms) | {"queue": queue}, room)
        claimed += found.claimed
        exhausted += found.exhausted
    return ClaimResult(claimed, exhausted)


def claim_suspects(
    catalog: Catalog,
    terms: ClaimTerms,
    *,
    queues: Queues,
    batch: int = 1,
    max_reclaims: int = UNLIMITED,
    spare_attempts: int = 0,
) -> Operation[ClaimResult]:
    """Claim messages whose worker may have crashed on them, one alone unless ``batch`` says otherwise.

    Args:
        queues: as for `claim`.
        max_reclaims: leave out rows that were taken over more often than this before.
        spare_attempts: leave out expired rows with no more than this many attempts left besides this one.
    """
    names = yield from _a_few(catalog, queues)
    params = _claim_params(terms) | {
        "window": FRONT_WINDOW,
        "max_reclaims": max_reclaims,
        "spare_attempts": spare_attempts,
    }
    exhausted = 0
    for queue in names:
        found = yield from _take(
            catalog, "claim_suspects", terms, params | {"queue": queue}, min(batch, MAX_BATCH)
        )
        exhausted += found.exhausted
        if found.claimed:
            return ClaimResult(found.claimed, exhausted)
    return ClaimResult([], exhausted)


def _take(
    catalog: Catalog, name: str, terms: ClaimTerms, params: Mapping[str, Any], room: int
) -> Operation[ClaimResult]:
    """Claim up to ``room`` messages of one queue; the rows over the limit that it meets do not fill the room."""
    claimed: list[Claimed] = []
    exhausted = 0
    while len(claimed) < room and exhausted < MAX_EXHAUSTED:
        rows = yield catalog.statement(name, {**params, "batch": room - len(claimed)})
        taken = _claimed(rows, terms)
        claimed += taken
        exhausted += len(rows) - len(taken)
        if len(taken) == len(rows):
            break
    return ClaimResult(claimed, exhausted)


def reap(
    catalog: Catalog, *, queues: Queues, max_attempts: int, limit: int
) -> Operation[list[tuple[int, Outcome]]]:
    """Bury expired messages that nobody may take over; return (id, outcome) of at most ``limit`` rows.

    Args:
        queues: as for `claim`.
    """
    names = yield from _a_few(catalog, queues)
    buried: list[tuple[int, Outcome]] = []
    for queue in names:
        room = min(limit, MAX_BATCH) - len(buried)
        if room <= 0:
            break
        rows = yield catalog.statement(
            "reap",
            {
                "queue": queue,
                "window": FRONT_WINDOW,
                "max_attempts": min(max_attempts, UNLIMITED),
                "limit": room,
            },
        )
        buried += [(row_id, Outcome(outcome)) for row_id, outcome in rows]
    return buried


def _claim_params(terms: ClaimTerms) -> dict[str, Any]:
    return {
        "owner": storable(terms.owner),
        "lease": seconds(terms.lease),
        "max_attempts": min(terms.max_attempts, UNLIMITED),
    }


def _claimed(rows: Iterable[Row], terms: ClaimTerms) -> list[Claimed]:
    claimed = [_claimed_row(row, terms) for row in rows if State(row[MESSAGE_COLUMNS]) is State.PROCESSING]
    claimed.sort(key=lambda each: each.message.id)
    return claimed


def _claimed_row(row: Row, terms: ClaimTerms) -> Claimed:
    _, token, attempt, recovery, reclaim_count, age = row[MESSAGE_COLUMNS:]
    return Claimed(
        message=message_of(row),
        token=token,
        attempt=attempt,
        max_attempts=terms.max_attempts,
        recovery=Recovery(recovery),
        lease=terms.lease,
        age=timedelta(microseconds=age),
        reclaim_count=reclaim_count,
        owner=terms.owner,
    )


# --- the holder's writes, each behind the fence ----------------------------------------------------------


def heartbeat(catalog: Catalog, claimed: Collection[Claimed], lease: timedelta) -> Operation[frozenset[int]]:
    """Extend the leases to ``lease`` from now; return the ids whose lease is lost."""
    kept: set[int] = set()
    for token, ids in _by_token(claimed):
        params = {"ids": ids, "token": token}
        rows = yield catalog.statement("heartbeat", params | {"lease": seconds(lease)})
        renewed = {row[0] for row in rows}
        if len(renewed) < len(ids):
            # Skipped, as it is locked, or gone? A row that is being finalized right now still stands here.
            missing = sorted(set(ids) - renewed)
            rows = yield catalog.statement("held", {"ids": missing, "token": token})
            renewed |= {row[0] for row in rows}
        kept |= renewed
    return lost((each.id for each in claimed), kept)


def mark_done(catalog: Catalog, claimed: Collection[Claimed]) -> Operation[frozenset[int]]:
    """Finalize as delivered; return the ids whose lease is lost."""
    kept: set[int] = set()
    for token, ids in _by_token(claimed):
        kept |= yield from _finalize(catalog, "mark_done", ids, token, {}, State.DONE, Outcome.DELIVERED)
    return lost((each.id for each in claimed), kept)


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """One message to put back to pending."""

    claimed: Claimed
    delay: timedelta
    error: str
    refund_attempt: bool = False


def reschedule(catalog: Catalog, entries: Collection[Rescheduled]) -> Operation[frozenset[int]]:
    """Put messages back to pending, due after their delays; return the ids whose lease is lost."""
    kept: set[int] = set()
    for refund in (False, True):
        chosen = {entry.claimed.id: entry for entry in entries if entry.refund_attempt is refund}
        for token, ids in _by_token(entry.claimed for entry in chosen.values()):
            extra = {
                "refund_attempt": refund,
                "delays": [seconds(chosen[row_id].delay) for row_id in ids],
                "errors": [storable(chosen[row_id].error) for row_id in ids],
            }
            kept |= yield from _finalize(catalog, "reschedule", ids, token, extra, State.PENDING, None)
    return lost((entry.claimed.id for entry in entries), kept)


@dataclass(frozen=True, slots=True)
class Buried:
    """One message to make dead."""

    claimed: Claimed
    outcome: Outcome
    error: str


def mark_dead(catalog: Catalog, entries: Collection[Buried]) -> Operation[frozenset[int]]:
    """Make messages dead; return the ids whose lease is lost."""
    kept: set[int] = set()
    for outcome in sorted({entry.outcome for entry in entries}):
        chosen = {entry.claimed.id: entry for entry in entries if entry.outcome is outcome}
        for token, ids in _by_token(entry.claimed for entry in chosen.values()):
            extra = {
                "outcome": str(outcome),
                "errors": [storable(chosen[row_id].error) for row_id in ids],
            }
            kept |= yield from _finalize(catalog, "mark_dead", ids, token, extra, State.DEAD, outcome)
    return lost((entry.claimed.id for entry in entries), kept)


def release(
    catalog: Catalog, claimed: Collection[Claimed], *, refund_attempt: bool = True
) -> Operation[frozenset[int]]:
    """Give messages back at once, as if they had never been claimed; return the ids whose lease is lost."""
    kept: set[int] = set()
    for token, ids in _by_token(claimed):
        extra = {"refund_attempt": refund_attempt}
        kept |= yield from _finalize(catalog, "release", ids, token, extra, State.PENDING, None)
    return lost((each.id for each in claimed), kept)


def _finalize(
    catalog: Catalog,
    name: str,
    ids: list[int],
    token: int,
    extra: Mapping[str, Any],
    target: State,
    outcome: Outcome | None,
) -> Operation[set[int]]:
    fence = {"ids": ids, "token": token}
    rows = yield catalog.statement(name, {**fence, **extra})
    written = {row[0] for row in rows}
    if len(written) < len(ids):
        missing = sorted(set(ids) - written)
        rows = yield catalog.statement(
            "finalized",
            {"ids": missing, "token": token, "status": str(target), "outcome": outcome and str(outcome)},
        )
        written |= {row[0] for row in rows}
    return written


def _by_token(claimed: Iterable[Claimed]) -> list[tuple[int, list[int]]]:
    """Group by token, nearly always one group, ids ascending so that all finalizes lock in one order."""
    groups: dict[int, list[int]] = {}
    for each in claimed:
        groups.setdefault(each.token, []).append(each.id)
    return [(token, sorted(set(ids))) for token, ids in sorted(groups.items())]
