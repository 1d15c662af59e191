"""What operators do to messages, as operations; every change is audited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from fencepost.core.error_text import storable
from fencepost.core.operation import Operation, Row
from fencepost.core.records import STORED_COLUMNS, DeadMessage, Message, instant
from fencepost.core.routing import MAX_DESTINATIONS
from fencepost.core.states import Outcome, State
from fencepost.store import order
from fencepost.store.catalog import Catalog
from fencepost.store.limits import MAX_BATCH

MAX_SHOWN = 2 * MAX_DESTINATIONS
"""Messages of one message id: one for each destination, the original, and room for what was made by hand."""


def list_dead(
    catalog: Catalog, *, queue: str | None, outcome: str | None, after: int, limit: int
) -> Operation[list[DeadMessage]]:
    """Return dead messages in id order, starting behind the id ``after``."""
    rows = yield catalog.statement(
        "dead_list", {"queue": queue, "outcome": outcome, "after": after, "limit": min(limit, MAX_BATCH)}
    )
    return [_inspected(row) for row in rows]


def show(catalog: Catalog, identity: int | UUID) -> Operation[DeadMessage | None]:
    """Return one message in any state, by row id or by message id (see `show_all`): the first."""
    if isinstance(identity, UUID):
        found = yield from show_all(catalog, identity, limit=1)
        return found[0] if found else None
    rows = yield catalog.statement("show", {"id": identity})
    return _inspected(rows[0]) if rows else None


def show_all(catalog: Catalog, message_id: UUID, *, limit: int = MAX_SHOWN) -> Operation[list[DeadMessage]]:
    """Return the messages with this message id (which has no index), by row id: one for each destination.

    Args:
        limit: how many at most.
    """
    rows = yield catalog.statement("show_by_message_id", {"message_id": str(message_id), "limit": limit})
    return [_inspected(row) for row in rows]


def retry_dead(
    catalog: Catalog, ids: Sequence[int], *, actor: str, reason: str | None, notify: bool
) -> Operation[list[int]]:
    """Put dead messages back to pending with no attempts, audited; return the ids that were dead."""
    rows = yield catalog.statement("dead_retry", _audited(ids, actor, reason))
    if rows and notify:
        yield catalog.statement("notify", {"channel": catalog.names.channel})
    return sorted(row[0] for row in rows)


def skip_dead(
    catalog: Catalog, ids: Sequence[int], *, actor: str, reason: str | None, notify: bool
) -> Operation[list[int]]:
    """Close dead messages as skipped, audited, and free what waits behind them; return the ids that were dead."""
    keys = yield catalog.statement("dead_keys", {"ids": list(ids)})
    yield from order.lock_for_finalize(catalog, keys)
    rows = yield catalog.statement("dead_skip", _audited(ids, actor, reason))
    promoted = yield from order.promote(catalog, keys)
    if promoted and notify:
        yield catalog.statement("notify", {"channel": catalog.names.channel})
    return sorted(row[0] for row in rows)


def _audited(ids: Sequence[int], actor: str, reason: str | None) -> dict[str, Any]:
    return {"ids": list(ids), "actor": storable(actor), "reason": None if reason is None else storable(reason)}


def _inspected(row: Row) -> DeadMessage:
    status, outcome, attempts, reclaim_count, token, owner, last_error, dead_at = row[STORED_COLUMNS:]
    return DeadMessage(
        message=Message.stored(row),
        status=State(status),
        outcome=None if outcome is None else Outcome(outcome),
        attempts=attempts,
        reclaim_count=reclaim_count,
        token=token,
        lease_owner=owner,
        last_error=last_error,
        dead_at=None if dead_at is None else instant(dead_at),
    )
