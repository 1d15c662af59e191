"""Effects of consumers."""

from __future__ import annotations

from collections import Counter

from lab.checker.evidence import Evidence
from lab.checker.finding import Finding


def i8(evidence: Evidence) -> Finding:
    """One inbox effect per (consumer, message)."""
    found = Finding("I8", "one effect for each consumer and message")
    effects = Counter((consumer, message_id) for consumer, message_id, _ in evidence.tables.effects)
    for (consumer, message_id), count in effects.items():
        if count > 1:
            found.violated(f"message {message_id} had {count} effects of {consumer}")
        if (consumer, message_id) not in evidence.tables.inbox:
            found.violated(f"message {message_id} had an effect of {consumer} and does not stand in its inbox")
    for consumer, message_id in evidence.tables.inbox - effects.keys():
        found.violated(f"message {message_id} stands in the inbox of {consumer}, and its effect is not there")
    newest: dict[tuple[str, str], int] = {}
    for line in evidence.history.of("inbox"):
        place = (line["consumer"], line["message_id"])
        found.seen[line["result"]] += 1
        found.judged += line["result"] in ("repeat", "stale")
        if line["result"] == "accepted":
            if place not in effects and not evidence.was_lossy_after(line.at):
                found.violated(
                    f"message {place[1]}: {place[0]} was told that its effect committed, and it is gone"
                )
            newest[place] = max(newest.get(place, -1), line["token"] or 0)
        elif line["result"] == "stale" and (line["token"] or 0) >= newest.get(place, NOTHING):
            found.violated(
                f"message {place[1]}: {place[0]} was refused token {line['token']} as stale, after {newest[place]}"
            )
    _new_once(evidence, found)
    return found


def _new_once(evidence: Evidence, found: Finding) -> None:
    """A message is new to a consumer once, and a repeat where there is an effect of it."""
    effects = {(consumer, message_id) for consumer, message_id, _ in evidence.tables.effects}
    accepted: dict[tuple[str, str], int] = {}
    for line in evidence.history.of("inbox"):
        consumer, message_id = line["consumer"], line["message_id"]
        if line["result"] == "accepted":
            before = accepted.get((consumer, message_id))
            if before is not None and not evidence.was_lossy_between(before, line.at):
                found.violated(f"message {message_id}: {consumer} was told twice that it is new")
            accepted[consumer, message_id] = line.at
        is_baseless = line["result"] == "repeat" and (consumer, message_id) not in effects
        if is_baseless and not evidence.was_lossy_after(line.at):
            found.violated(f"message {message_id}: {consumer} was told of a repeat, and has no effect of it")


NOTHING = 2**63
"""Above any token: nothing was accepted yet by what the history says, so nothing can be said."""
