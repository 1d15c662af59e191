"""A normal claim: due messages that no crash has touched, and what is parked behind somebody else's message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fencepost.core.operation import Row
from lab.fake_store.messages import by_age, is_paused, message_columns, of_key, open_rows
from lab.fake_store.rows import FAR, MAX_COUNT, MAX_TOKEN, OUTBOX, QUEUE, OutboxRow, micros
from lab.fake_store.turn import Params, Turn


def is_claimable(row: OutboxRow, params: Params) -> bool:
    """Tell whether the row has an attempt left, and a token."""
    return bool(row.attempts < params["max_attempts"]) and row.lease_version < MAX_TOKEN


def taken(turn: Turn, params: Params, row: OutboxRow) -> OutboxRow:
    """Return a row as its claim leaves it: leased, or dead where it has no attempt left."""
    after = row._replace(
        lease_version=min(row.lease_version + 1, MAX_TOKEN),
        reclaim_count=min(row.reclaim_count + (row.status == "processing"), MAX_COUNT),
    )
    if not is_claimable(row, params):
        return after._replace(
            status="dead", outcome="exhausted", dead_at=turn.now, available_at=FAR, lease_until=None
        )
    return after._replace(
        status="processing",
        outcome=None,
        dead_at=None,
        attempts=row.attempts + 1,
        lease_owner=params["owner"],
        lease_until=turn.now + micros(params["lease"]),
        available_at=min(row.created_at, turn.now) if row.status == "blocked" else row.available_at,
    )


def claimed_columns(turn: Turn, row: OutboxRow) -> Row:
    """Return what a claim sends of a row."""
    queue = turn.get(QUEUE, row.queue)
    return (
        *message_columns(row),
        *(row.status, row.lease_version, row.attempts, row.recovery_policy, row.reclaim_count),
        *(turn.now - row.created_at, row.available_at, row.routed, queue is not None and queue.ledger),
    )


@dataclass
class _KeyDue:
    """What is due of one key, and its first open rows."""

    key: str
    due: int
    last: int
    first_rows: list[OutboxRow]

    def run(self, free: dict[int, OutboxRow], params: Params) -> list[tuple[int, int]]:
        """Return (place, id) of its run: without a gap from its head on, up to one that becomes dead now."""
        run = []
        for place, row in enumerate(self.first_rows, 1):
            if row.id not in free:
                break
            run.append((place, row.id))
            if not is_claimable(free[row.id], params):
                break
        return run[: params["longest_run"]]


async def claim(turn: Turn, params: Params) -> list[Row]:
    """Answer ``claim``."""
    rows = open_rows(turn, params["queue"])
    due = await _due(turn, params, rows)
    if not due:
        return [(None,) * 22 + (0, 0)]
    keys = _keys(due, rows, params)
    free = {row.id: row for row in due if row.ordering_key is not None}
    free |= {row.id: row for row in await _more(turn, keys, free)}
    numbered = sorted(each for key in keys for each in key.run(free, params))
    unordered = [row for row in due if row.ordering_key is None]
    run = [row_id for _, row_id in numbered[: params["batch"] - (len(unordered) - len(unordered) // 4)]]
    obstacles = await _obstacles(turn, params, keys, free)
    parked = await _to_park(turn, params, rows, due, [key for key in keys if key.key in obstacles])
    held = {row.id: row for row in due} | free
    chosen = [held[row_id] for row_id in run] + unordered[: params["batch"] - len(run)]
    turn.put_all(OUTBOX, [row._replace(status="blocked", available_at=FAR) for row in parked])
    changed = turn.put_all(OUTBOX, [taken(turn, params, row) for row in chosen])
    served = {held[row_id].ordering_key for row_id in run}
    waiting = sum(key.due for key in keys if key.key not in obstacles and key.key not in served)
    came_across = (len(parked), waiting)
    if not changed:
        return [(None,) * 22 + came_across]
    return [claimed_columns(turn, row) + came_across for row in changed]


async def _due(turn: Turn, params: Params, rows: list[OutboxRow]) -> list[OutboxRow]:
    def is_due(row: OutboxRow) -> bool:
        return (
            row.status == "pending"
            and row.lease_until is None
            and row.reclaim_count == 0
            and row.available_at <= turn.now
            and (params["floor"] <= 0 or row.available_at >= params["floor"])
        )

    if is_paused(turn, params):
        return []
    return await turn.lock_all(OUTBOX, by_age(filter(is_due, rows)), is_due, skip=True, limit=params["batch"])


def _keys(due: list[OutboxRow], rows: list[OutboxRow], params: Params) -> list[_KeyDue]:
    counts = Counter(row.ordering_key for row in due if row.ordering_key is not None)
    batch = params["batch"]
    spare = max(batch - len(due), batch // 4) // len(counts) if counts else 0
    found = []
    for key, many in counts.items():
        last = max(row.id for row in due if row.ordering_key == key)
        found.append(_KeyDue(key, many, last, of_key(rows, key)[: min(many + spare, params["longest_run"])]))
    return found


async def _more(turn: Turn, keys: list[_KeyDue], due: dict[int, OutboxRow]) -> list[OutboxRow]:
    """Lock what is free of the keys' first rows besides what is due: what is parked, above all."""

    def is_free(row: OutboxRow) -> bool:
        is_due = row.status == "pending" and row.available_at <= turn.now
        return row.lease_until is None and row.reclaim_count == 0 and (row.status == "blocked" or is_due)

    rows = sorted((row for key in keys for row in key.first_rows if row.id not in due), key=lambda row: row.id)
    return await turn.lock_all(OUTBOX, filter(is_free, rows), is_free, skip=True)


async def _obstacles(
    turn: Turn, params: Params, keys: list[_KeyDue], free: dict[int, OutboxRow]
) -> dict[str, OutboxRow]:
    """Lock the heads that are not free; only behind those may anything be parked."""

    def is_in_the_way(row: OutboxRow) -> bool:
        is_leased = row.lease_until is not None and row.lease_until >= turn.now
        return row.status != "done" and (not is_leased or params["park_behind_leased"])

    first = sorted((key.first_rows[0] for key in keys if key.first_rows), key=lambda row: row.id)
    found = [row for row in first if row.id not in free and is_in_the_way(row)]
    locked = await turn.lock_all(OUTBOX, found, is_in_the_way, skip=True)
    return {row.ordering_key: row for row in locked if row.ordering_key is not None}


async def _to_park(
    turn: Turn, params: Params, rows: list[OutboxRow], due: list[OutboxRow], blocked: list[_KeyDue]
) -> list[OutboxRow]:
    """Return what was due of the blocked keys, and lock what waits behind that."""

    def waits(row: OutboxRow) -> bool:
        is_due = row.status == "pending" and row.available_at <= turn.now
        return is_due and row.lease_until is None and row.reclaim_count == 0

    names = {key.key for key in blocked}
    found = {row.id: row for row in due if row.ordering_key in names}
    room = params["park"]
    for key in blocked:
        behind = [row for row in of_key(rows, key.key) if row.id > key.last and waits(row)]
        locked = await turn.lock_all(OUTBOX, behind, waits, skip=True, limit=room)
        found |= {row.id: row for row in locked}
        room -= len(locked)
    return list(found.values())
