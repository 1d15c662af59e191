"""What consumers ask of the database: take a message in once, in the transaction of its effect."""

from __future__ import annotations

from datetime import timedelta

from fencepost.core.inbox import Acceptance, InboxEntry, judged_sequence
from fencepost.core.operation import Operation
from fencepost.errors import SchemaError
from fencepost.store.catalog import Catalog
from fencepost.store.limits import MAX_BATCH, seconds

TRIES = 5
"""For what comes and goes between two statements of one operation."""


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
    catalog: Catalog, consumer: str, key: str, sequence: int, *, allow_gap: bool
) -> Operation[Acceptance]:
    """Move a key on to the number of its next message, or find that it is past that.

    Raises:
        SequenceGap: messages in between have not come.
        SchemaError: something in the database made the INSERT write nothing.
    """
    params = {"consumer": consumer, "key": key}
    numbered = params | {"sequence": sequence}
    for _ in range(TRIES):
        rows = yield catalog.statement("inbox_key_hold", params)
        if rows:
            found = judged_sequence(consumer, key, sequence, rows[0][0], allow_gap=allow_gap)
            if found:
                yield catalog.statement("inbox_key_move", numbered)
            return found
        if (yield catalog.statement("inbox_key_first", numbered)):
            return Acceptance.ACCEPTED
        # Another transaction brought the first message of the key between the two statements.
    raise _nothing_inserted(catalog, "inbox_key")


def has_accepted(catalog: Catalog, consumer: str, message_id: str) -> Operation[bool]:
    """Tell whether a message stands as taken in, for all that this transaction sees."""
    return bool((yield catalog.statement("inbox_find", {"consumer": consumer, "message_id": message_id})))


def last_in_sequence(catalog: Catalog, consumer: str, key: str) -> Operation[int | None]:
    """Return the last number of a key and hold the key; None where there was none."""
    rows = yield catalog.statement("inbox_key_hold", {"consumer": consumer, "key": key})
    return rows[0][0] if rows else None


def purge(catalog: Catalog, consumer: str, *, older_than: timedelta, limit: int) -> Operation[int]:
    """Forget at most ``limit`` messages that were taken in longer ago than ``older_than``; return how many."""
    rows = yield catalog.statement(
        "inbox_purge",
        {"consumer": consumer, "older_than": seconds(older_than), "limit": min(limit, MAX_BATCH)},
    )
    gone: int = rows[0][0]
    return gone


def _nothing_inserted(catalog: Catalog, table: str) -> SchemaError:
    return SchemaError(
        f"an INSERT into {catalog.names.placeholders()[table]} answers with no row, and nothing stands in its "
        "way: remove the trigger or the rule that swallows it, and roll this transaction back"
    )
