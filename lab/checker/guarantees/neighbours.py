"""What bad messages may do to others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from lab.checker.evidence import NEVER, Evidence, Fault
from lab.checker.finding import Finding
from lab.checker.guarantees.takeover import SECOND
from lab.checker.intervals import Interval, longest
from lab.checker.transitions import RETRY, TAKES, Step
from lab.checker.workers import CONNECTION_FAULTS, SERVER_FAULTS, Worker, Workers, head_since, hits

FROM_OUTSIDE = frozenset({"sigkill", "sigterm", "sigstop"}) | CONNECTION_FAULTS | SERVER_FAULTS


def i13(evidence: Evidence) -> Finding:
    """One bad message or key delays others by at most one publish timeout and never uses up their attempts."""
    found = Finding(
        "I13", "bad messages delay others by a publish time-out at most, and cost nobody else's attempts"
    )
    workers = Workers(evidence)
    if workers.all:  # where nobody is known to work, nobody can be kept from it
        found.judged = sum(workers.is_bad(message_id) for message_id in evidence.ids_of)
    _no_neighbour_died(evidence, workers, found)
    for fault in evidence.faults:
        if fault.fault == "poison":
            found.seen["processes killed by poison"] += 1
            _killed_alone(evidence, fault, found)
    if evidence.clock.is_known:
        _nobody_waited(evidence, workers, found)
    return found


def _no_neighbour_died(evidence: Evidence, workers: Workers, found: Finding) -> None:
    """A message that is not bad did not run out of attempts of which most were never its own publishes."""
    for row_id, steps in evidence.steps_of.items():
        since = 0  # the token after an operator's last retry
        for step in steps:
            if step.event == RETRY:
                since = step.new.token
            if step.change.new is None or step.event == RETRY or step.new.outcome not in ("crashed", "exhausted"):
                continue
            if workers.is_bad(step.new.message_id):
                continue
            own = {publish.token for publish in evidence.publishes_of.get(row_id, ()) if publish.token > since}
            spent = sum(_was_hurt_from_outside(evidence, workers, claim) for claim in _claims(steps, since, own))
            if (len(own) + spent) * 2 < step.new.attempts:
                if _was_limit_lowered(evidence, steps, since, step.new.attempts):
                    found.seen["dead since an operator lowered the limit"] += 1
                    continue
                found.violated(
                    f"message {row_id} is dead ({step.new.outcome}) after {step.new.attempts} attempts, and was "
                    f"published {len(own)} times: others used them up"
                )


def _was_limit_lowered(evidence: Evidence, steps: Sequence[Step], since: int, attempts: int) -> bool:
    """Whether one of its claims could reckon with more attempts than it had in the end."""
    return any(
        max(evidence.limits_at(step.new.queue, step.change.statement_at)) > attempts
        for step in steps
        if step.event in TAKES and step.new.token > since
    )


def _claims(steps: Sequence[Step], since: int, own: Collection[int]) -> Iterator[Step]:
    """Yield the claims after a token that led to no publish."""
    for step in steps:
        if step.event in TAKES and step.new.token > since and step.new.token not in own:
            yield step


def _was_hurt_from_outside(evidence: Evidence, workers: Workers, claim: Step) -> bool:
    """Whether something was done to the holder of a claim while it held it, by us and not by a bad message."""
    if not evidence.clock.is_known or claim.new.lease_until is None:
        return False
    since, until = evidence.clock.mono(claim.change.statement_at), evidence.clock.mono(claim.new.lease_until)
    holder = next((each for each in workers.all if each.owner == claim.new.owner and _lives(each, since)), None)
    return holder is not None and any(
        fault.fault in FROM_OUTSIDE and hits(fault, holder.process)
        for fault in evidence.faults_during(since, until)
    )


def _lives(worker: Worker, at: int) -> bool:
    return worker.born <= at <= worker.gone


def _killed_alone(evidence: Evidence, fault: Fault, found: Finding) -> None:
    """A message that was taken over twice or more is published with nothing else in flight."""
    inside = [each for each in evidence.publishes_by.get(fault.process, ()) if each.start <= fault.begin]
    bad = next((each for each in reversed(inside) if each.message_id == fault.message_id), None)
    claim = None if bad is None else evidence.claims.get((bad.id, bad.token))
    if bad is None or claim is None or claim.new.reclaims < 2:
        return
    found.seen["of them taken over before"] += 1
    for other in inside:
        is_open = (NEVER if other.end is None else other.end) > fault.begin
        if is_open and other.id != bad.id:
            found.violated(f"{bad} killed its process, for the third time or more, and took {other} with it")


def _nobody_waited(evidence: Evidence, workers: Workers, found: Finding) -> None:
    first = head_since(evidence)
    for row_id, steps in evidence.steps_of.items():
        for place, step in enumerate(steps):
            if step.change.new is None or step.new.status != "pending" or step.new.reclaims:
                continue
            if not workers.is_bad(step.new.message_id):
                after = steps[place + 1] if place + 1 < len(steps) else None
                _waited(evidence, workers, step, _waiting(evidence, step, after, first.get(row_id, 0)), found)


def _waiting(evidence: Evidence, step: Step, after: Step | None, first: int) -> Interval:
    clock, history = evidence.clock, evidence.history
    until = clock.mono(after.change.at) if after is not None else history.phase("drained") or history.last_at
    due = clock.mono(max(step.change.at, step.new.available_at))
    return max(due, evidence.seen_open(step.change), first), until


def _waited(evidence: Evidence, workers: Workers, step: Step, waiting: Interval, found: Finding) -> None:
    limit = round((evidence.poll + 1 + evidence.publish_timeout + evidence.tolerance) * SECOND)
    if waiting[1] - waiting[0] <= limit:
        return
    for worker, times in workers.chances(step.new.queue, waiting, beside_bad=True):
        # Several bad ones may come one after another.
        bad = sum(
            each.start < waiting[1] and (each.end or NEVER) > waiting[0]
            for each in evidence.publishes_by.get(worker.process, ())
            if workers.is_bad(each.message_id)
        )
        allowed = limit + round(max(0, bad - 1) * evidence.publish_timeout * SECOND)
        if longest(times) > allowed:
            found.violated(
                f"message {step.change.id} was due for {longest(times) / SECOND:.3f} s while {worker.process} had "
                f"nothing else to do but {bad} bad messages"
            )
            return
