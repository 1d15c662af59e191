"""Faults that conformance must find: planted in the texts of statements, or in the fake store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fencepost.core.operation import Row
from fencepost.store import catalog
from lab.fake_store import claims, holders, inbox, job_holders, jobs, ledger, ordering, queues, suspects
from lab.fake_store.rows import JOB, OUTBOX, JobRow
from lab.fake_store.statements import STATEMENTS
from lab.fake_store.turn import Answer, Params, Turn

_NEXT = "least(o.lease_version + 1, 4611686018427387904)"


@dataclass(frozen=True)
class TextFault:
    """Another expression in the text of one statement; what is named must stand there."""

    statement: str
    expression: str
    instead: str
    is_found_soon: bool = True
    """In a few dozen histories."""

    def __str__(self) -> str:
        return f"{self.statement}: {self.expression!r} -> {self.instead!r}"


TEXT_FAULTS = (
    TextFault("mark_done", "lease_version = %(token)s::bigint AND", "", False),
    TextFault("release", "AND status = 'processing'", ""),
    TextFault("claim", f"lease_version = {_NEXT}", "lease_version = o.lease_version"),
    TextFault("claim", "NOT EXISTS (", "NOT EXISTS (SELECT 1 WHERE false) OR EXISTS ("),
    TextFault("claim", "WHERE nth = place AND", "WHERE"),
    TextFault("claim", "status <> 'done'", "status <> 'dead'", False),
    TextFault("claim_suspects", "attempts < %(max_attempts)s::int", "attempts <= %(max_attempts)s::int", False),
    TextFault("claim_suspects", "CASE WHEN o.status = 'processing' THEN 1 ELSE 0 END", "0"),
    TextFault("reap", f"lease_version = {_NEXT}", "lease_version = o.lease_version"),
    TextFault("mark_done_ordered", "AND o.place = m.place", "", False),
    TextFault("promote", "LIMIT 1", "OFFSET 1 LIMIT 1"),
    TextFault("reschedule", "THEN greatest(0, attempts - 1)", "THEN attempts"),
    TextFault("heartbeat", "lease_until = statement_timestamp()", "lease_until = o.lease_until"),
    TextFault("lock_keys", "pg_advisory_xact_lock(n)::text", "n::text", False),
    TextFault("dead_retry", "reclaim_count = 0", "reclaim_count = o.reclaim_count", False),
    TextFault("purge", "status = 'done' AND done_at", "status <> 'open' AND created_at", False),
    TextFault(
        "rate_hold", "greatest(q.rate_per_second, 1::float8)", "greatest(q.rate_per_second, 2::float8)", False
    ),
    TextFault("ledger_open", "ON CONFLICT (kind, row_id, token) DO NOTHING", "LIMIT 1", False),
    TextFault("ledger_close", "AND a.ended_at IS NULL", "", False),
    TextFault("ledger_close", "AND a.token = e.token", "AND a.token = e.token AND e.result <> 'completed'"),
    TextFault("job_done", "AND attempt_token = (", "AND gen_random_uuid() <> ("),
    TextFault("job_claim_lanes", "- coalesce(running.n, 0) AS room", "- coalesce(running.n, 1) + 1 AS room"),
    TextFault("job_claim_lanes", "numbered.nth <= coalesce(", "numbered.nth - 1 <= coalesce("),
    TextFault("job_enqueue", "%(unique_key)s::text,", "NULLIF(%(unique_key)s::text, 'x'),"),
    TextFault("job_reclaim", "attempt_token = gen_random_uuid(),", "", False),
    TextFault("job_reclaim", "j.attempts < j.max_attempts", "j.attempts <= j.max_attempts"),
    TextFault("job_requeue", "greatest(0, attempts - 1) ELSE", "attempts ELSE"),
    TextFault("job_retry", "attempts = 0, reclaim_count = 0,", "attempts = 0,"),
    TextFault("job_heartbeat", "heartbeat_at = statement_timestamp(),", "", False),
    TextFault("cron_move", "greatest(last_tick, %(last_tick)s::text::timestamptz)", "last_tick"),
)


@contextmanager
def planted(fault: TextFault) -> Iterator[None]:
    """Every statement is made with the fault.

    Raises:
        LookupError: what it would change is not there (any more).
    """
    load = catalog._load  # noqa: SLF001 - where the texts come from

    def faulty(dialect: str, name: str, names: catalog.Names) -> str:
        text = load(dialect, name, names)
        if name != fault.statement:
            return text
        if fault.expression not in text:
            raise LookupError(f"there is no {fault}")
        return text.replace(fault.expression, fault.instead)

    catalog._load = faulty  # type: ignore[assignment] # noqa: SLF001 - it has no cache of its own
    try:
        yield
    finally:
        catalog._load = load  # noqa: SLF001 - as it was


# --- in the fake store ---------------------------------------------------------------------------------


def _but(answer: Answer, **params: Any) -> Answer:
    """Return an answer that is given other parameters."""

    async def changed(turn: Turn, given: Params) -> list[Row]:
        return await answer(turn, {**given, **params})

    return changed


async def _finished_whoever_asks(turn: Turn, params: Params) -> list[Row]:
    found = [row for row_id in params["ids"] if (row := turn.get(OUTBOX, row_id)) and row.status == "processing"]
    for row in found:
        held = await turn.lock(OUTBOX, row.id, lambda _: True)
        if held is not None:
            done = {"status": "done", "outcome": params["outcome"], "done_at": turn.now, "lease_until": None}
            turn.put(OUTBOX, held._replace(**done))
    return [(row.id,) for row in found]


async def _one_more(turn: Turn, params: Params) -> list[Row]:
    return await claims.claim(turn, {**params, "batch": params["batch"] + 1})


async def _never_promoted(turn: Turn, params: Params) -> list[Row]:
    return []


async def _said_to_be_kept(turn: Turn, params: Params) -> list[Row]:
    await holders.heartbeat(turn, params)
    return [(row_id,) for row_id in params["ids"]]


async def _taken_in_again(turn: Turn, params: Params) -> list[Row]:
    await inbox.inbox_accept(turn, params)
    return [(True,)]


async def _not_locked(turn: Turn, params: Params) -> list[Row]:
    rows = await ordering.lock_keys(turn, {**params, "queues": [], "keys": []})
    return list(rows)


async def _completed_whoever_asks(turn: Turn, params: Params) -> list[Row]:
    rows = [row for job_id in params["ids"] if (row := turn.get(JOB, job_id)) and row.status == "processing"]
    return await job_holders.job_done(turn, {**params, **_newest(rows)}) if rows else []


def _newest(rows: list[JobRow]) -> dict[str, Any]:
    """Return parameters that have each job's own token."""
    ids = sorted(row.id for row in rows)
    tokens = {row.id: row.attempt_token for row in rows}
    return {"ids": ids, "tokens": [tokens[row_id] for row_id in ids], "results": None}


async def _one_more_in_each_lane(turn: Turn, params: Params) -> list[Row]:
    return await jobs.job_claim_lanes(turn, {**params, "widths": [width + 1 for width in params["widths"]]})


async def _the_last_end_is_left_out(turn: Turn, params: Params) -> list[Row]:
    names = ("ids", "tokens", "workers", "results", "errors", "lost")
    return await ledger.ledger_close(turn, {**params, **{name: params[name][:-1] for name in names}})


async def _a_burst_too_many(turn: Turn, params: Params) -> list[Row]:
    rows = await queues.rate_hold(turn, params)
    return [(None if left is None else left + 1,) for (left,) in rows]


async def _ticks_twice(turn: Turn, params: Params) -> list[Row]:
    return [(params["name"],)]


FAKE_FAULTS: Mapping[str, Mapping[str, Answer]] = {
    "a stale worker finishes": {"mark_done": _finished_whoever_asks},
    "nothing is promoted": {"promote": _never_promoted},
    "a lost lease is said to be kept": {"heartbeat": _said_to_be_kept},
    "a repeat is taken in": {"inbox_accept": _taken_in_again},
    "producers do not wait for each other": {"lock_keys": _not_locked},
    "reaping knows another limit": {"reap": _but(suspects.reap, max_attempts=1)},
    "an attempt is always given back": {"reschedule": _but(holders.reschedule, refund_attempt=True)},
    "one more is claimed than asked for": {"claim": _one_more},
    "a stale worker finishes a job": {"job_done": _completed_whoever_asks},
    "one more job runs in each lane": {"job_claim_lanes": _one_more_in_each_lane},
    "a unique key is nobody's": {"job_enqueue": _but(jobs.job_enqueue, unique_key=None)},
    "jobs are taken back too late": {"job_reclaim": _but(jobs.job_reclaim, limit=0)},
    "an attempt has no end": {"ledger_close": _the_last_end_is_left_out},
    "a rate lets a burst through": {"rate_hold": _a_burst_too_many},
    "a schedule does not move on": {"cron_move": _ticks_twice},
}


def with_fault(name: str) -> dict[str, Answer]:
    """Return the answers of the fake store with a fault."""
    return {**STATEMENTS, **FAKE_FAULTS[name]}
