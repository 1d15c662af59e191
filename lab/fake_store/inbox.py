"""What consumers ask: messages taken in once, and how far a key has come. And the fences of receivers."""

from __future__ import annotations

from fencepost.core.operation import Row
from lab.fake_store.rows import FENCE, INBOX, INBOX_KEY, FenceRow, InboxKeyRow, InboxRow, micros
from lab.fake_store.turn import Params, Turn


async def inbox_accept(turn: Turn, params: Params) -> list[Row]:
    """Answer ``inbox_accept``."""
    key = (params["consumer"], params["message_id"])
    if await turn.conflict(INBOX, lambda row: row[:2] == key):
        return []
    turn.put(INBOX, InboxRow(*key, params["fence"], params["digest"], turn.now))
    return [(True,)]


async def inbox_find(turn: Turn, params: Params) -> list[Row]:
    """Answer ``inbox_find``."""
    row = turn.get(INBOX, (params["consumer"], params["message_id"]))
    return [] if row is None else [(row.fence, row.digest)]


async def inbox_key_first(turn: Turn, params: Params) -> list[Row]:
    """Answer ``inbox_key_first``."""
    key = (params["consumer"], params["key"])
    if await turn.conflict(INBOX_KEY, lambda row: row[:2] == key):
        return []
    turn.put(INBOX_KEY, InboxKeyRow(*key, params["sequence"], turn.now))
    return [(True,)]


async def inbox_key_hold(turn: Turn, params: Params) -> list[Row]:
    """Answer ``inbox_key_hold``."""
    seen = turn.get(INBOX_KEY, (params["consumer"], params["key"]))
    rows = await turn.lock_all(INBOX_KEY, [] if seen is None else [seen], lambda _: True)
    return [(row.last_sequence,) for row in rows]


async def inbox_key_move(turn: Turn, params: Params) -> list[Row]:
    """Answer ``inbox_key_move``."""
    seen = turn.get(INBOX_KEY, (params["consumer"], params["key"]))
    changed = await turn.update(
        INBOX_KEY,
        [] if seen is None else [seen],
        lambda _: True,
        lambda row: row._replace(last_sequence=params["sequence"], accepted_at=turn.now),
    )
    return [(True,) for _ in changed]


async def inbox_purge(turn: Turn, params: Params) -> list[Row]:
    """Answer ``inbox_purge``."""
    before = turn.now - micros(params["older_than"])

    def is_old(row: InboxRow) -> bool:
        is_ours = bool(row.consumer == params["consumer"])
        return is_ours and row.accepted_at < before and row.accepted_at >= round(params["after"])

    found = sorted(filter(is_old, turn.rows(INBOX)), key=lambda row: row.accepted_at)
    old = await turn.lock_all(INBOX, found, is_old, skip=True, limit=params["limit"])
    for row in old:
        turn.delete(INBOX, row[:2])
    return [(len(old), max((row.accepted_at for row in old), default=None))]


async def fence_admit(turn: Turn, params: Params) -> list[Row]:
    """Answer ``fence_admit``."""
    token = params["token"]
    new = FenceRow(params["receiver"], params["resource"], token, turn.now)
    row = await turn.inserted_or_locked(FENCE, new)
    if row.token > token:
        return []
    turn.put(FENCE, new)
    return [(True,)]


async def fence_find(turn: Turn, params: Params) -> list[Row]:
    """Answer ``fence_find``."""
    row = turn.get(FENCE, (params["receiver"], params["resource"]))
    return [] if row is None else [(row.token,)]


async def fence_purge(turn: Turn, params: Params) -> list[Row]:
    """Answer ``fence_purge``."""
    before = turn.now - micros(params["older_than"])

    def is_old(row: FenceRow) -> bool:
        is_ours = bool(row.receiver == params["receiver"])
        return is_ours and row.admitted_at < before and row.admitted_at >= round(params["after"])

    found = sorted(filter(is_old, turn.rows(FENCE)), key=lambda row: row.admitted_at)
    old = await turn.lock_all(FENCE, found, is_old, skip=True, limit=params["limit"])
    for row in old:
        turn.delete(FENCE, row[:2])
    return [(len(old), max((row.admitted_at for row in old), default=None))]
