"""Schedules: how far each one has come, and who looks after it."""

from __future__ import annotations

from fencepost.core.operation import Row
from lab.fake_store.rows import CRON, CronRow, instant_of, micros
from lab.fake_store.turn import Params, Turn


def _columns(turn: Turn, row: CronRow) -> Row:
    return (*row, turn.now)


async def cron_look(turn: Turn, params: Params) -> list[Row]:
    """Answer ``cron_look``."""
    names = params["names"]
    return [_columns(turn, row) for row in turn.rows(CRON) if names is None or row.name in names]


async def cron_register(turn: Turn, params: Params) -> list[Row]:
    """Answer ``cron_register``."""
    name = params["name"]
    if await turn.conflict(CRON, lambda row: bool(row.name == name)) is not None:
        return []
    definition = (params["task"], params["expression"], params["timezone"])
    turn.put(CRON, CronRow(name, *definition, turn.now, turn.now))
    return [(name,)]


async def cron_sign(turn: Turn, params: Params) -> list[Row]:
    """Answer ``cron_sign``."""

    def is_silent(row: CronRow) -> bool:
        is_ours = row.name in params["names"]
        return is_ours and not turn.now - micros(params["every"]) <= row.seen_at <= turn.now

    silent = await turn.lock_all(CRON, filter(is_silent, turn.rows(CRON)), is_silent, skip=True)
    return [(row.name,) for row in turn.put_all(CRON, [row._replace(seen_at=turn.now) for row in silent])]


async def cron_hold(turn: Turn, params: Params) -> list[Row]:
    """Answer ``cron_hold``."""
    found = [row for row in turn.rows(CRON) if row.name == params["name"]]
    held = await turn.lock_all(CRON, found, lambda _: True, skip=True)
    return [_columns(turn, row) for row in held]


async def cron_move(turn: Turn, params: Params) -> list[Row]:
    """Answer ``cron_move``: never back."""
    definition = {name: params[name] for name in ("task", "expression", "timezone")}
    moved = await turn.update(
        CRON,
        [row for row in turn.rows(CRON) if row.name == params["name"]],
        lambda _: True,
        lambda row: row._replace(
            **definition, last_tick=max(row.last_tick, instant_of(params["last_tick"])), seen_at=turn.now
        ),
    )
    return [(row.name,) for row in moved]
