"""What clean-up takes."""

from __future__ import annotations

from collections import Counter

from lab.checker.evidence import Evidence
from lab.checker.finding import Finding
from lab.checker.transitions import DELETE


def i16(evidence: Evidence) -> Finding:
    """Clean-up removes only `done` rows past their retention, in small bounded steps, beside full traffic."""
    found = Finding("I16", "clean-up takes done rows past their retention only, in small steps")
    retention = evidence.history.campaign.get("retention")
    largest = evidence.history.campaign.get("purge_limit", 1000)
    steps: Counter[tuple[int, int]] = Counter()
    for step in evidence.steps:
        if step.event != DELETE:
            continue
        found.judged += 1
        old = step.change.old
        if old is None:
            found.violated(f"change {step.change.n}: the outbox was emptied by TRUNCATE")
            continue
        steps[step.change.txid, step.change.statement_at] += 1
        if old.status != "done" or old.done_at is None:
            found.violated(f"message {step.change.id} was deleted, and it was {old.status}")
        elif retention is None:
            found.violated(f"message {step.change.id} was deleted in a run without a retention")
        elif step.change.statement_at - old.done_at < retention * 1e6:
            age = (step.change.statement_at - old.done_at) / 1e6
            found.violated(
                f"message {step.change.id} was deleted {age:.3f} s after it was done, not {retention:g} s"
            )
    for (txid, _), count in steps.items():
        if count > largest:
            found.violated(f"transaction {txid} deleted {count} messages in one step, not {largest} at most")
    found.seen["steps"] = len(steps)
    found.seen["largest step"] = max(steps.values(), default=0)
    return found
