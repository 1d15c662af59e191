"""That every duplicate has one named cause."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator

from lab.checker.causes import LOSSY_FAILOVER, RECEIVER_FAULTS, SENT_AGAIN, Causes, Repeat
from lab.checker.evidence import Evidence, Publish
from lab.checker.finding import Finding
from lab.checker.history import Line

Place = tuple[str, str]
"""A message in a queue: what a receiver takes in once."""


def i15(evidence: Evidence) -> Finding:
    """Every duplicate has a named cause: each repeated publish, and each repeated arrival."""
    found = Finding("I15", "every duplicate has a named cause")
    repeats = list(_repeats(evidence))
    for repeat in repeats:
        found.judged += 1
        found.seen[f"published again: {repeat.cause or 'UNEXPLAINED'}"] += 1
        if repeat.cause is None:
            found.violated(
                f"{repeat.before} (it ended as {repeat.before.result}) and again under token {repeat.after.token} "
                f"by {repeat.after.process}; {repeat.told}"
            )
    _arrivals(evidence, repeats, found)
    return found


def _repeats(evidence: Evidence) -> Iterator[Repeat]:
    """Yield each publish that followed another one of its row, with its cause."""
    causes = Causes(evidence)
    for publishes in evidence.publishes_of.values():
        # After a lossy failover an id may be handed out again: a row is known by both.
        by_message: dict[str, list[Publish]] = defaultdict(list)
        for publish in publishes:
            by_message[publish.message_id].append(publish)
        for each in by_message.values():
            for before, after in itertools.pairwise(each):
                yield causes.of(before, after)


def _arrivals(evidence: Evidence, repeats: list[Repeat], found: Finding) -> None:
    """Judge what the receiver took in more than once, by the publish that its predecessor came from."""
    published: dict[tuple[str, str, int], Publish] = {}
    for each in evidence.publishes:
        published.setdefault((each.message_id, each.queue, each.token), each)
    queues: dict[tuple[str, int], str] = {(each.message_id, each.token): each.queue for each in evidence.publishes}
    tokens: dict[Place, list[int]] = defaultdict(list)
    for line in evidence.accepted:
        queue = line.get("queue") or queues.get((line["message_id"], line["token"]))
        if queue is None or (line["message_id"], queue, line["token"]) not in published:
            if line["message_id"] in evidence.ids_of:  # others never committed: I6's
                found.violated(
                    f"message {line['message_id']} arrived under token {line['token']}: nobody published it"
                )
            continue
        tokens[line["message_id"], queue].append(line["token"])
    after = {(each.before.message_id, each.before.queue, each.before.token): each for each in repeats}
    for (message_id, queue), arrived in tokens.items():
        for token, count in Counter(arrived).items():
            if count > 1:
                found.judged += count - 1
                _sent_again(evidence, published[message_id, queue, token], count, found)
        for token, later in itertools.pairwise(sorted(set(arrived))):
            first, last = (published[message_id, queue, each] for each in (token, later))
            _arrived_again(evidence, first, last, after.get((message_id, queue, token)), found)


def _arrived_again(
    evidence: Evidence, publish: Publish, later: Publish, repeat: Repeat | None, found: Finding
) -> None:
    """An arrival is followed by another one since its publish was followed by another one (judged as such)."""
    found.judged += 1
    cause = None if repeat is None else repeat.cause
    if repeat is None and evidence.claim_was_lossy(min(publish.start, later.start)):
        cause = (
            LOSSY_FAILOVER  # one of them has a token that was handed out again, or went back behind the other's
        )
    elif repeat is None:
        found.violated(f"{publish} arrived, and so did a later token, which nobody published after it")
    found.seen[f"arrived again: {cause or 'UNEXPLAINED'}"] += 1


def _sent_again(evidence: Evidence, publish: Publish, count: int, found: Finding) -> None:
    """More than one arrival of one attempt: its client may repeat it where its connection was lost."""
    if evidence.claim_was_lossy(publish.start):
        # Its claim was lost, and its token handed out again.
        found.seen[f"arrived again: {LOSSY_FAILOVER}"] += count - 1
        return
    disturbed = any(
        fault.begin <= (publish.end or fault.begin) and fault.end >= publish.start
        for fault in evidence.faults
        if fault.fault in RECEIVER_FAULTS or fault.target == "receiver"
    )
    if disturbed or any(_withheld(line, publish) for line in evidence.accepted):
        found.seen[f"arrived again: {SENT_AGAIN}"] += count - 1
    else:
        found.violated(f"{publish} arrived {count} times, and nothing disturbed the receiver")


def _withheld(line: Line, publish: Publish) -> bool:
    return (
        line["message_id"] == publish.message_id
        and line["token"] == publish.token
        and line.get("acknowledged") is False
    )
