"""What committed arrives, what did not never does, and every byte is the producer's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lab.checker.evidence import Evidence, Publish
from lab.checker.finding import Finding
from lab.checker.history import Line
from lab.checker.intervals import longest
from lab.checker.tables import Change, State
from lab.checker.transitions import BURY, INSERT, Step
from lab.checker.workers import Workers, head_since


def i1(evidence: Evidence) -> Finding:
    """Every surviving committed message is delivered, or visibly pending, deferred, blocked or dead."""
    found = Finding("I1", "committed messages are delivered, or visibly waiting")
    for message_id in evidence.tables.business:
        found.judged += 1
        if message_id not in evidence.ids_of:
            found.violated(f"message {message_id} committed and was never in the outbox")
    _acknowledged_commits(evidence, found)
    for change in evidence.last.values():
        _fate(evidence, change, found)
    for row_id in sorted(evidence.tables.rows.keys() - evidence.last.keys()):
        found.violated(f"message {row_id} stands in the outbox, and no change tells how it came there")
    _closed_by_its_own_publish(evidence, found)
    _acknowledged_in_time(evidence, found)
    _died_of_its_own_publish(evidence, found)
    if evidence.clock.is_known and evidence.history.phase("drained") is not None:
        _left_lying(evidence, found)
    return found


def _acknowledged_commits(evidence: Evidence, found: Finding) -> None:
    """A producer that was told of its commit finds it again, but where a failover lost commits."""
    for line in evidence.history.of("commit"):
        lost = [each for each in line["message_ids"] if each not in evidence.tables.business]
        if lost and evidence.was_lossy_after(line.at):
            found.seen["lost by a lossy failover"] += len(lost)
        else:
            for message_id in lost:
                found.violated(f"message {message_id}: its commit was acknowledged, and it is gone")


def _fate(evidence: Evidence, change: Change[State], found: Finding) -> None:
    """Judge where a row stands at the end."""
    if change.new is None:
        found.seen["purged"] += 1
        if change.id in evidence.tables.rows:
            found.violated(f"message {change.id} was deleted, and stands in the outbox")
        if change.old is not None:  # of a TRUNCATE nothing is known
            _arrived_in_time(evidence, change.id, change.old, found)
        return  # what may be deleted is I16's
    state, row_id = change.new, change.id
    if evidence.tables.rows.get(row_id) != state:
        found.violated(f"message {row_id} is not in the outbox as its last change left it: {state.status}")
        return
    found.seen[state.outcome if state.status == "done" and state.outcome else state.status] += 1
    _arrived_in_time(evidence, row_id, state, found)
    if state.status == "blocked" and not _stands_behind(evidence, row_id, state):
        found.violated(f"message {row_id} sleeps for ever: it is blocked, and nothing stands before it in its key")


def _arrived_in_time(evidence: Evidence, row_id: int, state: State, found: Finding) -> None:
    """What is done as delivered had arrived where it was to go by then, and was acknowledged.

    (Of one that is to be verified it is enough that it arrived: its publisher asked the receiver for that.)
    """
    if state.outcome != "delivered":
        return
    arrived = evidence.arrivals(state.message_id, state.queue, but_withheld=state.recovery != "verify")
    name = f"message {row_id} ({state.message_id}) is done as delivered"
    if not arrived:
        found.violated(f"{name}, and the receiver never had it")
    elif evidence.clock.is_known and state.done_at is not None:
        late = arrived[0].at - evidence.clock.mono(state.done_at)
        if late > evidence.slack:
            found.violated(f"{name}, and the receiver had it {late / 1e9:.3f} s later")


def _stands_behind(evidence: Evidence, row_id: int, state: State) -> bool:
    if state.key is None:
        return False
    rows = evidence.tables.rows
    return any(
        each < row_id and each in rows and rows[each].is_open for each in evidence.keys[state.queue, state.key]
    )


def _left_lying(evidence: Evidence, found: Finding) -> None:
    """Nothing lies there at the end that was due, or whose lease was over, while a worker had nothing to do."""
    workers, first = Workers(evidence), head_since(evidence)
    drained = evidence.history.phase("drained") or 0
    limit = round((evidence.lease + evidence.poll + 1 + evidence.tolerance) * 1e9)
    for row_id, state in evidence.tables.rows.items():
        since = state.lease_until if state.status == "processing" else state.available_at
        if state.status not in ("pending", "processing") or since is None:
            continue
        waiting = (max(evidence.clock.mono(since), first.get(row_id, 0)), drained)
        for worker, times in workers.chances(state.queue, waiting):
            if longest(times) > limit:
                found.violated(
                    f"message {row_id} was left lying: it is {state.status}, and {worker.process} was free"
                )
                break


def _closed_by_its_own_publish(evidence: Evidence, found: Finding) -> None:
    """A row is done as delivered where the publish of that very token was told that it is.

    (Where an older token's publish was, it is that one's stale write: I2's.)
    """
    for step in evidence.steps:
        if (step.event, step.change.new and step.change.new.outcome) != ("close", "delivered"):
            continue
        if step.new.recovery == "verify" or delivered_under(evidence, step, step.new.token):
            continue
        if not any(publish.result == "delivered" for publish in evidence.publishes_of.get(step.change.id, ())):
            found.violated(f"message {step.change.id} was closed as delivered, and no publish of it was")


def _acknowledged_in_time(evidence: Evidence, found: Finding) -> None:
    """A publish was delivered where the receiver had the message by its end.

    By which attempt is not asked: a receiver that knows its message again acknowledges a later one without a line.
    """
    for publish in evidence.publishes:
        if publish.result != "delivered" or publish.end is None:
            continue
        arrived = evidence.arrivals(publish.message_id, publish.queue, but_withheld=True)
        if not arrived or arrived[0].at > publish.end + evidence.slack:
            found.violated(f"{publish} was told as delivered, and the receiver had not acknowledged it by then")


def _died_of_its_own_publish(evidence: Evidence, found: Finding) -> None:
    """Its holder does not bury what it was told is delivered, and calls permanent what its publish called so."""
    for step in evidence.steps:
        if step.event != BURY:
            continue
        publishes = list(_publishes_under_its_claim(evidence, step))
        results = [publish.result for publish in publishes]
        if step.new.outcome == "permanent" and "permanent" not in results:
            found.violated(f"message {step.change.id} is dead as permanent, and its publish ended as {results}")
        elif any(_was_surely_delivered(evidence, publish) for publish in publishes):
            found.violated(f"message {step.change.id} is dead ({step.new.outcome}), and its publish was delivered")


def _was_surely_delivered(evidence: Evidence, publish: Publish) -> bool:
    """Whether its worker knew that it is: it may have given up one that took long, and a thread ends all the same.

    Of one before a lossy failover the claim may be lost, and its token handed out again.
    """
    if publish.result != "delivered" or publish.end is None or evidence.claim_was_lossy(publish.start):
        return False
    return publish.end - publish.start < evidence.publish_timeout * 0.8e9


def _publishes_under_its_claim(evidence: Evidence, step: Step) -> Iterator[Publish]:
    """Yield the publishes of a row's holder that were over when it wrote this.

    (After a failover that lost commits another one may have had the same token before.)
    """
    claim = evidence.claims.get((step.change.id, step.old.token))
    for publish in evidence.publishes_of.get(step.change.id, ()):
        if publish.token != step.old.token or publish.message_id != step.old.message_id:
            continue
        if not evidence.clock.is_known or claim is None:
            yield publish
            continue
        claimed, at = (evidence.clock.mono(each.change.statement_at) for each in (claim, step))
        is_its_own = publish.owner == step.old.owner and publish.start > claimed - evidence.slack
        if is_its_own and publish.end is not None and publish.end < at + evidence.slack:
            yield publish


def delivered_under(evidence: Evidence, step: Step, token: int) -> bool:
    """Whether the publish of a row under a token ended as delivered."""
    return any(
        publish.token == token and publish.result == "delivered"
        for publish in evidence.publishes_of.get(step.change.id, ())
    )


def i6(evidence: Evidence) -> Finding:
    """Nothing from a rolled-back transaction or savepoint is ever published."""
    found = Finding("I6", "nothing that was rolled back is published")
    history, business = evidence.history, evidence.tables.business
    undone = {message_id for message_id in evidence.enqueued if message_id not in business}
    # What a lossy failover took was committed: who had it published it rightly.
    if evidence.lossy:
        undone &= evidence.rolled_back
    undone |= evidence.rolled_back | {line["message_id"] for line in history.of("refused")}
    found.judged = len(undone)
    found.seen["rolled back"] = len(evidence.rolled_back)
    for message_id in sorted(undone & evidence.ids_of.keys()):
        found.violated(f"message {message_id} was rolled back, and stands in the outbox")
    published = {publish.message_id: publish.start for publish in reversed(evidence.publishes)}
    arrived = {line["message_id"]: line.at for line in reversed(evidence.accepted)}
    for message_id, at in sorted((arrived | published).items()):
        known = message_id in evidence.ids_of and message_id not in undone
        if not known and not (evidence.was_lossy_after(at) and message_id not in evidence.rolled_back):
            found.violated(f"message {message_id} was published, and it never committed")
    _nothing_before_its_enqueue(evidence, published, arrived, found)
    _written_as_often_as_enqueued(evidence, found)
    _effects_of_what_committed(evidence, undone, found)
    return found


def _written_as_often_as_enqueued(evidence: Evidence, found: Finding) -> None:
    """A message stands in a queue once for each time that its producer said so, at most."""
    told = Counter(line["message_id"] for line in evidence.history.of("enqueue"))
    written = Counter((step.new.message_id, step.new.queue) for step in evidence.steps if step.event == INSERT)
    for (message_id, queue), count in written.items():
        if count > max(1, told[message_id]):
            found.violated(f"message {message_id} was written {count} times for {queue}, and enqueued once")


def _effects_of_what_committed(evidence: Evidence, undone: set[str], found: Finding) -> None:
    """Consumers have effects of messages only that committed. (A lossy failover may take one back afterwards.)"""
    known = (evidence.ids_of.keys() | evidence.tables.business.keys()) - undone
    if evidence.lossy:
        known |= evidence.enqueued.keys() - evidence.rolled_back
    for consumer, message_id, _ in evidence.tables.effects:
        if message_id not in known:
            found.violated(f"message {message_id} had an effect of {consumer}, and it never committed")


def _nothing_before_its_enqueue(
    evidence: Evidence, published: dict[str, int], arrived: dict[str, int], found: Finding
) -> None:
    """Producers tell before they commit, so that nobody can have published a message earlier than that."""
    for what, first, slack in (("published", published, 0), ("accepted", arrived, evidence.slack)):
        for message_id, at in first.items():
            if at < evidence.enqueued_from.get(message_id, at) - slack:
                found.violated(f"message {message_id} was {what} before it was enqueued")


def i11(evidence: Evidence) -> Finding:
    """Payload and headers are byte-identical on every attempt, or refused at enqueue."""
    found = Finding("I11", "payload and headers arrive byte for byte, or were refused")
    refused = {line["message_id"] for line in evidence.history.of("refused")}
    found.seen["refused at enqueue"] = len(refused)
    _enqueued_as_one(evidence, found)
    for step in evidence.steps:
        if step.event == INSERT:
            _same(evidence, step.new.message_id, "stored payload", step.change.payload, "payload", found)
        elif step.change.is_altered:
            found.violated(f"message {step.change.id}: somebody changed what is to be delivered")
    for publish in evidence.publishes:
        _count(evidence, publish.message_id, found)
        for name, given in (("payload", publish.payload), ("headers", publish.headers)):
            _same(
                evidence, publish.message_id, f"{name} published under token {publish.token}", given, name, found
            )
    for line in evidence.accepted:
        _arrived(evidence, line, found)
    return found


def _count(evidence: Evidence, message_id: str, found: Finding) -> None:
    """Count what can be compared with the producer's; nothing is known of anything else."""
    is_told = message_id in evidence.enqueued
    found.judged += is_told
    found.seen["without a producer's line"] += not is_told


def _enqueued_as_one(evidence: Evidence, found: Finding) -> None:
    """Nobody enqueues one message with two contents, unless a rollback took the first."""
    first: dict[str, Line] = {}
    for line in evidence.history.of("enqueue"):
        before = first.setdefault(line["message_id"], line)
        is_other = any(line[name] != before[name] for name in ("payload", "headers"))
        if is_other and line["message_id"] not in evidence.rolled_back:
            found.violated(f"message {line['message_id']} was enqueued twice, with other content")


def _arrived(evidence: Evidence, line: Line, found: Finding) -> None:
    _count(evidence, line["message_id"], found)
    for name in ("payload", "headers"):
        if line.get(name) is not None:
            _same(evidence, line["message_id"], f"received {name}", line[name], name, found)


def _same(evidence: Evidence, message_id: str, what: str, digest: str | None, name: str, found: Finding) -> None:
    enqueued = evidence.enqueued.get(message_id)
    # Where the producer's line is missing, what was stored is all that is known of a payload.
    original = (
        enqueued[name] if enqueued is not None else evidence.stored.get(message_id) if name == "payload" else None
    )
    if original is not None and digest is not None and digest != original:
        found.violated(f"message {message_id}: {what} is not the producer's ({digest[:12]}, {original[:12]})")
