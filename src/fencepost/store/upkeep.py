"""Clean-up and figures, as operations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from fencepost.core.operation import Operation, Row
from fencepost.core.records import QueueStats, Stats
from fencepost.store.catalog import Catalog
from fencepost.store.limits import MAX_BATCH, seconds

DONE_COUNT_CAP = 100_000

PURGE_WINDOWS = 5
"""Windows of twice its limit that one step of a purge looks at."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What one step of a purge deleted, and the id behind which to go on; None once all was looked at."""

    deleted: int
    after: int | None
    gave_way: bool = False
    """Another purge was at work: one of them at a time."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The session whose turn it is to purge."""

    pid: int
    application: str
    seconds: int
    """Since its transaction began."""


def purge(catalog: Catalog, *, older_than: timedelta, limit: int, after: int = 0) -> Operation[Purged]:
    """Delete at most ``limit`` done messages older than ``older_than`` behind the id ``after``.

    A step looks at a bounded number of rows: where old ones that must stay lie in front, it may delete nothing.
    Until its transaction ends it keeps every other purge away, which then gives way.
    """
    limit = min(limit, MAX_BATCH)
    gone = 0
    for _ in range(PURGE_WINDOWS):
        rows = yield catalog.statement(
            "purge",
            {
                **_table(catalog),
                "older_than": seconds(older_than),
                "after": after,
                "window": max(limit, 100) * 2,
                "limit": limit - gone,
            },
        )
        deleted, last_seen, any_old, is_ours = rows[0]
        gone += deleted
        if not is_ours:
            return Purged(gone, after, gave_way=True)
        if gone >= limit:
            break  # more of this window may have to go
        if last_seen is None or not any_old:
            return Purged(gone, None)
        after = last_seen
    return Purged(gone, after)


def purge_holder(catalog: Catalog) -> Operation[Holder | None]:
    """Return the session that keeps other purges away just now, if there is one."""
    rows = yield catalog.statement("purge_holder", _table(catalog))
    if not rows:
        return None
    pid, application, age = rows[0]
    return Holder(pid, application or "", age or 0)


def _table(catalog: Catalog) -> dict[str, str]:
    return {"table": catalog.names.placeholders()["outbox"]}


def stats(catalog: Catalog) -> Operation[Stats]:
    """Count what is there; the cost grows with the open messages, never with the history."""
    queues = yield catalog.statement("stats_queues")
    dead = yield catalog.statement("stats_dead")
    done = yield catalog.statement("stats_done", {"cap": DONE_COUNT_CAP})
    workers = yield catalog.statement("stats_workers")
    return Stats(
        queues=tuple(_queue_stats(row) for row in queues),
        dead_by_outcome=dict(dead),
        done=min(done[0][0], DONE_COUNT_CAP),
        done_is_capped=done[0][0] > DONE_COUNT_CAP,
        workers=dict(workers),
    )


def _queue_stats(row: Row) -> QueueStats:
    queue, pending, processing, blocked, dead, expired, age = row
    oldest_age = None if age is None else timedelta(microseconds=age)
    return QueueStats(queue, pending, processing, blocked, dead, expired, oldest_age)
