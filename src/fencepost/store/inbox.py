"""What consumers ask of the database: take a message in once, in the transaction of its effect."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from fencepost.core.inbox import Acceptance, InboxEntry, judged_sequence
from fencepost.core.operation import Operation
from fencepost.errors import SchemaError
from fencepost.store.catalog import Catalog
from fencepost.store.forget import Forgotten, forget

TRIES = 5
"""For what comes and goes between two statements of one operation."""

COUNTED = 100_000
"""Entries, and keys, of one consumer that are counted; past that it is only said that there are more."""


def accept(catalog: Catalog, entry: InboxEntry) -> Operation[Acceptance]:
    """Note a message as taken in, or find that it was.

    Where another transaction is at the same message this waits for its end: a commit makes it a repeat, and a
    rollback leaves it to us.

    Raises:
        MessageConflict: it was taken in with another body.
        SchemaError: something in the database made the INSERT write nothing.
    """
    identity = {"consumer": entry.consumer, "message_id": entry.message_id}
    for _ in range(TRIES):
        if (yield catalog.statement("inbox_accept", identity | {"fence": entry.fence, "digest": entry.digest})):
            return Acceptance.ACCEPTED
        rows = yield catalog.statement("inbox_find", identity)
        if rows:
            fence, digest = rows[0]
            return entry.judged(fence, None if digest is None else bytes(digest))
        # What stood in the way was purged between the two statements.
    raise _nothing_inserted(catalog, "inbox")


def accept_in_sequence(
    catalog: Catalog, consumer: str, key: str, sequence: int, *, allow_gap: bool, first: int | None
) -> Operation[Acceptance]:
    """Move a key on to the number of its next message, or find that it is past that.

    Args:
        first: the number that a key begins with; None for whichever comes first.

    Raises:
        SequenceGap: messages in between have not come.
        SchemaError: something in the database made the INSERT write nothing.
    """
    params = {"consumer": consumer, "key": key}
    numbered = params | {"sequence": sequence}
    for _ in range(TRIES):
        rows = yield catalog.statement("inbox_key_hold", params)
        before_first = None if first is None else first - 1
        found = judged_sequence(consumer, key, sequence, rows[0][0] if rows else before_first, allow_gap=allow_gap)
        if not found:
            return found
        if (yield catalog.statement("inbox_key_move" if rows else "inbox_key_first", numbered)):
            return found
        # Another transaction brought the first message of the key between the two statements.
    raise _nothing_inserted(catalog, "inbox_key")


def has_accepted(catalog: Catalog, consumer: str, message_id: str) -> Operation[bool]:
    """Tell whether a message stands as taken in, for all that this transaction sees."""
    return bool((yield catalog.statement("inbox_find", {"consumer": consumer, "message_id": message_id})))


def last_in_sequence(catalog: Catalog, consumer: str, key: str) -> Operation[int | None]:
    """Return the last number of a key and hold the key; None where there was none."""
    rows = yield catalog.statement("inbox_key_hold", {"consumer": consumer, "key": key})
    return rows[0][0] if rows else None


def purge(
    catalog: Catalog, consumer: str, *, older_than: timedelta, limit: int, after: int = 0
) -> Operation[Forgotten]:
    """Forget at most ``limit`` messages that were taken in longer ago than ``older_than``; see `forget`."""
    whose = {"consumer": consumer}
    return forget(catalog, "inbox_purge", whose, older_than=older_than, limit=limit, after=after)


@dataclass(frozen=True, slots=True)
class Consumer:
    """What one consumer keeps.

    Args:
        name: the consumer.
        entries, keys: how many messages and keys; where one is above `COUNTED`, there are more than that.
        oldest, newest: the ages of its entries; None where it has none.
    """

    name: str
    entries: int
    oldest: timedelta | None
    newest: timedelta | None
    keys: int


def consumers(catalog: Catalog, *, after: str, limit: int) -> Operation[list[Consumer]]:
    """List consumers by name, beginning behind ``after`` (the empty text for all)."""
    rows = yield catalog.statement("inbox_consumers", {"after": after, "limit": limit, "cap": COUNTED + 1})
    return [
        Consumer(name, entries, _microseconds(oldest), _microseconds(newest), keys)
        for name, entries, oldest, newest, keys in rows
    ]


def _microseconds(age: int | None) -> timedelta | None:
    return None if age is None else timedelta(microseconds=age)


def _nothing_inserted(catalog: Catalog, table: str) -> SchemaError:
    return SchemaError(
        f"an INSERT into {catalog.names.placeholders()[table]} answers with no row, and nothing stands in its "
        "way: remove the trigger or the rule that swallows it, and roll this transaction back"
    )
