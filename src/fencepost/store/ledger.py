"""The ledger of attempts, as operations: for messages and for jobs, in queues that keep one.

An attempt is written down by its claim, in the claim's transaction, and its end by whoever made it, in that of the
result. Nobody else writes to it. An attempt that has no end, and whose row is no longer held under its token, is
lost: reading says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from fencepost.core.error_text import storable
from fencepost.core.ledger import Attempt, AttemptResult, Begun, Ended, Kind, with_causes
from fencepost.core.operation import Operation, Row
from fencepost.core.records import Claimed, instant
from fencepost.store.catalog import Catalog
from fencepost.store.limits import MAX_BATCH, seconds
from fencepost.store.upkeep import Purged

MAX_ERROR_CHARS = 1_000
"""Of an attempt's error; the row itself has more of the last one."""

MAX_SHOWN = 10_000
"""Attempts that one look shows, the newest."""


def open_attempts(catalog: Catalog, kind: Kind, begun: Sequence[Begun]) -> Operation[None]:
    """Write down attempts that begin, in the transaction of their claim."""
    if begun:
        yield catalog.statement(
            "ledger_open",
            {
                "kind": str(kind),
                "ids": [each.row_id for each in begun],
                "tokens": [each.token for each in begun],
                "queues": [each.queue for each in begun],
                "attempts": [each.attempt for each in begun],
                "workers": [storable(each.worker) for each in begun],
            },
        )


def close_attempts(catalog: Catalog, kind: Kind, ended: Sequence[Ended]) -> Operation[None]:
    """Write down how attempts ended, in the transaction of their result.

    What has an end keeps it: a result whose answer was lost is written twice, and ends its attempt once. What was
    never written down, or is purged, is left alone, and so is another worker's: a failover that loses commits
    hands ids and tokens out again, and whoever held what was lost must not end what has them now.
    """
    if ended:
        yield catalog.statement(
            "ledger_close",
            {
                "kind": str(kind),
                "ids": [each.row_id for each in ended],
                "tokens": [each.token for each in ended],
                "workers": [storable(each.worker) for each in ended],
                "results": [str(each.result) for each in ended],
                "errors": [
                    None if each.error is None else storable(each.error, MAX_ERROR_CHARS) for each in ended
                ],
                "lost": [each.lease_lost for each in ended],
            },
        )


def open_for(catalog: Catalog, claimed: Sequence[Claimed]) -> Operation[None]:
    """Write down the attempts of a claim of messages, as far as their queues keep a ledger."""
    begun = [
        Begun(each.id, str(each.token), each.message.queue, each.attempt, each.owner)
        for each in claimed
        if each.ledger
    ]
    return (yield from open_attempts(catalog, Kind.MESSAGE, begun))


def close_for(
    catalog: Catalog, ends: Iterable[tuple[Claimed, AttemptResult, str | None]], lost: Collection[int]
) -> Operation[None]:
    """Write down how attempts at messages ended, as far as their queues keep a ledger.

    Args:
        ends: each with its result and its error.
        lost: the ids whose lease was lost by then.
    """
    ended = [
        Ended(each.id, str(each.token), each.owner, result, error, lease_lost=each.id in lost)
        for each, result, error in ends
        if each.ledger
    ]
    yield from close_attempts(catalog, Kind.MESSAGE, ended)


def recorded(
    catalog: Catalog,
    write: Operation[frozenset[int]],
    claimed: Collection[Claimed],
    end: Callable[[Claimed], tuple[AttemptResult, str | None]],
) -> Operation[frozenset[int]]:
    """Do a holder's write, note the end of its attempts, and return what the write does: which were lost."""
    lost = yield from write
    yield from close_for(catalog, [(each, *end(each)) for each in claimed], lost)
    return lost


def attempts(catalog: Catalog, kind: Kind, row_ids: Collection[int]) -> Operation[list[Attempt]]:
    """Return the attempts at these rows, row by row in their order, each with its cause."""
    params = {"kind": str(kind), "ids": sorted(set(row_ids))}
    rows = yield catalog.statement("ledger_list", params | {"limit": MAX_SHOWN})
    found = [_attempt(kind, row) for row in rows]
    retries: dict[int, list[datetime]] = {}
    if found:
        for row_id, at in (yield catalog.statement("ledger_retries", params)):
            retries.setdefault(row_id, []).append(instant(at))
    return [
        each
        for row_id, of_row in groupby(found, key=lambda each: each.row_id)
        for each in with_causes(list(of_row), retries.get(row_id, []))
    ]


def _attempt(kind: Kind, row: Row) -> Attempt:
    row_id, token, queue, attempt, worker, started_at, ended_at, result, lease_lost, error, is_under_way = row
    ended = None if result is None else AttemptResult(result)
    return Attempt(
        kind=kind,
        row_id=row_id,
        token=token,
        queue=queue,
        attempt=attempt,
        worker=worker,
        started_at=instant(started_at),
        ended_at=None if ended_at is None else instant(ended_at),
        result=AttemptResult.LOST if ended is None and not is_under_way else ended,
        lease_lost=lease_lost,
        error=error,
    )


def purge(catalog: Catalog, *, older_than: timedelta, limit: int, after: int = 0) -> Operation[Purged]:
    """Delete at most ``limit`` attempts that began longer ago than ``older_than``, behind the id ``after``.

    They lie in the order of their beginning: where none of a step's is old, the walk is at its end.
    """
    rows = yield catalog.statement(
        "ledger_purge", {"older_than": seconds(older_than), "after": after, "limit": min(limit, MAX_BATCH)}
    )
    deleted, last_seen, any_old = rows[0]
    return Purged(deleted, last_seen if any_old else None)
