"""What producers ask of the database: insert one message or many, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from fencepost.core.draft import Draft
from fencepost.core.operation import Operation, Rows, Statement
from fencepost.core.records import Enqueued
from fencepost.errors import DedupeConflict, InvalidMessage, SchemaError
from fencepost.store import order
from fencepost.store.catalog import Catalog
from fencepost.store.partitions import NO_DEDUPE

CHUNK = 1_000
"""Messages per statement in `enqueue_many`."""

_DEDUPE_TRIES = 5


def enqueue(catalog: Catalog, message: Draft, *, notify: bool) -> Operation[Enqueued]:
    """Insert one message, or find the one that has its dedupe key.

    Raises:
        DedupeConflict: the key exists with another event type or payload.
        InvalidMessage: it has a dedupe key, and the outbox is partitioned.
        SchemaError: something in the database made the INSERT write nothing.
    """
    counted = yield from order.lock_for_producers(catalog, [message])
    return (yield from _enqueue_one(catalog, message, notify=notify, counted=message.queue in counted))


def _enqueue_one(catalog: Catalog, message: Draft, *, notify: bool, counted: bool) -> Operation[Enqueued]:
    for _ in range(_DEDUPE_TRIES):
        number = None
        if counted:
            existing = yield from _duplicate_of(catalog, message)
            if existing is not None:
                return existing
            number = (yield from order.draw_numbers(catalog, [message]))[0]
        rows = yield from _inserted(
            catalog.statement(
                "enqueue", _params(message, number) | {"channel": catalog.names.channel if notify else None}
            )
        )
        if rows:
            return Enqueued(rows[0][0], message.message_id, created=True)
        if message.dedupe_key is None:
            raise _nothing_inserted(catalog)
        if counted:
            yield from order.give_number_back(catalog, message)
        existing = yield from _duplicate_of(catalog, message)
        if existing is not None:
            return existing
        # The row that stood in the way was purged between the two statements: insert again.
    raise DedupeConflict(f"dedupe key {message.dedupe_key!r} of queue {message.queue!r} comes and goes: try again")


def enqueue_many(catalog: Catalog, drafts: Sequence[Draft], *, notify: bool) -> Operation[list[Enqueued]]:
    """Insert many messages with few statements; ids are drawn in the given order.

    The keys of all of them are locked at once, before the first: in one order, so that two such calls cannot
    stand in each other's way.
    """
    counted = yield from order.lock_for_producers(catalog, drafts)
    receipts: list[Enqueued] = []
    for start in range(0, len(drafts), CHUNK):
        receipts += yield from _enqueue_chunk(
            catalog, drafts[start : start + CHUNK], notify=notify, counted=counted
        )
    return receipts


def enqueue_events(
    catalog: Catalog, events: Sequence[Sequence[Draft]], *, notify: bool
) -> Operation[list[Enqueued]]:
    """Insert events, each a message or one for each of its destinations; return a receipt for each event."""
    if len(events) == 1 and len(events[0]) == 1:
        return [(yield from enqueue(catalog, events[0][0], notify=notify))]
    flat = [message for event in events for message in event]
    receipts = iter((yield from enqueue_many(catalog, flat, notify=notify)))
    return [_receipt(event, [next(receipts) for _ in event]) for event in events]


def _receipt(event: Sequence[Draft], receipts: Sequence[Enqueued]) -> Enqueued:
    first = receipts[0]
    if len(event) == 1:
        return first
    rows = {message.queue: receipt.id for message, receipt in zip(event, receipts, strict=True)}
    return Enqueued(first.id, first.message_id, any(each.created for each in receipts), rows)


def _enqueue_chunk(
    catalog: Catalog, drafts: Sequence[Draft], *, notify: bool, counted: frozenset[str]
) -> Operation[list[Enqueued]]:
    in_number = [message for message in drafts if message.ordering_key is not None and message.queue in counted]
    if any(message.dedupe_key is not None for message in in_number):
        # Whether a message takes a number is known only once it is inserted.
        receipts = []
        for message in drafts:
            is_counted = message.queue in counted and message.ordering_key is not None
            receipts.append((yield from _enqueue_one(catalog, message, notify=notify, counted=is_counted)))
        return receipts
    drawn = (yield from order.draw_numbers(catalog, in_number)) if in_number else []
    numbers = dict(zip((_identity(message) for message in in_number), drawn, strict=True))
    columns = [_params(message, numbers.get(_identity(message))) for message in drafts]
    rows = yield from _inserted(
        catalog.statement("enqueue_many", {key: [row[key] for row in columns] for key in columns[0]})
    )
    ids = {(UUID(message_id), queue): row_id for row_id, message_id, queue, _ in rows}
    if notify and any(is_due for *_, is_due in rows):
        yield catalog.statement("notify", {"channel": catalog.names.channel})
    return (yield from _receipts(catalog, drafts, ids, notify=notify))


def _inserted(statement: Statement) -> Operation[Rows]:
    try:
        return (yield statement)
    except Exception as error:
        if NO_DEDUPE in str(error):
            raise InvalidMessage(
                "a partitioned outbox takes no dedupe keys: no unique index spans partitions. Leave the key out, "
                "or keep the outbox in one table (docs/retention.md); roll this transaction back"
            ) from error
        raise


Identity = tuple[UUID, str]
"""A message id and a queue: an event has a message of one id in the queue of each of its destinations."""


def _identity(message: Draft) -> Identity:
    return message.message_id, message.queue


def _receipts(
    catalog: Catalog, drafts: Sequence[Draft], ids: dict[Identity, int], *, notify: bool
) -> Operation[list[Enqueued]]:
    receipts = []
    for message in drafts:
        row_id = ids.get(_identity(message))
        if row_id is not None:
            receipts.append(Enqueued(row_id, message.message_id, created=True))
        elif message.dedupe_key is None:
            raise _nothing_inserted(catalog)
        else:
            receipts.append((yield from _enqueue_one(catalog, message, notify=notify, counted=False)))
    return receipts


def _params(message: Draft, number: int | None) -> dict[str, Any]:
    return {
        "message_id": str(message.message_id),
        "queue": message.queue,
        "event_type": message.event_type,
        "aggregate_type": message.aggregate_type,
        "aggregate_id": message.aggregate_id,
        "ordering_key": message.ordering_key,
        "key_sequence": number,
        "payload": message.payload,
        "payload_bytes": message.payload_bytes,
        "content_type": message.content_type,
        "headers": message.headers,
        "dedupe_key": message.dedupe_key,
        "recovery": str(message.recovery),
        "routed": message.routed,
        "available_at": message.available_at,
        "delay": message.delay,
    }


def _nothing_inserted(catalog: Catalog) -> SchemaError:
    # To insert again could only write the message twice.
    return SchemaError(
        f"an INSERT into {catalog.names.placeholders()['outbox']} answered with no row: "
        "remove the trigger or the rule that swallows it, or set the id's sequence forward if it was set back, "
        "and roll this transaction back"
    )


def _duplicate_of(catalog: Catalog, message: Draft) -> Operation[Enqueued | None]:
    if message.dedupe_key is None:
        return None
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
