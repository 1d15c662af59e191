"""What a claim may take, park and bury, and what reaping buries: by the rules, however a store goes about it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fencepost.core.states import Event, State
from fencepost.store.outbox import PARKING_CLAIMS, ClaimResult
from lab.conformance import steps as s
from lab.conformance.model_rows import Row, Sight, demand, micros
from lab.conformance.seen import Look

QUEUES = ("q", "r", "s")


def claim(sight: Sight, step: s.Claim, result: ClaimResult, after: Look, alone: bool) -> None:
    """Judge a normal claim."""
    queues = QUEUES if step.queue is None else (step.queue,)
    served = [queue for queue in queues if not sight.is_shut(queue)]
    counts = _normal(sight, served, step, result, after, alone)
    demand(counts == (result.exhausted, result.parked), f"it counts {result.exhausted} and {result.parked}")


def _normal(
    sight: Sight, queues: Collection[str], step: s.Claim, result: ClaimResult, after: Look, alone: bool
) -> tuple[int, int]:
    before = {row.id: row for row in sight.rows()}
    taken = sorted(each.id for each in result.claimed)
    buried = [row_id for row_id in _became(before, after, State.DEAD) if not _is_suspect(before[row_id])]
    parked = _became(before, after, State.BLOCKED)
    demand(len(taken) <= step.batch, f"{len(taken)} claimed, of at most {step.batch}")
    for row_id in (*taken, *buried, *parked):
        demand(before[row_id].queue in queues, f"{before[row_id]} is in a queue that was not to be served")
    _demand_turns(sight, before, taken, buried, step.longest_run)
    for row_id in (*taken, *buried):
        _take(sight, before[row_id], step)
    for row_id in parked:
        sight.happen(row_id, Event.PARK)
    _demand_obstacles(sight, parked, step.park_behind_leased)
    if alone:
        _demand_earliest(sight, before, taken, step.limit)
        # (A batch may be full of what waits behind a leased message: a claimer looks again, and parks that.)
        # (And so it does where each of its statements came across rows that could not be claimed.)
        is_idle = not taken and not result.waiting and len(buried) + len(parked) < PARKING_CLAIMS
        demand(not is_idle or not _claimable(sight, queues, step.limit), "nothing claimed, although there was")
    return len(buried), len(parked)


def _is_suspect(row: Row) -> bool:
    return row.reclaims > 0 or row.status is State.PROCESSING


def _became(before: dict[int, Row], after: Look, state: State) -> list[int]:
    return [
        row.id
        for row in after.rows
        if row.id in before and row.status == state and before[row.id].status is not state
    ]


def _take(sight: Sight, row: Row, step: s.Claim) -> None:
    # (A parked one is taken along in the turn of its key: see `_demand_turns`.)
    demand(row.is_fresh(sight.now) or row.status is State.BLOCKED, f"{row} is not to be claimed now")
    event = Event.CLAIM if row.attempts < step.limit else Event.CLAIM_OVER_LIMIT
    sight.happen(row.id, event, owner=step.worker, span=micros(step.lease))


def _demand_turns(
    sight: Sight, before: dict[int, Row], taken: list[int], buried: list[int], longest: int | None
) -> None:
    """Demand that of each key it was the first open messages, without a gap, and nothing behind a dead one."""
    for queue, key in {(row.queue, row.key) for row_id in (*taken, *buried) if (row := before[row_id]).key}:
        first = [row.id for row in sight.open_of(queue, key)]
        ours = [row_id for row_id in first if row_id in taken or row_id in buried]
        demand(ours == first[: len(ours)], f"{ours} of key {key} are not the first of {first}")
        demand(not any(row_id in buried for row_id in ours[:-1]), f"{ours} of key {key} go past a dead one")
        demand(longest is None or len(ours) <= longest, f"{len(ours)} of key {key}, of at most {longest}")


def _demand_obstacles(sight: Sight, parked: list[int], behind_leased: bool) -> None:
    """Demand that what was parked has an earlier open message before it that is not free."""
    heads = sight.heads()
    for row_id in parked:
        row = sight.row(row_id)
        head = heads[row.queue, row.key] if row is not None and row.key is not None else None
        demand(head is not None and head.id < row_id, f"{row} was parked behind nothing")
        if head is not None:
            demand(not head.is_fresh(sight.now), f"{row} was parked behind {head}, which is free")
            is_leased = head.status is State.PROCESSING and not head.is_expired(sight.now)
            demand(behind_leased or not is_leased, f"{row} was parked behind {head}, which is leased")


def _demand_earliest(sight: Sight, before: dict[int, Row], taken: list[int], limit: int) -> None:
    left = [row for row in sight.rows() if row.key is None and row.is_fresh(sight.now) and row.attempts < limit]
    for row_id in taken:
        row = before[row_id]
        passed = [other for other in left if other.queue == row.queue and other.place < row.place]
        demand(row.key is not None or not passed, f"{row} was claimed before {passed}")


def _claimable(sight: Sight, queues: Collection[str], limit: int) -> list[Row]:
    first = {row.id for row in sight.heads().values()}
    return [
        row
        for row in sight.rows()
        if row.queue in queues
        and row.is_fresh(sight.now)
        and row.attempts < limit
        and (row.key is None or row.id in first)
    ]


# --- suspects ------------------------------------------------------------------------------------------


def claim_suspects(sight: Sight, step: s.ClaimSuspects, result: ClaimResult, after: Look, alone: bool) -> None:
    """Judge a claim of suspects: least often reclaimed first, each in the turn of its key."""
    suspects = [] if sight.is_shut(step.queue) else _suspects(sight, step)
    buried = _take_suspects(sight, suspects, step, result, after, alone)
    demand(buried == result.exhausted, "it counts something else")


def _take_suspects(
    sight: Sight, suspects: list[Row], step: s.ClaimSuspects, result: ClaimResult, after: Look, alone: bool
) -> int:
    before = {row.id: row for row in sight.rows()}
    buried = [row_id for row_id in _became(before, after, State.DEAD) if _is_suspect(before[row_id])]
    took = sorted([*(each.id for each in result.claimed), *buried])
    if alone:
        expected = sorted(row.id for row in suspects[: step.batch])
        demand(took == expected, f"suspects {took} were taken, not {expected}")
    for row_id in took:
        row = before[row_id]
        demand(row in suspects, f"{row} is not to be taken over")
        event = Event.CLAIM if row.status is State.PENDING else Event.RECLAIM
        if row.attempts >= step.limit:
            event = Event.CLAIM_OVER_LIMIT
        sight.happen(row_id, event, owner=step.worker, span=micros(1))
    return len(buried)


def _suspects(sight: Sight, step: s.ClaimSuspects) -> list[Row]:
    first = {row.id for row in sight.heads().values()}

    def is_suspect(row: Row) -> bool:
        came_back = row.status is State.PENDING and row.reclaims > 0 and row.is_due(sight.now)
        lost = (
            row.status is State.PROCESSING
            and row.is_expired(sight.now)
            and row.recovery != "manual"
            and row.attempts < step.limit - step.spare_attempts
        )
        in_turn = row.key is None or row.id in first
        return row.queue == step.queue and (came_back or lost) and in_turn and row.reclaims <= step.max_reclaims

    return sorted(filter(is_suspect, sight.rows()), key=lambda row: (row.reclaims, *row.place))


def reap(sight: Sight, step: s.Reap, result: list[tuple[int, Any]], alone: bool) -> None:
    """Judge reaping."""
    limit = sight.queue(step.queue).max_attempts or step.max_attempts
    lost = [
        row
        for row in sight.rows()
        if row.queue == step.queue
        and row.status is State.PROCESSING
        and row.is_expired(sight.now)
        and (row.attempts >= limit or row.recovery == "manual")
    ]
    took = sorted(row_id for row_id, _ in result)
    if alone:
        expected = sorted(row.id for row in sorted(lost, key=lambda row: row.place)[: step.limit])
        demand(took == expected, f"{took} were buried, not {expected}")
    for row_id, outcome in result:
        row = next((each for each in lost if each.id == row_id), None)
        demand(row is not None, f"message {row_id} is not to be buried")
        if row is not None:
            sight.happen(row_id, Event.REAP_CRASHED if row.recovery == "auto" else Event.REAP_UNKNOWN)
            demand((sight.row(row_id) or row).outcome == outcome, f"it says {outcome} of message {row_id}")


# --- probes --------------------------------------------------------------------------------------------


def probe(sight: Sight, queue: str, result: ClaimResult, after: Look, alone: bool) -> None:
    """Judge the claim of one message past an open breaker: a normal one, or else a suspect."""
    before = {row.id: row for row in sight.rows()}
    claimed = [each for each in result.claimed if not _is_suspect(before[each.id])]
    normal = ClaimResult(claimed, waiting=result.waiting)
    _normal(sight, [queue], s.Claim("w3", queue, 1, 1, 3, None, True), normal, after, alone)
    if not normal.claimed:
        step = s.ClaimSuspects("w3", queue, 1, 3, 10**9, 0)
        _take_suspects(sight, _suspects(sight, step), step, result, after, alone)
