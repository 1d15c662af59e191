"""How often a message is published."""

from __future__ import annotations

from collections import Counter

from lab.checker.evidence import Evidence
from lab.checker.finding import Finding
from lab.checker.transitions import GIVE_BACK, RETRY


def i3(evidence: Evidence) -> Finding:
    """Publish starts ≤ max attempts × (1 + operator retries) + defers + refunded releases."""
    found = Finding("I3", "publishes stay within attempts, operator retries and what was given back")
    retries: Counter[int] = Counter()
    refunds: Counter[int] = Counter()
    for step in evidence.steps:
        retries[step.change.id] += step.event == RETRY
        refunds[step.change.id] += step.event == GIVE_BACK and step.new.attempts < step.old.attempts
    for row_id, publishes in evidence.publishes_of.items():
        if evidence.claim_was_lossy(publishes[0].start):
            found.seen["left out, before a lossy failover"] += 1
            continue
        found.judged += 1
        found.seen["publishes"] += len(publishes)
        limit = max(evidence.limits_at(publishes[0].queue))
        allowed = limit * (1 + retries[row_id]) + refunds[row_id]
        if len(publishes) > allowed:
            found.violated(
                f"message {row_id} was published {len(publishes)} times: {limit} attempts, {retries[row_id]} "
                f"operator retries and {refunds[row_id]} refunds allow {allowed}"
            )
    return found
