"""Jobs: enqueued, looked for, claimed, taken back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fencepost.core.operation import Row
from lab.fake_store.rows import JOB, MAX_COUNT, MAX_TOKEN, JobRow, instant_of, micros
from lab.fake_store.turn import Params, Turn

MAX_ERROR = 4000


def with_before(error: str, before: str | None) -> str:
    """Return an error together with the one before it."""
    return (error if before is None else f"{error}\nbefore: {before}")[:MAX_ERROR]


def is_open(row: JobRow) -> bool:
    """Tell whether a job is neither done nor failed."""
    return row.status in ("queued", "processing")


def _by_age(rows: Iterable[JobRow]) -> list[JobRow]:
    return sorted(rows, key=lambda row: (row.available_at, row.id))


# --- producers -----------------------------------------------------------------------------------------


async def job_enqueue(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_enqueue``."""
    job_id = turn.storage.draw(JOB)
    task, unique_key, given_at = params["task"], params["unique_key"], params["available_at"]

    def is_same(row: JobRow) -> bool:
        return bool(row.task == task and row.unique_key == unique_key) and is_open(row)

    if unique_key is not None and await turn.conflict(JOB, is_same) is not None:
        return []
    given = ("job_id", "queue", "task", "args", "headers", "unique_key", "lane", "max_attempts")
    row = JobRow(
        id=job_id,
        **{name: params[name] for name in given},
        recovery_policy=params["recovery"],
        created_at=turn.now,
        available_at=turn.now + micros(params["delay"]) if given_at is None else instant_of(given_at),
    )
    turn.put(JOB, row)
    if row.available_at <= turn.now:
        turn.notify(params["channel"])
    return [(row.id, None)]


async def job_unique_find(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_unique_find``."""
    identity = (params["task"], params["unique_key"])
    found = (row for row in turn.rows(JOB) if (row.task, row.unique_key) == identity and is_open(row))
    return [(row.id, row.job_id, row.args == params["args"]) for row in found]


# --- looking -------------------------------------------------------------------------------------------


async def job_queues(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_queues``."""
    names = sorted({row.queue for row in turn.rows(JOB) if row.status == "queued"})
    return [(name,) for name in names[: params["limit"]]]


async def job_look(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_look``."""
    queued = [row for row in turn.rows(JOB) if row.status == "queued"]
    rows: list[Row] = []
    for queue in params["queues"]:
        ours = [row for row in queued if row.queue == queue]
        fresh = [row for row in ours if row.reclaim_count == 0]
        is_due = any(row.lane is None and row.available_at <= turn.now for row in fresh)
        has_lanes = any(row.lane is not None for row in fresh)
        has_suspects = any(row.reclaim_count > 0 and row.available_at <= turn.now for row in ours)
        rows.append((queue, is_due, has_lanes, has_suspects))
    return rows


# --- claims --------------------------------------------------------------------------------------------


def _is_queued(turn: Turn, params: Params) -> Callable[[JobRow], bool]:
    def test(row: JobRow) -> bool:
        return bool(row.queue == params["queue"]) and row.status == "queued" and row.available_at <= turn.now

    return test


def _taken(turn: Turn, params: Params, row: JobRow, token: str) -> JobRow:
    after = row._replace(fence=min(row.fence + 1, MAX_TOKEN), attempt_token=token)
    if row.attempts >= row.max_attempts or row.fence >= MAX_TOKEN:
        error = f"not begun: {row.attempts} attempts were made, of at most {row.max_attempts}"
        return after._replace(
            status="failed",
            outcome="exhausted",
            finished_at=turn.now,
            reserved_at=None,
            lease_expires_at=None,
            last_error=with_before(error, row.last_error),
        )
    leases: Mapping[str, float] = dict(zip(params["tasks"], params["leases"], strict=True))
    lease = leases.get(row.task, params["lease"])
    return after._replace(
        status="processing",
        attempts=row.attempts + 1,
        reserved_by=params["owner"],
        reserved_at=turn.now,
        heartbeat_at=turn.now,
        lease_expires_at=turn.now + micros(lease),
        progress=None,
        outcome=None,
        finished_at=None,
    )


def _claimed(turn: Turn, params: Params, rows: list[JobRow]) -> list[Row]:
    token = turn.storage.fresh_uuid()
    changed = turn.put_all(JOB, [_taken(turn, params, row, token) for row in rows])
    return [
        (
            *(row.id, row.job_id, row.queue, row.task, row.args, row.headers, row.created_at, row.available_at),
            *(row.unique_key, row.lane, row.status, row.attempt_token, row.fence, row.attempts, row.max_attempts),
            *(row.recovery_policy, row.reclaim_count, turn.now - row.created_at),
        )
        for row in changed
    ]


async def job_claim(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_claim``."""
    is_queued = _is_queued(turn, params)

    def is_due(row: JobRow) -> bool:
        return is_queued(row) and row.lane is None and row.reclaim_count == 0

    found = _by_age(filter(is_due, turn.rows(JOB)))
    return _claimed(turn, params, await turn.lock_all(JOB, found, is_due, skip=True, limit=params["batch"]))


class _Room:
    """How many jobs of a lane and of a task may run besides those that do."""

    def __init__(self, turn: Turn, params: Params) -> None:
        running = [row for row in turn.rows(JOB) if row.status == "processing" and row.lane is not None]
        self._in_lane = Counter((row.task, row.lane) for row in running)
        self._of_task = Counter(row.task for row in running)
        self._widths: Mapping[str, int] = dict(zip(params["tasks"], params["widths"], strict=True))
        self._limits: Mapping[str, int] = dict(zip(params["tasks"], params["limits"], strict=True))

    def in_lane(self, task: str, lane: str | None) -> int:
        return self._widths.get(task, 1) - self._in_lane[task, lane]

    def of_task(self, task: str) -> int:
        return self._limits.get(task, 1) - self._of_task[task]


async def job_lanes_lock(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_lanes_lock``."""
    return [(turn.try_advisory(("lanes", params["table"])),)]


async def job_claim_lanes(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_claim_lanes``."""
    is_queued = _is_queued(turn, params)
    room = _Room(turn, params)
    waiting = [
        row
        for row in turn.rows(JOB)
        if row.queue == params["queue"] and row.status == "queued" and row.reclaim_count == 0
    ]
    lanes = sorted({(row.task, row.lane) for row in waiting if row.lane is not None})
    walk = [lane for lane in lanes if lane > (params["after_task"], params["after_lane"])][: params["lanes"]]
    candidates: list[JobRow] = []
    for task, lane in walk:

        def is_due(row: JobRow, of: tuple[str, str] = (task, lane)) -> bool:
            return is_queued(row) and (row.task, row.lane) == of and row.reclaim_count == 0

        limit = min(max(room.in_lane(task, lane), 0), params["batch"])
        found = _by_age(filter(is_due, waiting))
        candidates += await turn.lock_all(JOB, found, is_due, skip=True, limit=limit)
    fitting: list[JobRow] = []
    nth: Counter[str] = Counter()
    for row in _by_age(candidates):
        nth[row.task] += 1
        if nth[row.task] <= room.of_task(row.task):
            fitting.append(row)
    place: tuple[Any, Any] = walk[-1] if len(walk) == params["lanes"] else (None, None)
    rows = _claimed(turn, params, fitting[: params["batch"]])
    return [row + place for row in rows] or [(None,) * 18 + place]


async def job_claim_suspects(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_claim_suspects``."""
    is_queued = _is_queued(turn, params)
    room = _Room(turn, params)

    def is_suspect(row: JobRow) -> bool:
        has_room = row.lane is None or (room.in_lane(row.task, row.lane) > 0 and room.of_task(row.task) > 0)
        spare = params["spare_attempts"]
        can_spare = spare == 0 or row.attempts + spare < row.max_attempts
        return is_queued(row) and 0 < row.reclaim_count <= params["max_reclaims"] and can_spare and has_room

    found = _by_age(filter(is_suspect, turn.rows(JOB)))
    locked = await turn.lock_all(JOB, found, is_suspect, skip=True, limit=params["batch"])
    of_lane: Counter[tuple[str, str | None]] = Counter()
    of_task: Counter[str] = Counter()
    fitting: list[JobRow] = []
    for row in _by_age(locked):
        of_lane[row.task, row.lane] += 1
        of_task[row.task] += 1
        fits = of_lane[row.task, row.lane] <= room.in_lane(row.task, row.lane)
        if row.lane is None or (fits and of_task[row.task] <= room.of_task(row.task)):
            fitting.append(row)
    return _claimed(turn, params, fitting)


# --- upkeep --------------------------------------------------------------------------------------------


async def job_reclaim(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_reclaim``."""

    def is_expired(row: JobRow) -> bool:
        return row.status == "processing" and row.lease_expires_at is not None and row.lease_expires_at < turn.now

    found = sorted(filter(is_expired, turn.rows(JOB)), key=lambda row: (row.lease_expires_at or 0, row.id))
    locked = await turn.lock_all(JOB, found, is_expired, skip=True, limit=params["limit"])
    rows: list[Row] = []
    for before in locked:
        row = turn.put(JOB, _taken_back(turn, before))
        columns = (row.id, row.task, row.status, row.outcome, row.reserved_by, row.attempts)
        rows.append((*columns, before.attempt_token))
    return rows


def _taken_back(turn: Turn, row: JobRow) -> JobRow:
    error = (
        f"the lease of worker {row.reserved_by} expired on attempt {row.attempts}: it probably crashed or froze; "
        "what the job does may have been done all the same"
    )
    after = row._replace(
        reserved_at=None,
        lease_expires_at=None,
        attempt_token=turn.storage.fresh_uuid(),
        reclaim_count=min(row.reclaim_count + 1, MAX_COUNT),
        last_error=with_before(error, row.last_error),
    )
    if row.recovery_policy != "manual" and row.attempts < row.max_attempts:
        return after._replace(status="queued", outcome=None, finished_at=None, available_at=turn.now)
    outcome = "crashed" if row.recovery_policy == "auto" else "unknown_outcome"
    return after._replace(status="failed", outcome=outcome, finished_at=turn.now)


async def job_purge(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_purge``."""
    before = turn.now - micros(params["older_than"])

    def is_old(row: JobRow) -> bool:
        return row.status == "done" and row.finished_at is not None and row.finished_at < before

    found = sorted(filter(is_old, turn.rows(JOB)), key=lambda row: (row.finished_at or 0, row.id))
    old = await turn.lock_all(JOB, found, is_old, skip=True, limit=params["limit"])
    for row in old:
        turn.delete(JOB, row.id)
    return [(len(old),)]


async def job_stats_queues(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_stats_queues``."""
    rows: list[Row] = []
    open_jobs = [row for row in turn.rows(JOB) if is_open(row)]
    for queue in sorted({row.queue for row in open_jobs}):
        ours = [row for row in open_jobs if row.queue == queue]
        queued = [row for row in ours if row.status == "queued"]
        due = [row.available_at for row in queued if row.available_at <= turn.now]
        leases = [row.lease_expires_at or 0 for row in ours if row.status == "processing"]
        expired = sum(lease < turn.now for lease in leases)
        rows.append((queue, len(queued), len(due), len(leases), expired, turn.now - min(due) if due else None))
    return rows


async def job_stats_failed(turn: Turn, params: Params) -> list[Row]:
    """Answer ``job_stats_failed``."""
    return sorted(Counter(row.outcome for row in turn.rows(JOB) if row.status == "failed").items(), key=str)
