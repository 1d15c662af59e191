"""What operators do to messages, with the state before kept in the audit."""

from __future__ import annotations

from collections.abc import Callable

from fencepost.core.operation import Row
from lab.fake_store.messages import message_columns, with_ids
from lab.fake_store.rows import AUDIT, FAR, MAX_TOKEN, OUTBOX, AuditRow, OutboxRow
from lab.fake_store.turn import Params, Turn


def _is_dead(row: OutboxRow) -> bool:
    return row.status == "dead"


async def _audited(turn: Turn, params: Params, action: str, change: Callable[[OutboxRow], OutboxRow]) -> list[Row]:
    found = filter(_is_dead, with_ids(turn, params["ids"]))
    target = await turn.lock_all(OUTBOX, found, _is_dead)
    for row in target:
        token = min(row.lease_version + 1, MAX_TOKEN)
        turn.put(OUTBOX, change(row)._replace(lease_version=token))
        names = ("status", "outcome", "attempts", "reclaim_count", "lease_version", "dead_at", "last_error")
        before = {name: getattr(row, name) for name in names}
        entry = (turn.now, params["actor"], action, row.id, row.message_id, params["reason"], before)
        turn.put(AUDIT, AuditRow(turn.storage.draw(AUDIT), *entry))
    return [(row.id,) for row in target]


async def dead_retry(turn: Turn, params: Params) -> list[Row]:
    """Answer ``dead_retry``."""
    return await _audited(
        turn,
        params,
        "retry",
        lambda row: row._replace(
            status="pending", outcome=None, dead_at=None, available_at=turn.now, attempts=0, reclaim_count=0
        ),
    )


async def dead_skip(turn: Turn, params: Params) -> list[Row]:
    """Answer ``dead_skip``."""
    return await _audited(
        turn, params, "skip", lambda row: row._replace(status="done", outcome="skipped", done_at=turn.now)
    )


async def dead_keys(turn: Turn, params: Params) -> list[Row]:
    """Answer ``dead_keys``."""
    rows = with_ids(turn, params["ids"])
    return sorted({(row.queue, row.ordering_key) for row in rows if row.ordering_key is not None})


def _inspected(row: OutboxRow) -> Row:
    return (
        *message_columns(row),
        *(row.status, row.outcome, row.attempts, row.reclaim_count, row.lease_version, row.lease_owner),
        *(row.last_error, row.dead_at),
    )


async def dead_list(turn: Turn, params: Params) -> list[Row]:
    """Answer ``dead_list``."""
    return [
        _inspected(row)
        for row in turn.rows(OUTBOX)
        if row.is_open
        and row.available_at == FAR
        and _is_dead(row)
        and params["queue"] in (None, row.queue)
        and params["outcome"] in (None, row.outcome)
        and row.id > params["after"]
    ][: params["limit"]]


async def show(turn: Turn, params: Params) -> list[Row]:
    """Answer ``show``."""
    return [_inspected(row) for row in with_ids(turn, [params["id"]])]


async def show_by_message_id(turn: Turn, params: Params) -> list[Row]:
    """Answer ``show_by_message_id``."""
    found = [row for row in turn.rows(OUTBOX) if row.message_id == params["message_id"]]
    return [_inspected(row) for row in found[: params["limit"]]]
