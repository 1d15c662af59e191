"""The rules of the job queue, by the same evidence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from lab.checker.evidence import Evidence
from lab.checker.finding import Finding
from lab.checker.history import Line
from lab.checker.job_transitions import BY_HAND, JobStep
from lab.checker.transitions import CLAIM, CLOSE, DELETE, GIVE_BACK, OVER_LIMIT, RECLAIM, RETRY


def _faults(steps: Sequence[JobStep], name: str, found: Finding) -> None:
    for step in steps:
        for rule, text in step.faults:
            if rule == name:
                found.violated(f"job {step.change.id}, change {step.change.n}: {text}")


def j1(evidence: Evidence) -> Finding:
    """Every committed job is there, done or failed or waiting; what was rolled back never runs."""
    found = Finding("J1", "committed jobs are kept, and what was rolled back never runs")
    history, business = evidence.history, evidence.tables.job_business
    steps = evidence.job_steps
    there = {step.new.job_id for step in steps if step.change.op == "INSERT"}
    found.judged = len(business)
    for job_id in sorted(business - there):
        found.violated(f"job {job_id} committed and was never in the queue")
    undone = {job_id for line in history.of("job_rollback") for job_id in line["job_ids"]}
    undone |= {line["job_id"] for line in history.of("job_enqueue") if not evidence.lossy} - business
    for line in history.of("job_commit"):
        for job_id in set(line["job_ids"]) - business:
            if not evidence.was_lossy_after(line.at):
                found.violated(f"job {job_id}: its commit was acknowledged, and it is gone")
    for job_id in sorted(undone & there):
        found.violated(f"job {job_id} was rolled back, and stands in the queue")
    for job_id in sorted({line["job_id"] for line in history.of("job_start")} & undone):
        found.violated(f"job {job_id} was rolled back, and ran")
    last = {step.change.id: step for step in steps}
    for row_id in sorted(evidence.tables.job_rows.keys() - last.keys()):
        found.violated(f"job {row_id} stands in the queue, and no change tells how it came there")
    _nothing_before_its_enqueue(evidence, found)
    for row_id, step in last.items():
        if step.event != DELETE and evidence.tables.job_rows.get(row_id) != step.new:
            found.violated(f"job {row_id} is not in the queue as its last change left it: {step.new.status}")
    return found


def _nothing_before_its_enqueue(evidence: Evidence, found: Finding) -> None:
    enqueued = {line["job_id"]: line.at for line in reversed(evidence.history.of("job_enqueue"))}
    for line in evidence.history.of("job_start"):
        if line.at < enqueued.get(line["job_id"], line.at):
            found.violated(f"job {line['job_id']} was started before it was enqueued")


def j2(evidence: Evidence) -> Finding:
    """Every change of a job is one of the state table's."""
    found = Finding("J2", "every change of a job is one of the state table's")
    steps = evidence.job_steps
    found.judged = len(steps)
    found.seen = Counter(step.event for step in steps)
    _faults(steps, "J2", found)
    return found


def j3(evidence: Evidence) -> Finding:
    """0 ≤ attempts ≤ max_attempts, and starts stay within attempts, operator retries and refunds."""
    found = Finding("J3", "attempts of jobs stay within their limit")
    steps = evidence.job_steps
    _faults(steps, "J3", found)
    allowed: Counter[int] = Counter()
    for step in steps:
        new = step.change.new
        if new is not None and not 0 <= new.attempts <= new.max_attempts:
            found.violated(f"job {step.change.id}: attempt {new.attempts} of {new.max_attempts}")
        if step.event == OVER_LIMIT and step.old.attempts < step.old.max_attempts:
            found.violated(f"job {step.change.id}: exhausted after {step.old.attempts} of {step.old.max_attempts}")
        found.judged += step.event == CLAIM
        allowed[step.change.id] += step.event == GIVE_BACK and step.new.attempts < step.old.attempts
        if new is not None and (step.change.op == "INSERT" or step.event == RETRY):
            allowed[step.change.id] += new.max_attempts
    starts = Counter(line["id"] for line in evidence.history.of("job_start"))
    for row_id, count in starts.items():
        if count > allowed[row_id] and not evidence.lossy:
            found.violated(f"job {row_id} was started {count} times, and {allowed[row_id]} are allowed")
    return found


def j4(evidence: Evidence) -> Finding:
    """Fences rise, every claim has a token of its own, and a job has one live lease at most."""
    found = Finding("J4", "fences of jobs rise, tokens are new, and a job has one live lease at most")
    steps = evidence.job_steps
    _faults(steps, "J4", found)
    tokens: set[tuple[int, str | None]] = set()
    owners: dict[tuple[int, int], str | None] = {}
    for step in steps:
        if step.event == CLAIM:
            found.judged += 1
            if (step.change.id, step.new.token) in tokens:
                found.violated(f"job {step.change.id}: token {step.new.token} was handed out twice")
            tokens.add((step.change.id, step.new.token))
            owners[step.change.id, step.new.fence] = step.new.owner
        found.seen["taken back"] += step.event == RECLAIM
    seen: dict[tuple[int, int], Line] = {}
    for line in evidence.history.of("job_start"):
        place = (line["id"], line["fence"])
        # (A failover that lost commits hands ids out again.)
        if (first := seen.setdefault(place, line)) is not line and not evidence.claim_was_lossy(first.at):
            found.violated(f"job {line['id']} was started twice under fence {line['fence']}")
        if evidence.claim_was_lossy(line.at):
            continue  # it may have taken back whose claim it was
        if place not in owners:
            found.violated(f"job {line['id']} was started under fence {line['fence']}, which no claim gave")
        elif owners[place] != line["owner"]:
            found.violated(f"job {line['id']}: {line['owner']} ran it under the fence of {owners[place]}")
    return found


def j5(evidence: Evidence) -> Finding:
    """No more jobs of a lane are leased at once than its limits allow."""
    found = Finding("J5", "no more jobs of a lane run at once than its limit")
    limits = evidence.history.campaign.get("lanes") or {}
    running: Counter[tuple[str, str | None]] = Counter()
    for step in evidence.job_steps:
        state = step.change.new or step.change.old
        if state is None or state.lane is None or state.task not in limits:
            continue
        was = step.change.old is not None and step.old.status == "processing"
        now = step.change.new is not None and step.new.status == "processing"
        lane, task = (state.task, state.lane), (state.task, None)
        running[lane] += now - was
        running[task] += now - was
        if not now or was:
            continue
        found.judged += 1
        for place, name in ((lane, "per_key"), (task, "total")):
            limit = limits[state.task].get(name)
            if limit is not None and running[place] > limit:
                found.violated(
                    f"job {step.change.id}: {running[place]} of {state.task} {state.lane!r} run, not {limit}"
                )
    return found


def j6(evidence: Evidence) -> Finding:
    """A job whose recovery is manual never starts twice by itself once its outcome is unknown."""
    found = Finding("J6", "manual jobs never run again by themselves")
    steps = evidence.job_steps
    _faults(steps, "J6", found)
    manual = {step.change.id for step in steps if step.change.new is not None and step.new.recovery == "manual"}
    # Once its end is known (it failed, was deferred, or was cut off with a known end), it may be tried again.
    put_back: Counter[int] = Counter(step.change.id for step in steps if step.event in (RETRY, GIVE_BACK))
    starts = Counter(line["id"] for line in evidence.history.of("job_start") if line["id"] in manual)
    found.judged = len(starts)
    for row_id, count in starts.items():
        if count > 1 + put_back[row_id] and not evidence.lossy:
            found.violated(f"job {row_id} was started {count} times, and put back {put_back[row_id]} times")
    return found


def j7(evidence: Evidence) -> Finding:
    """Finished jobs change, and open ones are ended from outside, only by an audited operator action."""
    found = Finding("J7", "finished jobs change only by an audited operator action")
    steps = evidence.job_steps
    _faults(steps, "J7", found)
    audits = {(audit.row_id, audit.at) for audit in evidence.tables.job_audits}
    for step in steps:
        found.judged += step.change.new is not None and step.new.status in ("done", "failed")
        if step.event in (RETRY, BY_HAND):
            found.seen[step.event] += 1
            if (step.change.id, step.change.statement_at) not in audits:
                found.violated(f"job {step.change.id}: {step.event} that stands in no audit")
    return found


def j8(evidence: Evidence) -> Finding:
    """A job is done where its handler returned under that very fence."""
    found = Finding("J8", "a job is done where its handler returned under that fence")
    ends: dict[tuple[int, int], list[str]] = defaultdict(list)
    for line in evidence.history.of("job_end"):
        ends[line["id"], line["fence"]].append(line["result"])
    for step in evidence.job_steps:
        if step.event == CLOSE and step.new.recovery != "verify":
            found.judged += 1
            if "completed" not in ends[step.change.id, step.new.fence]:
                found.violated(
                    f"job {step.change.id} is done under fence {step.new.fence}, and no handler returned under it"
                )
    return found


JOB_RULES: Sequence[Callable[[Evidence], Finding]] = (j1, j2, j3, j4, j5, j6, j7, j8)
