"""The fence, the tokens, the counts of attempts, and that every change is one of the specification's table."""

from __future__ import annotations

from collections import defaultdict

from lab.checker.evidence import NEVER, Evidence, Publish
from lab.checker.finding import Finding
from lab.checker.guarantees.delivery import delivered_under
from lab.checker.transitions import (
    BURY,
    CLAIM,
    CLOSE,
    DELETE,
    GIVE_BACK,
    OVER_LIMIT,
    REAP,
    RECLAIM,
    RETRY,
    SKIP,
    TAKES,
    Step,
)


def table(evidence: Evidence) -> Finding:
    """Every committed change is one of the state table's, or breaks the guarantee that names it."""
    found = Finding("table", "every change of a row is one of the state table's")
    found.judged = len(evidence.steps)
    for step in evidence.steps:
        found.seen[step.event] += 1
    for step, text in evidence.faults_of_steps("table"):
        found.violated(f"message {step.change.id}, change {step.change.n}: {text}")
    return found


MARGIN = 50_000_000
"""Nanoseconds within which the two clocks may be mistaken."""

A_MOMENT = 2_000_000_000
"""Nanoseconds within which a worker writes the result of a publish that has ended."""


def i2(evidence: Evidence) -> Finding:
    """A stale token changes nothing (xmin of the row unchanged) and reports a lost lease."""
    found = Finding("I2", "a stale token changes nothing and is told so")
    for line in evidence.history.of("stale"):
        found.judged += 1
        found.seen[line["operation"]] += 1
        name = f"message {line['id']}: {line['operation']} with stale token {line['token']}"
        if line["before"] != line["after"]:
            found.violated(f"{name} changed the row from {line['before']} to {line['after']}")
        if line["reported"] != "lost":
            found.violated(f"{name} was told {line['reported']!r}")
    for step, text in evidence.faults_of_steps("I2"):
        found.violated(f"message {step.change.id}, change {step.change.n}: {text}")
    for step in evidence.steps:
        if step.event == CLOSE and step.new.outcome == "delivered":
            _closed_by_its_holder(evidence, step, found)
        if evidence.clock.is_known and step.event in (CLOSE, BURY, GIVE_BACK):
            _written_by_its_holder(evidence, step, found)
        if evidence.clock.is_known and step.event in (RECLAIM, REAP):
            late = _ended_after(evidence, step)
            found.judged += late
            found.seen["results that came after a takeover"] += late
    return found


def _ended_after(evidence: Evidence, step: Step) -> int:
    """Return how many publishes under older tokens ended after a takeover, so that their results were stale."""
    at = evidence.clock.mono(step.change.at)
    older = [each for each in evidence.publishes_of.get(step.change.id, ()) if each.token == step.old.token]
    return sum(each.end is not None and each.end > at + MARGIN for each in older)


def _written_by_its_holder(evidence: Evidence, step: Step, found: Finding) -> None:
    """A row that was taken over and is finalized in mid-publish, just as an older publish ended, is its work."""
    at, token = evidence.clock.mono(step.change.at), step.new.token
    publishes = evidence.publishes_of.get(step.change.id, ())
    longest = evidence.publish_timeout * 0.8e9  # past its time-out, a publish that cannot be cancelled may go on
    running = [
        each for each in publishes if each.token == token and each.start + MARGIN < at < each.start + longest
    ]
    claim = evidence.claims.get((step.change.id, token))
    if claim is None or claim.event != RECLAIM:
        return
    if not any(each.end is not None and each.end > at + MARGIN for each in running):
        return
    for older in publishes:
        if older.token < token and older.end is not None and at - A_MOMENT < older.end < at + MARGIN:
            found.violated(
                f"{older} had lost its lease, and the row was written while {running[0].process} published"
            )
            return


def _closed_by_its_holder(evidence: Evidence, step: Step, found: Finding) -> None:
    """Where not the publish of the row's token was delivered but an older one, its stale write closed the row."""
    token = step.new.token
    if step.new.recovery == "verify" or delivered_under(evidence, step, token):
        return
    for publish in evidence.publishes_of.get(step.change.id, ()):
        if publish.token < token and publish.result == "delivered":
            found.violated(
                f"{publish} had lost its lease, and the row was closed under token {token} all the same"
            )
            return


def i7(evidence: Evidence) -> Finding:
    """0 ≤ attempts ≤ the limit in force at its claims, always."""
    found = Finding("I7", "attempts stay between 0 and the limit in force")
    for step in evidence.steps:
        new = step.change.new
        if new is not None and new.attempts < 0:
            found.violated(f"message {step.change.id}, change {step.change.n}: {new.attempts} attempts")
        if step.event in TAKES or step.event == OVER_LIMIT:
            _within_limit(evidence, step, found)
        if step.event in (BURY, REAP):
            _spent(evidence, step, found)
    for step, text in evidence.faults_of_steps("I7"):
        found.violated(f"message {step.change.id}, change {step.change.n}: {text}")
    return found


def _within_limit(evidence: Evidence, step: Step, found: Finding) -> None:
    found.judged += 1
    limits = evidence.limits_at(step.new.queue, step.change.statement_at)
    if step.event in TAKES and step.new.attempts > max(limits):
        found.violated(f"message {step.change.id}: attempt {step.new.attempts} of {max(limits)}")
    if step.event == OVER_LIMIT and step.old.attempts < min(limits):
        found.violated(f"message {step.change.id}: exhausted after {step.old.attempts} of {min(limits)} attempts")


def _spent(evidence: Evidence, step: Step, found: Finding) -> None:
    """Who dies of its attempts had as many as some limit that was in force since it was claimed."""
    verify_is_over = step.event == REAP and step.new.recovery == "verify"
    if step.new.outcome not in ("exhausted", "crashed") and not verify_is_over:
        return
    at = step.change.statement_at
    claim = evidence.claims.get((step.change.id, step.old.token))
    limits = evidence.limits_at(step.new.queue, at, at if claim is None else claim.change.statement_at)
    if step.old.attempts < min(limits):
        spent = f"{step.old.attempts} of {min(limits)} attempts"
        found.violated(f"message {step.change.id}: dead as {step.new.outcome} after {spent}")


def i9(evidence: Evidence) -> Finding:
    """Tokens strictly increase; never two live leases on a row."""
    found = Finding("I9", "tokens strictly increase, and a row has one live lease at most")
    newest: dict[int, int] = defaultdict(int)
    for step in evidence.steps:
        if step.event in TAKES:
            found.judged += 1
            found.seen["takeovers" if step.event == RECLAIM else "claims"] += 1
            if step.event == CLAIM and step.new.token <= newest[step.change.id]:
                found.violated(f"message {step.change.id}: token {step.new.token} was handed out twice")
        if step.change.new is not None:
            newest[step.change.id] = max(newest[step.change.id], step.change.new.token)
    for step, text in evidence.faults_of_steps("I9"):
        found.violated(f"message {step.change.id}, change {step.change.n}: {text}")
    _one_publish_a_token(evidence, found)
    return found


def _one_publish_a_token(evidence: Evidence, found: Finding) -> None:
    """Who publishes holds a claim under that token, and nobody else publishes under it."""
    seen: dict[tuple[str, int, int], Publish] = {}
    for publish in evidence.publishes:
        place = (publish.message_id, publish.id, publish.token)
        other = seen.setdefault(place, publish)
        claim = evidence.claims.get((publish.id, publish.token))
        if evidence.claim_was_lossy(publish.start):
            continue  # its claim may be lost, and its token handed out again
        if other is not publish and not evidence.claim_was_lossy(other.start):
            found.violated(f"{publish}: {other.process} published it under the same token")
        if publish.message_id not in evidence.ids_of:
            continue  # published without having committed: I6's
        if claim is None:
            found.violated(f"{publish}: nobody was given that token")
        elif claim.new.owner != publish.owner:
            found.violated(f"{publish}: the token was given to {claim.new.owner}, not to {publish.owner}")
        else:
            _as_it_was_claimed(evidence, publish, claim, found)


def _as_it_was_claimed(evidence: Evidence, publish: Publish, claim: Step, found: Finding) -> None:
    """Who publishes does so after its claim and while it lives, and is told of the row what its claim made it."""
    if publish.queue != claim.new.queue:
        found.violated(f"{publish}: it is for {claim.new.queue}, and was published as one for {publish.queue}")
    if publish.attempt != claim.new.attempts:
        found.violated(f"{publish}: attempt {claim.new.attempts} was published as attempt {publish.attempt}")
    if evidence.gone.get(publish.process, NEVER) < publish.start:
        found.violated(f"{publish}: that process had ended by then")
    if evidence.clock.is_known:
        early = evidence.clock.mono(claim.change.statement_at) - publish.start
        if early > evidence.slack:
            found.violated(f"{publish}: it was published {early / 1e9:.3f} s before it was claimed")


def i12(evidence: Evidence) -> Finding:
    """Terminal states change only by an audited operator action."""
    found = Finding("I12", "done and dead change only by an audited operator action")
    for step in evidence.steps:
        if step.event == DELETE or step.change.new is None:
            continue
        found.judged += step.new.status in ("done", "dead")
        if step.event in (RETRY, SKIP):
            found.seen[step.event] += 1
            action = "retry" if step.event == RETRY else "skip"
            if (step.change.id, step.change.statement_at, action) not in evidence.audits:
                found.violated(f"message {step.change.id}: {step.event} that stands in no audit")
    for step, text in evidence.faults_of_steps("I12"):
        found.violated(f"message {step.change.id}, change {step.change.n}: {text}")
    return found
