"""How soon messages of lost workers are taken over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from lab.checker.evidence import NEVER, Evidence
from lab.checker.finding import Finding
from lab.checker.intervals import longest
from lab.checker.transitions import HEARTBEAT, REAP, RECLAIM, TAKES, Step
from lab.checker.workers import Worker, Workers, head_since

SECOND = 1_000_000_000
TOLD_LATE = SECOND // 20
"""A process is thawed, or started, before the line that tells it; and instants of the database are known to some
milliseconds only."""


def i10(evidence: Evidence) -> Finding:
    """Every message of a lost worker is claimable again within lease + 1 s, and claimed within one poll more."""
    found = Finding("I10", "what a lost worker held is claimed within lease + 1 s + poll, where a worker is free")
    if not evidence.clock.is_known:
        return found
    workers = Workers(evidence)
    first = head_since(evidence)
    for held, ended in _expired(evidence):
        found.judged += bool(workers.all)  # where nobody is known to work, nobody can be late
        found.seen["found expired"] += 1 if ended is None else 0
        found.seen["taken over"] += ended is not None and ended.event == RECLAIM
        found.seen["reaped"] += ended is not None and ended.event == REAP
        _taken_in_time(evidence, workers, held, ended, first.get(held.change.id, 0), found)
    _leases_no_longer_than_said(evidence, found)
    _nothing_renewed_for_the_lost(evidence, workers, found)
    return found


def _expired(evidence: Evidence) -> Iterator[tuple[Step, Step | None]]:
    """Yield every end of a lease that passed: the write that set it, and the change that came after it, if any."""
    for steps in evidence.steps_of.values():
        for place, step in enumerate(steps):
            if step.change.new is None or step.new.lease_until is None:
                continue
            after = steps[place + 1] if place + 1 < len(steps) else None
            end = step.new.lease_until
            if after is None or after.change.statement_at > end:
                yield step, after


def _taken_in_time(
    evidence: Evidence, workers: Workers, held: Step, ended: Step | None, first: int, found: Finding
) -> None:
    assert held.new.lease_until is not None  # noqa: S101 - the caller has looked
    clock, history = evidence.clock, evidence.history
    until = clock.mono(ended.change.at) if ended is not None else history.phase("drained") or history.last_at
    waiting = (max(clock.mono(held.new.lease_until), evidence.seen_open(held.change), first), until)
    limit = round((evidence.poll + 1 + evidence.tolerance) * SECOND)
    chances = workers.chances(held.new.queue, waiting)
    slowest = max((longest(times) for _, times in chances), default=0)
    found.seen["beside a free worker"] += slowest > 0
    found.seen["the slowest beside one, in ms"] = max(
        found.seen["the slowest beside one, in ms"], slowest // 1_000_000
    )
    for worker, times in chances:
        if longest(times) > limit:
            found.violated(
                f"message {held.change.id}: the lease of {held.new.owner} ended, and {worker.process} was free "
                f"for {longest(times) / SECOND:.3f} s and did not take it"
            )
            return


def _leases_no_longer_than_said(evidence: Evidence, found: Finding) -> None:
    for step in evidence.steps:
        if step.event not in TAKES and step.event != HEARTBEAT:
            continue
        until = step.new.lease_until
        if until is not None and until - step.change.statement_at > (evidence.lease + 1) * 1e6:
            found.violated(f"message {step.change.id}, change {step.change.n}: its lease is longer than a lease")


def _nothing_renewed_for_the_lost(evidence: Evidence, workers: Workers, found: Finding) -> None:
    """Once what was under way is carried out, nobody renews a lease for a killed or frozen worker."""
    by_process = {worker.process: worker for worker in workers.all}
    lost: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for fault in evidence.faults:
        worker = by_process.get(fault.target)
        if worker is not None and fault.fault in ("sigkill", "sigstop"):
            end = NEVER if fault.fault == "sigkill" else fault.end
            # A successor may have its name.
            next_start = min((each.born for each in workers.all if _follows(each, worker)), default=NEVER)
            lost[worker.owner].append((fault.begin + SECOND, min(end, next_start) - TOLD_LATE))
    for step in evidence.steps:
        if step.event not in TAKES and step.event != HEARTBEAT:
            continue
        at = evidence.clock.mono(step.change.statement_at)
        for begin, end in lost.get(step.new.owner or "", ()):
            if begin < at < end:
                found.violated(
                    f"message {step.change.id}: {step.event} for {step.new.owner}, which was lost by then"
                )


def _follows(one: Worker, other: Worker) -> bool:
    return one.owner == other.owner and one.born > other.born
