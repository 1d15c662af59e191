"""The order of keys, and that a dead head stands in nobody else's way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lab.checker.evidence import Evidence
from lab.checker.finding import Finding
from lab.checker.transitions import BURY, CLAIM, CLOSE, DELETE, OVER_LIMIT, PARK, REAP, RECLAIM, Step


class OpenRows:
    """The open rows of each key, followed through the history."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[int, Step]] = {}

    def note(self, step: Step) -> None:
        """Take in one more change."""
        state = step.change.new or step.change.old
        if state is None or state.key is None:
            return
        rows = self._rows.setdefault((state.queue, state.key), {})
        if step.event == DELETE or not state.is_open:
            rows.pop(step.change.id, None)
        else:
            rows[step.change.id] = step

    def of_key(self, step: Step) -> Iterable[Step]:
        """Return the last change of each open row of a row's key."""
        return () if step.new.key is None else self._rows.get((step.new.queue, step.new.key), {}).values()

    def before(self, step: Step) -> Iterator[Step]:
        """Yield the last change of each open row that stands before a row in its key."""
        return (last for last in self.of_key(step) if last.change.id < step.change.id)


def _walk(evidence: Evidence) -> Iterator[tuple[Step, OpenRows]]:
    """Yield every change of an ordered row, with the open rows after its transaction.

    Transactions come in the order of their last changes: a heartbeat, which locks no key, may change a row after
    the first change of the transaction that then waits for that row and closes it.
    """
    transactions: dict[int, list[Step]] = {}
    for step in evidence.steps:
        transactions.setdefault(step.change.txid, []).append(step)
    rows = OpenRows()
    for steps in sorted(transactions.values(), key=lambda steps: steps[-1].change.n):
        for step in steps:
            rows.note(step)
        for step in steps:
            if step.change.new is not None and step.new.key is not None:
                yield step, rows


def i4(evidence: Evidence) -> Finding:
    """Per key, claim, first acceptance and finalize follow id order."""
    found = Finding("I4", "per key, claims, first acceptances and finalizes follow the ids")
    for step, rows in _walk(evidence):
        if step.event in (CLAIM, RECLAIM, CLOSE):
            found.judged += 1
            _in_turn(step, rows, found)
    first: dict[tuple[str, str | None], int] = {}
    for place, line in enumerate(evidence.accepted):
        first.setdefault((line["message_id"], line.get("queue")), place)
    for (queue, _), ids in evidence.keys.items():
        _accepted_in_order(evidence, queue, ids, first, found)
        _numbers_follow(evidence, ids, found)
    return found


def _in_turn(step: Step, rows: OpenRows, found: Finding) -> None:
    """Who is claimed or closed has no open row before it; but a claim may take a run, in one transaction."""
    for before in rows.before(step):
        if step.event == CLAIM and before.event == CLAIM and before.change.txid == step.change.txid:
            continue
        found.violated(
            f"message {step.change.id}: {step.event} while message {before.change.id}, before it in its key, "
            f"was {before.new.status}"
        )
        return


def _accepted_in_order(
    evidence: Evidence, queue: str, ids: Sequence[int], first: dict[tuple[str, str | None], int], found: Finding
) -> None:
    """First acceptances follow the ids, and none passes an earlier one that was neither accepted nor skipped."""
    newest, newest_id, passed = -1, 0, 0
    for row_id in ids:
        message_id = evidence.steps_of[row_id][0].new.message_id
        place = first.get((message_id, queue), first.get((message_id, None)))
        if place is None:
            row = evidence.tables.rows.get(row_id)
            passed = passed or (row_id if row is not None and row.is_open else 0)
            continue
        found.judged += 1
        if place < newest:
            # (What stood before it may have been closed, in commits that a failover took back.)
            if not evidence.claim_was_lossy(evidence.accepted[place].at):
                found.violated(f"message {row_id} was first accepted before message {newest_id}, which it follows")
        elif passed:
            found.violated(f"message {row_id} was accepted, and message {passed}, before it in its key, never was")
        else:
            newest, newest_id = place, row_id


def _numbers_follow(evidence: Evidence, ids: Sequence[int], found: Finding) -> None:
    """What producers numbered under the key's lock has ids in the same order: id order is commit order."""
    newest, newest_id = -1, 0
    for row_id in ids:
        _, number = evidence.tables.business.get(evidence.steps_of[row_id][0].new.message_id, (None, None))
        if number is None:
            continue
        if number <= newest:
            found.violated(f"message {row_id} is number {number} of its key, and message {newest_id} is {newest}")
        else:
            newest, newest_id = number, row_id


def i5(evidence: Evidence) -> Finding:
    """A dead head blocks its key only."""
    found = Finding("I5", "a dead head blocks its own key and nothing else")
    dead: set[int] = set()
    for step, rows in _walk(evidence):
        if step.event == PARK:
            found.seen["parked"] += 1
            if next(rows.before(step), None) is None:
                found.violated(f"message {step.change.id} was blocked, and nothing stood before it in its key")
        if step.event in (BURY, REAP, OVER_LIMIT):
            dead.add(step.change.id)
        elif step.change.id in dead and step.new.status != "dead":
            dead.discard(step.change.id)
        if step.event == CLOSE and dead:
            found.seen["delivered beside a dead head"] += 1
    found.judged = found.seen["parked"]
    return found
