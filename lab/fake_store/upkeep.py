"""Clean-up, counting, and the session's own settings."""

from __future__ import annotations

from collections import Counter, defaultdict

from fencepost.core.operation import Row
from lab.fake_store.rows import FAR, OUTBOX, OutboxRow, micros
from lab.fake_store.turn import Params, Turn


async def session(turn: Turn, params: Params) -> list[Row]:
    """Answer ``session``: there are no limits here."""
    return [()]


async def purge(turn: Turn, params: Params) -> list[Row]:
    """Answer ``purge``."""
    before = turn.now - micros(params["older_than"])

    def is_old(row: OutboxRow) -> bool:
        return row.status == "done" and row.done_at is not None and row.done_at < before

    if not turn.try_advisory(("purge", params["table"])):
        return [(0, None, False, False)]
    step = [row for row in turn.rows(OUTBOX) if row.id > params["after"]][: params["window"]]
    old = await turn.lock_all(OUTBOX, list(filter(is_old, step))[: params["limit"]], is_old, skip=True)
    for row in old:
        turn.delete(OUTBOX, row.id)
    any_old = bool(step) and min(row.created_at for row in step) < before
    return [(len(old), max((row.id for row in step), default=None), any_old, True)]


async def purge_holder(turn: Turn, params: Params) -> list[Row]:
    """Answer ``purge_holder``: nobody asks a fake one who that is."""
    return []


async def stats_queues(turn: Turn, params: Params) -> list[Row]:
    """Answer ``stats_queues``."""
    groups: dict[str, list[OutboxRow]] = defaultdict(list)
    for row in turn.rows(OUTBOX):
        if row.is_open:
            groups[row.queue].append(row)
    return [_counted(turn, queue, groups[queue]) for queue in sorted(groups)]


def _counted(turn: Turn, queue: str, rows: list[OutboxRow]) -> Row:
    counts = Counter(row.status for row in rows)
    expired = sum(row.lease_until is not None and row.lease_until < turn.now for row in rows)
    since = [
        row.created_at if row.attempts > 0 else row.available_at
        for row in rows
        if row.status in ("pending", "processing") and (row.attempts > 0 or row.available_at <= turn.now)
    ]
    statuses = ("pending", "processing", "blocked", "dead")
    return (queue, *(counts[each] for each in statuses), expired, turn.now - min(since) if since else None)


async def stats_dead(turn: Turn, params: Params) -> list[Row]:
    """Answer ``stats_dead``."""
    dead = (row for row in turn.rows(OUTBOX) if row.is_open and row.available_at == FAR and row.status == "dead")
    return sorted(Counter(row.outcome for row in dead).items(), key=lambda each: each[0] or "")


async def stats_done(turn: Turn, params: Params) -> list[Row]:
    """Answer ``stats_done``."""
    return [(min(sum(not row.is_open for row in turn.rows(OUTBOX)), params["cap"] + 1),)]


async def stats_workers(turn: Turn, params: Params) -> list[Row]:
    """Answer ``stats_workers``."""
    owners = Counter(
        row.lease_owner or ""
        for row in turn.rows(OUTBOX)
        if row.status == "processing" and row.lease_until is not None and row.lease_until >= turn.now
    )
    return sorted(owners.items())
