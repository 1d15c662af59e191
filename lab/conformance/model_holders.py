"""What the holder of messages may write, and what comes of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from fencepost.core.outcome import Action, Dead, Done, Expand, Release, Reschedule
from fencepost.core.records import Claimed
from fencepost.core.states import Event, Outcome, State
from fencepost.store.finalize import Finalized
from lab.conformance.model_rows import Row, Sight, demand
from lab.conformance.seen import Look

BUSY_MINUTES = 1
"""How long an expansion waits where a producer has its key."""

Held = Sequence[Claimed]

Others = Collection[Any] | None
"""What another session has written and not committed; None where there is none with a transaction open."""


def stands(sight: Sight, claimed: Claimed, state: State, outcome: Outcome | None) -> bool:
    """Tell whether a row is in the very target state under the token: written by a try whose answer was lost."""
    row = sight.row(claimed.id)
    text = None if outcome is None else str(outcome)
    return row is not None and (row.status, row.outcome, row.token) == (state, text, claimed.token)


def _is_held(sight: Sight, claimed: Claimed) -> bool:
    row = sight.row(claimed.id)
    return row is not None and row.is_held(claimed.token)


def _write(
    sight: Sight, claimed: Claimed, event: Event, state: State, outcome: Outcome | None = None, span: int = 0
) -> set[int]:
    """Let something happen to what is held; return what is lost."""
    if _is_held(sight, claimed):
        sight.happen(claimed.id, event, span=span)
        return set()
    return set() if stands(sight, claimed, state, outcome) else {claimed.id}


def heartbeat(sight: Sight, held: Held, lease: int, lost: Collection[int], after: Look, at_work: Others) -> None:
    """Judge a heartbeat. (What another session is at keeps its lease as it is.)"""
    expected = sorted(each.id for each in held if not _is_held(sight, each))
    demand(expected == sorted(lost), f"{sorted(lost)} are said to be lost, not {expected}")
    shown = {row.id: row for row in after.rows}
    for each in held:
        row = sight.row(each.id)
        if row is not None and row.is_held(each.token):
            longer = row._replace(lease_until=sight.now + lease)
            is_longer = longer.seen(sight.now, shown[row.id]) == shown[row.id]
            if at_work is None or (("row", row.id) not in at_work and is_longer):
                sight.write(longer)


def release(sight: Sight, held: Held, lost: Collection[int]) -> None:
    """Judge a release that keeps the attempt."""
    expected: set[int] = set()
    for each in held:
        expected |= _write(sight, each, Event.CANCELLED, State.PENDING)
    demand(sorted(expected) == sorted(lost), f"{sorted(lost)} are said to be lost, not {sorted(expected)}")


def finalize(
    sight: Sight, decided: Sequence[tuple[Claimed, Action]], result: Finalized, after: Look, *, alone: bool
) -> None:
    """Judge what became of a batch; ``alone``: no other session was at anything when it began."""
    busy, lost = _put_off(sight, decided, result, alone)
    closing = [each for each in decided if isinstance(each[1], (Done, Expand)) and each[0].id not in busy]
    unordered = [each for each in closing if each[0].message.ordering_key is None]
    ordered = [each for each in closing if each[0].message.ordering_key is not None]
    closed = [each for each in unordered if _is_held(sight, each[0])] + _in_turn(sight, ordered)
    for each, action in closed:
        sight.happen(each.id, action.event if isinstance(action, (Done, Expand)) else Event.DELIVERED)
    ids = {each.id for each, _ in closed}
    lost |= {
        each.id
        for each, action in unordered
        if each.id not in ids and not stands(sight, each, State.DONE, _outcome(action))
    }
    out_of_turn: set[int] = set()
    for each, action in ordered:
        if each.id in ids:
            continue
        if stands(sight, each, State.DONE, _outcome(action)):
            # It may have been put off for who was just expanding it, and then it was no longer held.
            lost |= {each.id} & result.lost if isinstance(action, Expand) and not alone else set()
            continue
        event = Event.CANCELLED if isinstance(action, Done) else Event.RELEASE
        gone = _write(sight, each, event, State.PENDING)
        lost |= gone
        out_of_turn |= {each.id} - gone
    promoted = sight.promote((each.message.queue, each.message.ordering_key or "") for each, _ in ordered)
    _expand(sight, [(each, action) for each, action in closed if isinstance(action, Expand)], after)
    for each, action in decided:
        if not isinstance(action, (Done, Expand)):
            lost |= _put_back(sight, each, action)
    expected = (sorted(lost), sorted(out_of_turn), promoted, sorted(busy - lost))
    found = (sorted(result.lost), sorted(result.out_of_turn), result.promoted, sorted(result.busy))
    demand(expected == found, f"lost, out of turn, promoted and busy are said to be {found}, not {expected}")


def _outcome(action: Action) -> Outcome:
    return Outcome.EXPANDED if isinstance(action, Expand) else Outcome.DELIVERED


def _in_turn(sight: Sight, ordered: Sequence[tuple[Claimed, Action]]) -> list[tuple[Claimed, Action]]:
    """Return those that are held, and whose every earlier open message of their key is closed with them."""
    closed: list[tuple[Claimed, Action]] = []
    held = sorted((each for each in ordered if _is_held(sight, each[0])), key=lambda each: each[0].id)
    for claimed, action in held:
        message = claimed.message
        before = [row.id for row in sight.open_of(message.queue, message.ordering_key) if row.id < claimed.id]
        if {each.id for each, _ in closed}.issuperset(before):
            closed.append((claimed, action))
    return closed


def _put_off(
    sight: Sight, decided: Sequence[tuple[Claimed, Action]], result: Finalized, alone: bool
) -> tuple[set[int], set[int]]:
    """Put off what cannot be expanded just now, since another session's producer has its key."""
    expansions = [each for each, action in decided if isinstance(action, Expand)]
    keyed = {each.id for each in expansions if each.message.ordering_key is not None}
    demand(not alone or not result.busy, f"{sorted(result.busy)} were busy, although nobody was at them")
    demand(keyed.issuperset(result.busy), f"{sorted(result.busy)} were busy, of {sorted(keyed)}")
    lost: set[int] = set()
    if not result.busy:
        return set(), lost
    busy_keys = {(each.message.queue, each.message.ordering_key) for each in expansions if each.id in result.busy}
    first = min(result.busy)
    # Where one waits, so does what is behind it of its key, lost or not.
    busy = {
        each.id
        for each in expansions
        if each.id in result.busy
        or (each.id > first and (each.message.queue, each.message.ordering_key) in busy_keys)
    }
    for each in expansions:
        if each.id in busy:
            lost |= _write(sight, each, Event.DEFER, State.PENDING, span=BUSY_MINUTES * 60_000_000)
    return busy, lost


def _put_back(sight: Sight, claimed: Claimed, action: Action) -> set[int]:
    match action:
        case Reschedule(event=event, delay=delay):
            span = round(delay.total_seconds() * 1_000_000)
            return _write(sight, claimed, event, State.PENDING, span=span)
        case Dead(event=event, outcome=outcome):
            return _write(sight, claimed, event, State.DEAD, outcome)
        case Release(event=event):
            return _write(sight, claimed, event, State.PENDING)
    raise NotImplementedError(action)


def _expand(sight: Sight, closed: Sequence[tuple[Claimed, Expand]], after: Look) -> None:
    """Add a message for each destination, in the order of the originals."""
    known = {row.id for row in sight.rows()}
    new = [row for row in after.rows if row.id not in known]
    pairs = sorted((each.id, queue) for each, action in closed for queue in action.destinations)
    demand(len(new) == len(pairs), f"{len(new)} new messages for {len(pairs)} destinations")
    for (original_id, queue), shown in zip(pairs, new, strict=True):
        original = sight.row(original_id)
        if original is not None:
            number = next_number(sight, queue, original.key, counts=sight.queue(queue).sequenced)
            copy = Row(shown.id, queue, original.key, number, original.recovery, original.created, sight.now)
            sight.write(copy._replace(routed=True))


def next_number(sight: Sight, queue: str, key: str | None, *, counts: bool) -> int | None:
    """Draw the next number of a key, where its queue counts."""
    if key is None or not counts:
        return None
    number: int = sight.get(("last", queue, key), 0) + 1
    sight.put(("last", queue, key), number)
    return number
