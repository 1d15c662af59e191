"""What holds for a queue: its settings, its breaker and its rate."""

from __future__ import annotations

from math import floor

from fencepost.core.operation import Row
from lab.fake_store.rows import MAX_COUNT, OUTBOX, QUEUE, SECOND, QueueRow, micros
from lab.fake_store.turn import Params, Turn


def _columns(turn: Turn, row: QueueRow) -> Row:
    now = turn.storage.now()
    opened, probe = row.breaker_opened_at, row.breaker_probe_at
    return (
        *(row.queue, row.paused, row.weight, row.concurrency, row.lease, row.publish_timeout, row.max_attempts),
        *(row.backoff_base, row.backoff_cap, row.sequenced, row.rate, row.breaker_failures, row.breaker_cap),
        *(row.pause_reason, row.changed_at, row.changed_by, row.ledger, row.breaker_seen, row.breaker_version),
        *(row.breaker_trips, row.breaker_error),
        None if opened is None else (now - opened) / SECOND,
        None if probe is None else (probe - now) / SECOND,
    )


async def _settings_row(turn: Turn, queue: str) -> QueueRow:
    return await turn.inserted_or_locked(QUEUE, QueueRow(queue, changed_at=turn.now))


async def queue_settings(turn: Turn, params: Params) -> list[Row]:
    """Answer ``queue_settings``."""
    return [_columns(turn, row) for row in turn.rows(QUEUE)]


async def queue_hold(turn: Turn, params: Params) -> list[Row]:
    """Answer ``queue_hold``."""
    row = turn.put(QUEUE, await _settings_row(turn, params["queue"]))
    return [(*_columns(turn, row), (turn.now - row.changed_at) / SECOND)]


_SAVED = (
    *("paused", "pause_reason", "weight", "concurrency", "lease", "publish_timeout", "max_attempts"),
    *("backoff_base", "backoff_cap", "sequenced", "ledger", "rate", "breaker_failures", "breaker_cap"),
)


async def queue_save(turn: Turn, params: Params) -> list[Row]:
    """Answer ``queue_save``."""
    values = {name: params[name] for name in _SAVED}
    changed = await turn.update(
        QUEUE,
        [row for row in turn.rows(QUEUE) if row.queue == params["queue"]],
        lambda _: True,
        lambda row: row._replace(**values, changed_at=turn.now, changed_by=params["actor"]),
    )
    return [_columns(turn, row) for row in changed]


async def queue_has_open(turn: Turn, params: Params) -> list[Row]:
    """Answer ``queue_has_open``."""
    return [(1,) for row in turn.rows(OUTBOX) if row.is_open and row.queue == params["queue"]][:1]


# --- breaker -------------------------------------------------------------------------------------------


async def breaker_failed(turn: Turn, params: Params) -> list[Row]:
    """Answer ``breaker_failed``."""
    row = await _settings_row(turn, params["queue"])
    if row.breaker_opened_at is not None:
        return []
    row = turn.put(QUEUE, row._replace(breaker_seen=min(row.breaker_seen + 1, MAX_COUNT)))
    return [(row.breaker_seen,)]


async def breaker_delivered(turn: Turn, params: Params) -> list[Row]:
    """Answer ``breaker_delivered``."""

    def has_failures(row: QueueRow) -> bool:
        return bool(row.queue == params["queue"]) and row.breaker_seen > 0

    found = filter(has_failures, turn.rows(QUEUE))
    await turn.update(QUEUE, found, has_failures, lambda row: row._replace(breaker_seen=0))
    return []


async def breaker_open(turn: Turn, params: Params) -> list[Row]:
    """Answer ``breaker_open``."""
    row = await _settings_row(turn, params["queue"])
    if row.breaker_opened_at is not None:
        return []
    now = turn.storage.now()
    row = row._replace(
        breaker_version=row.breaker_version + 1,
        breaker_opened_at=now,
        breaker_probe_at=now + micros(params["pause"]),
        breaker_trips=0,
        breaker_seen=0,
        breaker_error=params["error"],
    )
    return [(turn.put(QUEUE, row).breaker_version,)]


async def breaker_probe(turn: Turn, params: Params) -> list[Row]:
    """Answer ``breaker_probe``."""
    now = turn.storage.now()

    def is_to_probe(row: QueueRow) -> bool:
        return (
            row.queue == params["queue"]
            and not row.paused
            and row.breaker_opened_at is not None
            and row.breaker_probe_at is not None
            and row.breaker_probe_at <= now
        )

    held = await turn.lock_all(QUEUE, filter(is_to_probe, turn.rows(QUEUE)), is_to_probe, skip=True)
    probe_at = now + micros(params["patience"])
    changed = turn.put_all(
        QUEUE, [row._replace(breaker_version=row.breaker_version + 1, breaker_probe_at=probe_at) for row in held]
    )
    return [(row.breaker_version,) for row in changed]


async def breaker_close(turn: Turn, params: Params) -> list[Row]:
    """Answer ``breaker_close``."""

    def is_ours(row: QueueRow) -> bool:
        is_open = row.queue == params["queue"] and row.breaker_opened_at is not None
        return is_open and params["version"] in (None, row.breaker_version)

    changed = await turn.update(
        QUEUE,
        filter(is_ours, turn.rows(QUEUE)),
        is_ours,
        lambda row: row._replace(
            breaker_version=row.breaker_version + 1,
            breaker_opened_at=None,
            breaker_probe_at=None,
            breaker_trips=0,
            breaker_seen=0,
            breaker_error=None,
        ),
    )
    return [(row.breaker_version,) for row in changed]


async def breaker_reopen(turn: Turn, params: Params) -> list[Row]:
    """Answer ``breaker_reopen``."""

    def is_ours(row: QueueRow) -> bool:
        is_open = row.queue == params["queue"] and row.breaker_opened_at is not None
        return is_open and bool(row.breaker_version == params["version"])

    changed = await turn.update(
        QUEUE,
        filter(is_ours, turn.rows(QUEUE)),
        is_ours,
        lambda row: row._replace(
            breaker_version=row.breaker_version + 1,
            breaker_probe_at=turn.storage.now() + micros(params["pause"]),
            breaker_trips=min(row.breaker_trips + params["trips"], MAX_COUNT),
            breaker_error=row.breaker_error if params["error"] is None else params["error"],
        ),
    )
    return [(row.breaker_version,) for row in changed]


# --- rate ----------------------------------------------------------------------------------------------


async def rate_hold(turn: Turn, params: Params) -> list[Row]:
    """Answer ``rate_hold``."""

    def has_rate(row: QueueRow) -> bool:
        return bool(row.queue == params["queue"]) and row.rate is not None

    found = list(filter(has_rate, turn.rows(QUEUE)))
    held = await turn.lock_all(QUEUE, found, has_rate, skip=True)
    return [(_left_over(turn, held[0]) if held else None,) for _ in found]


def _left_over(turn: Turn, row: QueueRow) -> int:
    rate = row.rate or 0.0
    bucket = max(rate, 1.0)
    if row.rate_spent_until is not None:
        bucket = min(bucket, rate * (turn.storage.now() - row.rate_spent_until) / SECOND + 0.000001)
    return floor(bucket)


async def rate_spend(turn: Turn, params: Params) -> list[Row]:
    """Answer ``rate_spend``."""

    def has_rate(row: QueueRow) -> bool:
        return bool(row.queue == params["queue"]) and row.rate is not None

    def spent(row: QueueRow) -> QueueRow:
        rate = row.rate or 1.0
        full = turn.storage.now() - micros(max(1.0, 1.0 / rate))
        begin = full if row.rate_spent_until is None else max(row.rate_spent_until, full)
        return row._replace(rate_spent_until=begin + micros(params["messages"] / rate))

    await turn.update(QUEUE, filter(has_rate, turn.rows(QUEUE)), has_rate, spent)
    return []
