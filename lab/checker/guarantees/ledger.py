"""What fencepost says of its own attempts, where a queue keeps a ledger."""

from __future__ import annotations

from collections import defaultdict

from lab.checker.evidence import Evidence
from lab.checker.finding import Finding
from lab.checker.tables import Attempt
from lab.checker.transitions import CLAIM, CLOSE

ARRIVED = {"message": "delivered", "job": "completed"}
"""The results that only a publish, or a handler, of that very token may have had."""


CLOSED = frozenset({*ARRIVED.values(), "verified", "expanded", None})
"""What the ledger may say of an attempt whose row was closed; nothing, where its end was not written down."""


def ledger(evidence: Evidence) -> Finding:
    """Every attempt in the ledger is a claim that was made, and ended as its publisher or handler says."""
    found = Finding("ledger", "the ledger of attempts agrees with claims, publishes and handlers")
    claims = {("message", row_id, token) for row_id, token in evidence.claims}
    claims |= {("job", step.change.id, step.new.fence) for step in evidence.job_steps if step.event == CLAIM}
    arrived = {("message", each.id, each.token) for each in evidence.publishes if each.result == "delivered"}
    arrived |= {
        ("job", line["id"], line["fence"])
        for line in evidence.history.of("job_end")
        if line["result"] == "completed"
    }
    closed = {("message", step.change.id, step.old.token) for step in evidence.steps if step.event == CLOSE}
    closed |= {("job", step.change.id, step.old.fence) for step in evidence.job_steps if step.event == CLOSE}
    again = _handed_out_again(evidence)
    for attempt in evidence.tables.attempts:
        found.judged += 1
        found.seen[attempt.result or "no end"] += 1
        place = (attempt.kind, attempt.row_id, attempt.token)
        if place not in claims:
            found.violated(f"{_name(attempt)}: the ledger has it, and there was no such claim")
        elif attempt.result == ARRIVED[attempt.kind] and place not in arrived:
            found.violated(f"{_name(attempt)}: the ledger says {attempt.result}, and nobody else does")
        elif place in closed and attempt.result not in CLOSED and not (attempt.lease_lost and place in again):
            found.violated(f"{_name(attempt)}: the ledger says {attempt.result}, and it closed its row")
    return found


def _handed_out_again(evidence: Evidence) -> set[tuple[str, int, int]]:
    """Return the attempts whose row and token a worker had before, of a message that a lossy failover took back.

    It cannot tell them apart in the ledger, and the end of the first may stand as that of the second.
    """
    if not evidence.lossy:
        return set()
    messages: dict[tuple[int, int, str], set[str]] = defaultdict(set)
    for each in evidence.publishes:
        messages[each.id, each.token, each.owner].add(each.message_id)
    return {("message", row_id, token) for (row_id, token, _), ids in messages.items() if len(ids) > 1}


def _name(attempt: Attempt) -> str:
    return f"{attempt.kind} {attempt.row_id}, token {attempt.token}"
