"""The ledger of attempts."""

from __future__ import annotations

from fencepost.core.operation import Row
from lab.fake_store.rows import ATTEMPT, AUDIT, JOB, JOB_AUDIT, OUTBOX, AttemptRow, micros
from lab.fake_store.turn import Params, Turn


async def ledger_open(turn: Turn, params: Params) -> list[Row]:
    """Answer ``ledger_open``."""
    names = ("ids", "tokens", "queues", "attempts", "workers")
    for row_id, token, queue, attempt, worker in sorted(zip(*(params[name] for name in names), strict=True)):
        drawn = turn.storage.draw(ATTEMPT)
        identity = (params["kind"], row_id, token)
        if await turn.conflict(ATTEMPT, lambda row, same=identity: row[1:4] == same) is None:  # type: ignore[misc] # the default binds the loop's value
            turn.put(ATTEMPT, AttemptRow(drawn, *identity, queue, attempt, worker, turn.now))
    return []


async def ledger_close(turn: Turn, params: Params) -> list[Row]:
    """Answer ``ledger_close``: an end that stands is not written again, nor that of another worker's attempt."""
    names = ("ids", "tokens", "workers", "results", "errors", "lost")
    ends = {
        (params["kind"], row_id, token, worker): (result, error, lost)
        for row_id, token, worker, result, error, lost in zip(*(params[name] for name in names), strict=True)
    }

    def attempt(row: AttemptRow) -> tuple[str, int, str, str]:
        return (row.kind, row.row_id, row.token, row.worker)

    def is_open(row: AttemptRow) -> bool:
        return row.ended_at is None and attempt(row) in ends

    def ended(row: AttemptRow) -> AttemptRow:
        result, error, lost = ends[attempt(row)]
        return row._replace(ended_at=turn.now, result=result, error=error, lease_lost=lost)

    await turn.update(ATTEMPT, filter(is_open, turn.rows(ATTEMPT)), is_open, ended)
    return []


async def ledger_list(turn: Turn, params: Params) -> list[Row]:
    """Answer ``ledger_list``."""
    held = {
        "message": {(row.id, str(row.lease_version)) for row in turn.rows(OUTBOX) if row.status == "processing"},
        "job": {(row.id, str(row.fence)) for row in turn.rows(JOB) if row.status == "processing"},
    }[params["kind"]]
    found = [row for row in turn.rows(ATTEMPT) if row.kind == params["kind"] and row.row_id in params["ids"]]
    newest = sorted(found, key=lambda row: row.id)[-params["limit"] :]
    return [
        (
            *(row.row_id, row.token, row.queue, row.attempt, row.worker, row.started_at, row.ended_at, row.result),
            *(row.lease_lost, row.error, row.ended_at is None and (row.row_id, row.token) in held),
        )
        for row in sorted(newest, key=lambda row: (row.row_id, row.id))
    ]


async def ledger_retries(turn: Turn, params: Params) -> list[Row]:
    """Answer ``ledger_retries``."""
    audit = turn.rows(AUDIT if params["kind"] == "message" else JOB_AUDIT)
    return [(row.row_id, row.at) for row in audit if row.action == "retry" and row.row_id in params["ids"]]


async def ledger_purge(turn: Turn, params: Params) -> list[Row]:
    """Answer ``ledger_purge``."""
    before = turn.now - micros(params["older_than"])
    looked = [row for row in turn.rows(ATTEMPT) if row.id > params["after"]][: params["limit"]]
    found = [row for row in looked if row.started_at < before]
    old = await turn.lock_all(ATTEMPT, found, lambda _: True, skip=True)
    for row in old:
        turn.delete(ATTEMPT, row.id)
    return [(len(old), max((row.id for row in looked), default=None), bool(found))]
