"""The life of a job, written anew from the specification: what each committed change of a row is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.checker.tables import Change, JobState
from lab.checker.transitions import (
    BURY,
    CLAIM,
    CLOSE,
    DELETE,
    GIVE_BACK,
    HEARTBEAT,
    ILLEGAL,
    INSERT,
    OVER_LIMIT,
    REAP,
    RECLAIM,
    RETRY,
)

BY_HAND = "operator cancel or fail"


@dataclass(frozen=True, slots=True)
class JobStep:
    """A change, what it is, and where it is wrong: (rule, why)."""

    change: Change[JobState]
    event: str
    faults: Sequence[tuple[str, str]] = ()

    @property
    def old(self) -> JobState:
        assert self.change.old is not None  # noqa: S101 - of an update
        return self.change.old

    @property
    def new(self) -> JobState:
        assert self.change.new is not None  # noqa: S101 - of an update
        return self.change.new


@dataclass(frozen=True, slots=True)
class JobRule:
    """What an event does: to the fence, the token, the attempts; and which outcomes it may write."""

    event: str
    fence: int
    new_token: bool
    attempts: Sequence[int] | None
    outcomes: frozenset[str | None] = frozenset({None})
    needs_expired: bool = False


_BURIED = frozenset({"permanent", "exhausted", "expired", "unknown_outcome"})
_BY_HAND = JobRule(BY_HAND, 0, True, (0,), frozenset({"cancelled", "failed"}))

JOB_TABLE: dict[tuple[str, str], Sequence[JobRule]] = {
    ("queued", "processing"): (JobRule(CLAIM, 1, True, (1,)),),
    ("queued", "failed"): (JobRule(OVER_LIMIT, 1, True, (0,), frozenset({"exhausted"})), _BY_HAND),
    ("processing", "processing"): (JobRule(HEARTBEAT, 0, False, (0,)),),
    ("processing", "done"): (JobRule(CLOSE, 0, False, (0,), frozenset({"completed"})),),
    ("processing", "queued"): (
        JobRule(GIVE_BACK, 0, False, (0, -1)),
        JobRule(RECLAIM, 0, True, (0,), needs_expired=True),
    ),
    ("processing", "failed"): (
        JobRule(BURY, 0, False, (0,), _BURIED),
        JobRule(REAP, 0, True, (0,), frozenset({"crashed", "unknown_outcome"}), needs_expired=True),
        _BY_HAND,
    ),
    ("failed", "queued"): (JobRule(RETRY, 0, True, None),),
}


def job_step_of(change: Change[JobState]) -> JobStep:
    """Say what a change is."""
    if change.op == "INSERT":
        new = change.new
        is_fresh = new is None or (new.status, new.attempts, new.fence) == ("queued", 0, 0)
        return JobStep(change, INSERT, [] if is_fresh else [("J2", "inserted in the middle of its life")])
    if change.op != "UPDATE":
        return JobStep(change, DELETE, _deleted(change.old))
    assert change.old is not None and change.new is not None  # noqa: S101, PT018 - of an update
    old, new = change.old, change.new
    if old == new and old.status != "processing":
        return JobStep(change, ILLEGAL)
    rules = JOB_TABLE.get((old.status, new.status))
    if rules is None:
        name = "J7" if old.status in ("done", "failed") else "J2"
        return JobStep(change, ILLEGAL, [(name, f"{old.status} became {new.status}")])
    fits = [rule for rule in rules if new.outcome in rule.outcomes]
    rule = next((each for each in fits if each.new_token == (new.token != old.token)), (fits or rules)[-1])
    return JobStep(change, rule.event, _faults(rule, change, old, new))


def _deleted(old: JobState | None) -> Sequence[tuple[str, str]]:
    return [] if old is not None and old.status == "done" else [("J7", "deleted, and it was not done")]


def _faults(rule: JobRule, change: Change[JobState], old: JobState, new: JobState) -> Sequence[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if new.fence - old.fence != rule.fence:
        found.append(("J4", f"{rule.event} moved the fence from {old.fence} to {new.fence}"))
    if (new.token != old.token) != rule.new_token:
        found.append(("J4", f"{rule.event} {'kept' if rule.new_token else 'changed'} the token"))
    if rule.needs_expired and old.lease_until is not None and old.lease_until >= change.statement_at:
        found.append(("J4", f"{rule.event} while the lease of {old.owner} was live"))
    if rule.attempts is None:
        fits = new.attempts == 0
    else:
        fits = any(new.attempts == max(0, old.attempts + by) for by in rule.attempts)
    if not fits:
        found.append(("J3", f"{rule.event} moved attempts from {old.attempts} to {new.attempts}"))
    if new.outcome not in rule.outcomes:
        found.append(("J2", f"{rule.event} wrote outcome {new.outcome}"))
    if rule.event == RECLAIM and old.recovery == "manual":
        found.append(("J6", "a job whose outcome is left to a person was put back"))
    if (new.lease_until is not None) != (new.status == "processing"):
        found.append(("J2", f"{new.status} with lease end {new.lease_until}"))
    return found
