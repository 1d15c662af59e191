"""What the holder of a message writes, behind the fence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from fencepost.core.operation import Row
from lab.fake_store.messages import of_key, open_rows, with_ids
from lab.fake_store.rows import FAR, OUTBOX, OutboxRow, micros
from lab.fake_store.turn import Params, Turn


def is_held(row: OutboxRow, token: int, message_ids: Collection[str]) -> bool:
    """The fence."""
    return row.status == "processing" and row.lease_version == token and row.message_id in message_ids


def _message_ids(params: Params) -> list[str]:
    text: str = params["message_ids"]
    return text.removeprefix("{").removesuffix("}").split(",")


def _fence(params: Params) -> Callable[[OutboxRow], bool]:
    message_ids = _message_ids(params)
    if "tokens" not in params:
        return lambda row: is_held(row, params["token"], message_ids)
    held = {row_id: each for row_id, *each in zip(params["ids"], params["tokens"], message_ids, strict=True)}
    return lambda row: is_held(row, held[row.id][0], held[row.id][1:])


async def heartbeat(turn: Turn, params: Params) -> list[Row]:
    """Answer ``heartbeat``."""
    still = _fence(params)
    found = filter(still, with_ids(turn, params["ids"]))
    mine = await turn.lock_all(OUTBOX, found, still, skip=True)
    until = turn.now + micros(params["lease"])
    turn.put_all(OUTBOX, [row._replace(lease_until=until) for row in mine])
    return [(row.id,) for row in mine]


async def held(turn: Turn, params: Params) -> list[Row]:
    """Answer ``held``."""
    return [(row.id,) for row in filter(_fence(params), with_ids(turn, params["ids"]))]


async def finalized(turn: Turn, params: Params) -> list[Row]:
    """Answer ``finalized``."""
    message_ids = _message_ids(params)
    target = (params["token"], params["status"], params["outcome"])
    rows = [row for row in with_ids(turn, params["ids"]) if row.message_id in message_ids]
    return [(row.id,) for row in rows if (row.lease_version, row.status, row.outcome) == target]


async def _written(turn: Turn, params: Params, change: Callable[[OutboxRow, int], OutboxRow]) -> list[Row]:
    """Change what is held; the change is told the row's place among the ids."""
    still = _fence(params)
    place = {row_id: at for at, row_id in reversed(list(enumerate(params["ids"])))}
    found = filter(still, with_ids(turn, params["ids"]))
    changed = await turn.update(OUTBOX, found, still, lambda row: change(row, place[row.id]))
    return [(row.id,) for row in changed]


async def mark_done(turn: Turn, params: Params) -> list[Row]:
    """Answer ``mark_done``."""
    return await _written(turn, params, lambda row, _: _done(turn, row, params["outcome"]))


def _done(turn: Turn, row: OutboxRow, outcome: str) -> OutboxRow:
    return row._replace(status="done", outcome=outcome, done_at=turn.now, lease_until=None)


async def mark_dead(turn: Turn, params: Params) -> list[Row]:
    """Answer ``mark_dead``."""
    return await _written(
        turn,
        params,
        lambda row, place: row._replace(
            status="dead",
            outcome=params["outcome"],
            dead_at=turn.now,
            available_at=FAR,
            lease_until=None,
            last_error=params["errors"][place],
        ),
    )


def _given_back(row: OutboxRow, refund: bool) -> OutboxRow:
    attempts = max(0, row.attempts - 1) if refund else row.attempts
    return row._replace(status="pending", lease_until=None, attempts=attempts)


async def reschedule(turn: Turn, params: Params) -> list[Row]:
    """Answer ``reschedule``."""
    return await _written(
        turn,
        params,
        lambda row, place: _given_back(row, params["refund_attempt"])._replace(
            available_at=turn.now + micros(params["delays"][place]), last_error=params["errors"][place]
        ),
    )


async def release(turn: Turn, params: Params) -> list[Row]:
    """Answer ``release``."""
    return await _written(turn, params, lambda row, _: _given_back(row, params["refund_attempt"]))


async def mark_done_ordered(turn: Turn, params: Params) -> list[Row]:
    """Answer ``mark_done_ordered``: behind the fence, and only in their turn."""
    outcomes = dict(zip(params["ids"], params["outcomes"], strict=True))
    still = _fence(params)
    mine = await turn.lock_all(OUTBOX, filter(still, with_ids(turn, params["ids"])), still)
    keys: dict[tuple[str, str], list[OutboxRow]] = defaultdict(list)
    for row in mine:
        if row.ordering_key is not None:
            keys[row.queue, row.ordering_key].append(row)
    closed = []
    for (queue, key), rows in keys.items():
        first_open = of_key(open_rows(turn, queue), key)
        closed += [row for row, first in zip(rows, first_open, strict=False) if row.id == first.id]
    turn.put_all(OUTBOX, [_done(turn, row, outcomes[row.id]) for row in closed])
    return [(row.id,) for row in closed]
