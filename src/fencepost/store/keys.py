"""Ordering keys that do not move, as operations: what blocks them, and what lets stranded ones go on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from fencepost.core.operation import Operation, Row, Rows
from fencepost.core.records import BlockedKey, BlockedKeys, BlockReason, Freed
from fencepost.core.states import Outcome
from fencepost.store import order
from fencepost.store.catalog import Catalog
from fencepost.store.order import Key

FOLLOWER_CAP = 10_000
"""Messages behind one head that are counted."""

FREED_CAP = 1_000
"""Messages behind one freed head that are counted."""

KEYS_PER_LOOK = 10_000
"""Keys that one statement goes through."""

LOOKS = 10
"""Statements of one page, past which it ends although it is not full."""

MAX_PAGE = 10_000


def blocked_keys(
    catalog: Catalog, *, queue: str | None, after: Key | None, limit: int, include_leased: bool
) -> Operation[BlockedKeys]:
    """Return the next keys that do not move: their head is dead or stranded, or others wait behind it.

    Args:
        queue: look at this one only.
        after: the place behind which to begin; None begins with the first.
        limit: how many at most. A page may be shorter although there are more: it looks at so many keys only.
        include_leased: also those whose head is being published.
    """
    found: list[BlockedKey] = []
    place: Key | None = after or (queue or "", "")
    for _ in range(LOOKS):
        room = min(limit, MAX_PAGE) - len(found)
        if room <= 0 or place is None:
            break
        params = {"limit": room, "include_leased": include_leased, "cap": FOLLOWER_CAP}
        rows = yield catalog.statement("keys_blocked", params | _from(place, queue, KEYS_PER_LOOK))
        stuck = [_blocked(row[3:]) for row in rows if row[3] is not None]
        found += stuck
        place = (stuck[-1].queue, stuck[-1].ordering_key) if len(stuck) == room else _end(rows, queue)
    return BlockedKeys(tuple(found), place)


def promote_stranded(catalog: Catalog, *, after: Key | None, limit: int) -> Operation[tuple[int, Key | None]]:
    """Look at the next ``limit`` keys and make the heads due that are parked with nothing before them.

    That happens where somebody deleted a row by hand. It needs a transaction at READ COMMITTED around it: the
    locks come before the look that decides.

    Returns:
        How many were, and the place behind which to go on; None once all keys were looked at.
    """
    rows = yield catalog.statement("keys_stranded", _from(after or ("", ""), None, limit))
    stranded = [(queue, key) for queue, key, is_parked, _ in rows if is_parked]
    yield from order.lock_for_finalize(catalog, stranded)
    promoted = yield from order.promote(catalog, stranded)
    return promoted, next(((queue, key) for queue, key, _, is_cut_off in rows if is_cut_off), None)


def freed(catalog: Catalog, changed: Sequence[int]) -> Operation[Freed]:
    """Tell what moves again, in the transaction that has just retried or skipped these messages."""
    if not changed:
        return Freed()
    rows = yield catalog.statement("keys_freed", {"ids": list(changed), "cap": FREED_CAP})
    counts = [count for _, _, count in rows]
    return Freed(
        keys=len(counts),
        messages=sum(min(count, FREED_CAP) for count in counts),
        is_capped=any(count > FREED_CAP for count in counts),
    )


def _from(place: Key, queue: str | None, window: int) -> dict[str, Any]:
    return {"after_queue": place[0], "after_key": place[1], "queue": queue, "window": window}


def _end(rows: Rows, queue: str | None) -> Key | None:
    """Return where a walk was cut off, or None where it came to the end."""
    if not rows:
        return None
    last_queue, last_key, seen = rows[0][:3]
    if seen < KEYS_PER_LOOK or queue not in (None, last_queue):
        return None
    return last_queue, last_key


def _blocked(row: Row) -> BlockedKey:
    queue, key, head_id, reason, outcome, last_error, age, due_in, owner, lease_left, followers = row
    return BlockedKey(
        queue=queue,
        ordering_key=key,
        head_id=head_id,
        reason=BlockReason(reason),
        outcome=None if outcome is None else Outcome(outcome),
        last_error=last_error,
        age=timedelta(microseconds=age),
        due_in=_span(due_in),
        lease_owner=owner,
        lease_left=_span(lease_left),
        followers=min(followers, FOLLOWER_CAP),
        followers_are_capped=followers > FOLLOWER_CAP,
    )


def _span(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else timedelta(microseconds=microseconds)
