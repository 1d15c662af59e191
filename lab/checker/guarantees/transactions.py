"""That nothing is locked and no transaction is open while a message is published."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from lab.checker.evidence import WRAP, Evidence, Publish
from lab.checker.finding import Finding
from lab.checker.history import Line
from lab.checker.transitions import HEARTBEAT

LONGEST_IDLE = 1.0
"""Seconds that a worker's transaction may stand idle on a busy machine."""

FEWEST_LOCKED = 3
"""Samples within one publish that must all find its row locked: a heartbeat locks it for a moment."""


def i14(evidence: Evidence) -> Finding:
    """No transaction and no row lock is open during a publish."""
    found = Finding("I14", "no transaction and no row lock is open during a publish")
    written = _transactions_of(evidence)
    locked: dict[Publish, list[bool]] = defaultdict(list)
    for sample, publishing in _samples(evidence):
        found.judged += bool(publishing)
        found.seen["samples"] += 1
        found.seen["publishes looked at"] += len(publishing)
        open_ids = {row["xid"] for row in sample["open"] if row.get("xid") is not None}
        rows_locked = set(sample.get("locked") or ())
        for publish in publishing:
            both = written.get((publish.id, publish.token), set()) & open_ids
            if both and not evidence.claim_was_lossy(publish.start):
                found.violated(
                    f"{publish}: transaction {min(both)} that wrote its row was open while it was published"
                )
            locked[publish].append(publish.id in rows_locked)
        for row in sample["open"]:
            _idle_for_long(evidence, sample, row, found)
    for publish, times in locked.items():
        if len(times) >= FEWEST_LOCKED and all(times) and not _another_was_frozen(evidence, publish):
            found.violated(f"{publish}: its row was locked all along ({len(times)} samples)")
    return found


FREEZES = frozenset({"sigstop", "black_hole", "starved"})
"""What stops a worker, or what it sends, in the midst of a transaction."""


def _another_was_frozen(evidence: Evidence, publish: Publish) -> bool:
    """Whether a worker beside the publisher was frozen, or cut off, meanwhile.

    In the midst of a claim it may hold the lock of a row that it did not get, until its transaction is ended.
    """
    workers = {line["of"] for line in evidence.history.of("start") if line["role"] == "worker"} - {publish.process}
    during = evidence.faults_during(publish.start, _end_of(evidence, publish))
    return any(fault.fault in FREEZES and fault.target in workers for fault in during)


def _transactions_of(evidence: Evidence) -> dict[tuple[int, int], set[int]]:
    """Return the transactions that claimed and that finalized each (row, token), as samples show them."""
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for step in evidence.steps:
        # A heartbeat writes the row while it is published: that is its work.
        if step.change.new is not None and step.event != HEARTBEAT:
            found[step.change.id, step.new.token].add(step.change.txid % WRAP)
    return found


def _samples(evidence: Evidence) -> Iterator[tuple[Line, list[Publish]]]:
    """Yield each sample with the publishes that were under way from before its question until after its answer."""
    waiting = iter(evidence.publishes)
    coming = next(waiting, None)
    under_way: list[tuple[int, int, Publish]] = []
    numbers = itertools.count()  # heaps compare no publishes
    for sample in sorted(evidence.history.of("sample"), key=lambda line: int(line["asked"])):
        while coming is not None and coming.start < sample["asked"]:
            heapq.heappush(under_way, (_end_of(evidence, coming), next(numbers), coming))
            coming = next(waiting, None)
        while under_way and under_way[0][0] < sample["asked"]:
            heapq.heappop(under_way)
        yield sample, [publish for end, _, publish in under_way if end > sample.at]


def _end_of(evidence: Evidence, publish: Publish) -> int:
    """Return its end; one that nobody saw end is looked at for no longer than a publish takes."""
    longest = publish.start + round(evidence.publish_timeout * 1e9)
    return longest if publish.end is None else publish.end


def _idle_for_long(evidence: Evidence, sample: Line, row: dict[str, Any], found: Finding) -> None:
    """A worker's transaction that stands idle is waiting for something outside."""
    if not str(row["state"]).startswith("idle in transaction") or not _is_a_workers(evidence, row):
        return
    seconds = float(row["in_state_for"])
    if seconds <= LONGEST_IDLE:
        return
    since = sample.at - round((seconds + evidence.lease) * 1e9)
    disturbed = any(
        fault.begin < sample.at and fault.end > since and fault.target != "receiver" for fault in evidence.faults
    )
    if not disturbed or seconds > evidence.lease + 1:
        found.violated(f"a transaction of {row['application']} stood idle for {seconds:.3f} s")


def _is_a_workers(evidence: Evidence, row: dict[str, Any]) -> bool:
    name = str(row["application"])
    owners = {line.get("owner") for line in evidence.history.of("start") if line["role"] == "worker"}
    return name.startswith("fencepost") or name in owners
