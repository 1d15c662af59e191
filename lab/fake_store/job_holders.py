"""What the holder of a job writes, behind the fence; and what operators do to jobs."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from fencepost.core.operation import Row
from lab.fake_store.jobs import is_open, with_before
from lab.fake_store.rows import JOB, JOB_AUDIT, AuditRow, JobRow, micros
from lab.fake_store.turn import Params, Turn


def _with_ids(turn: Turn, params: Params) -> list[JobRow]:
    return [row for job_id in sorted(set(params["ids"])) if (row := turn.get(JOB, job_id)) is not None]


def _fence(params: Params) -> Callable[[JobRow], bool]:
    tokens = dict(zip(params["ids"], params["tokens"], strict=True))
    return lambda row: row.status == "processing" and row.attempt_token == tokens.get(row.id)


async def job_held(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_held``."""
    return [(row.id,) for row in filter(_fence(params), _with_ids(turn, params))]


async def job_lock(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_lock``."""
    still = _fence(params)
    return [(row.id,) for row in await turn.lock_all(JOB, filter(still, _with_ids(turn, params)), still)]


async def job_heartbeat(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_heartbeat``."""
    still = _fence(params)
    progress = dict(zip(params["ids"], params["progress"], strict=True))
    mine = await turn.lock_all(JOB, filter(still, _with_ids(turn, params)), still, skip=True)
    for row in mine:
        further = progress[row.id]
        turn.put(
            JOB,
            row._replace(
                lease_expires_at=turn.now + micros(params["lease"]),
                heartbeat_at=turn.now,
                progress=row.progress if further is None else further,
            ),
        )
    return [(row.id,) for row in mine]


async def _written(turn: Turn, params: Params, change: Callable[[JobRow, int], JobRow]) -> list[Row]:
    still = _fence(params)
    place = {job_id: at for at, job_id in reversed(list(enumerate(params["ids"])))}
    found = filter(still, _with_ids(turn, params))
    changed = await turn.update(
        JOB,
        found,
        still,
        lambda row: change(row._replace(reserved_at=None, lease_expires_at=None), place[row.id]),
    )
    return [(row.id,) for row in changed]


async def job_done(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_done``."""
    results = params["results"]
    return await _written(
        turn,
        params,
        lambda row, place: row._replace(
            status="done",
            outcome="completed",
            finished_at=turn.now,
            result=None if results is None else results[place],
        ),
    )


async def job_requeue(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_requeue``."""

    def requeued(row: JobRow, place: int) -> JobRow:
        delay, error = params["delays"][place], params["errors"][place]
        return row._replace(
            status="queued",
            attempts=max(0, row.attempts - 1) if params["refunds"][place] else row.attempts,
            available_at=row.available_at if delay is None else turn.now + micros(delay),
            last_error=row.last_error if error is None else error,
        )

    return await _written(turn, params, requeued)


async def job_fail(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_fail``."""
    return await _written(
        turn,
        params,
        lambda row, place: row._replace(
            status="failed",
            finished_at=turn.now,
            outcome=params["outcomes"][place],
            last_error=params["errors"][place],
        ),
    )


async def job_finalized(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_finalized``."""
    targets = dict(zip(params["ids"], zip(params["tokens"], params["outcomes"], strict=True), strict=True))
    return [
        (row.id,)
        for row in _with_ids(turn, params)
        if row.status == params["status"] and (row.attempt_token, row.outcome) == targets[row.id]
    ]


# --- operators -----------------------------------------------------------------------------------------


async def _audited(
    turn: Turn, params: Params, action: str, target: list[JobRow], change: Callable[[JobRow], JobRow]
) -> list[Row]:
    for row in target:
        turn.put(JOB, change(row)._replace(attempt_token=turn.storage.fresh_uuid()))
        before = {"status": row.status, "outcome": row.outcome, "attempts": row.attempts, "fence": row.fence}
        entry = (turn.now, params["actor"], action, row.id, row.job_id, params["reason"], before)
        turn.put(JOB_AUDIT, AuditRow(turn.storage.draw(JOB_AUDIT), *entry))
    return [(row.id,) for row in target]


async def job_end(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_end``: an operator's cancel or fail."""
    target = await turn.lock_all(JOB, filter(is_open, _with_ids(turn, params)), is_open)
    return await _audited(
        turn,
        params,
        params["action"],
        target,
        lambda row: row._replace(
            status="failed",
            outcome=params["outcome"],
            finished_at=turn.now,
            reserved_at=None,
            lease_expires_at=None,
            last_error=with_before(params["error"], row.last_error),
        ),
    )


async def job_retry(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_retry``: of two at once of one unique key the second is refused, as by a unique index."""

    def is_failed(row: JobRow) -> bool:
        return row.status == "failed"

    taken = {(row.task, row.unique_key) for row in turn.rows(JOB) if is_open(row) and row.unique_key is not None}
    found = []
    for row in filter(is_failed, _with_ids(turn, params)):
        if (row.task, row.unique_key) not in taken:
            found.append(row)
            if row.unique_key is not None:
                taken.add((row.task, row.unique_key))
    target = await turn.lock_all(JOB, found, is_failed)
    for row in target:
        await _refuse_taken(turn, row)
    return await _audited(
        turn,
        params,
        "retry",
        target,
        lambda row: row._replace(
            status="queued", outcome=None, finished_at=None, available_at=turn.now, attempts=0, reclaim_count=0
        ),
    )


async def _refuse_taken(turn: Turn, retried: JobRow) -> None:
    def has_its_key(row: JobRow) -> bool:
        return is_open(row) and (row.task, row.unique_key) == (retried.task, retried.unique_key)

    if retried.unique_key is not None and await turn.conflict(JOB, has_its_key) is not None:
        raise psycopg.errors.UniqueViolation(f"an open job has {retried.unique_key!r}")


async def job_refused(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_refused``."""
    has = {(row.task, row.unique_key): row.id for row in turn.rows(JOB) if is_open(row)}

    def rival(row: JobRow) -> int | None:
        other = has.get((row.task, row.unique_key))
        return None if row.unique_key is None or other == row.id else other

    return [(row.id, row.status, row.outcome, row.unique_key, rival(row)) for row in _with_ids(turn, params)]
