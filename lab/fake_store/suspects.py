"""Messages whose worker may have crashed: claimed one by one, or buried. And which queues have something due."""

from __future__ import annotations

from fencepost.core.operation import Row
from lab.fake_store.claims import claimed_columns, taken
from lab.fake_store.messages import by_age, heads, is_paused, open_rows
from lab.fake_store.rows import FAR, MAX_TOKEN, OUTBOX, QUEUE, OutboxRow
from lab.fake_store.turn import Params, Turn

MAX_ERROR = 4000


def _front(turn: Turn, params: Params) -> list[OutboxRow]:
    due = (row for row in open_rows(turn, params["queue"]) if row.available_at <= turn.now)
    return by_age(due)[: params["window"]]


def _is_expired(turn: Turn, row: OutboxRow) -> bool:
    return row.status == "processing" and row.lease_until is not None and row.lease_until < turn.now


async def claim_suspects(turn: Turn, params: Params) -> list[Row]:
    """Answer ``claim_suspects``."""
    if is_paused(turn, params):
        return []
    first = {row.id for row in heads(open_rows(turn, params["queue"])).values()}

    def may_be_taken(row: OutboxRow, spare: int = 0) -> bool:
        if row.status == "pending":
            return row.reclaim_count > 0
        return (
            _is_expired(turn, row)
            and row.recovery_policy != "manual"
            and bool(row.attempts < params["max_attempts"] - spare)
        )

    def is_suspect(row: OutboxRow) -> bool:
        return (
            may_be_taken(row, params["spare_attempts"])
            and row.reclaim_count <= params["max_reclaims"]
            and (row.ordering_key is None or row.id in first)
        )

    def still(row: OutboxRow) -> bool:
        return row.available_at <= turn.now and may_be_taken(row)

    found = sorted(
        filter(is_suspect, _front(turn, params)), key=lambda row: (row.reclaim_count, row.available_at, row.id)
    )[: params["batch"] + 64]
    locked = await turn.lock_all(OUTBOX, found, still, skip=True, limit=params["batch"])
    changed = turn.put_all(OUTBOX, [taken(turn, params, row) for row in locked])
    return [claimed_columns(turn, row) for row in changed]


async def reap(turn: Turn, params: Params) -> list[Row]:
    """Answer ``reap``."""
    queue = turn.get(QUEUE, params["queue"])
    limit = params["max_attempts"] if queue is None or queue.max_attempts is None else queue.max_attempts

    def is_lost(row: OutboxRow) -> bool:
        return _is_expired(turn, row) and (row.attempts >= limit or row.recovery_policy == "manual")

    chosen = list(filter(is_lost, _front(turn, params)))[: params["limit"]]
    locked = await turn.lock_all(OUTBOX, sorted(chosen, key=lambda row: row.id), is_lost, skip=True)
    changed = turn.put_all(OUTBOX, [_buried(turn, row) for row in locked])
    return [(row.id, row.outcome) for row in changed]


def _buried(turn: Turn, row: OutboxRow) -> OutboxRow:
    error = (
        f"the lease of worker {row.lease_owner} expired on attempt {row.attempts}: it probably crashed or froze; "
        "the message may have been delivered all the same"
    )
    if row.last_error is not None:
        error += f"\nbefore: {row.last_error}"
    return row._replace(
        status="dead",
        outcome="crashed" if row.recovery_policy == "auto" else "unknown_outcome",
        dead_at=turn.now,
        available_at=FAR,
        lease_until=None,
        lease_version=min(row.lease_version + 1, MAX_TOKEN),
        last_error=error[:MAX_ERROR],
    )


async def queues(turn: Turn, params: Params) -> list[Row]:
    """Answer ``queues``: those with something due, out of the next ones by name."""
    due: dict[str, bool] = {}
    for row in turn.rows(OUTBOX):
        if row.is_open and row.queue > params["after"]:
            due[row.queue] = due.get(row.queue, False) or row.available_at <= turn.now
    walk = list(enumerate(sorted(due), 1))[: params["limit"]]
    return [
        (queue, due[queue], seen == params["limit"])
        for seen, queue in walk
        if due[queue] or seen == params["limit"]
    ]
