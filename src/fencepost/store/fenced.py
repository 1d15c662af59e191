"""What the holder of a message writes, each time behind the fence: heartbeat, close, reschedule, bury, release.

The fence is ``status = 'processing' AND lease_version = token``, and the message itself: a failover that loses
commits hands ids and tokens out again. A row that already stands in the very target state under the token is a
success: its finalize was repeated, as its first answer was lost. The transaction is the caller's, as with every
operation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fencepost.core.error_text import storable
from fencepost.core.lease import lost
from fencepost.core.operation import Operation
from fencepost.core.records import Claimed
from fencepost.core.states import Outcome, State
from fencepost.store import order
from fencepost.store.catalog import Catalog
from fencepost.store.limits import seconds


def heartbeat(catalog: Catalog, claimed: Collection[Claimed], lease: timedelta) -> Operation[frozenset[int]]:
    """Extend the leases to ``lease`` from now; return the ids whose lease is lost."""
    kept: set[int] = set()
    for group in _by_token(claimed):
        rows = yield catalog.statement("heartbeat", group.params() | {"lease": seconds(lease)})
        renewed = {row[0] for row in rows}
        if len(renewed) < len(group.ids):
            # Skipped, as it is locked, or gone? A row that is being finalized right now still stands here.
            rows = yield catalog.statement("held", group.without(renewed).params())
            renewed |= {row[0] for row in rows}
        kept |= renewed
    return lost((each.id for each in claimed), kept)


@dataclass(frozen=True, slots=True)
class Closed:
    """What came of closing messages.

    Args:
        lost: the ids whose lease was lost, of which nothing was changed.
        out_of_turn: ids given back, since an earlier message of their key was lost and is open again.
        promoted: how many parked messages came to their turn.
        repeated: ids that stood closed already, written by a try whose answer was lost.
    """

    lost: frozenset[int]
    out_of_turn: frozenset[int] = frozenset()
    promoted: int = 0
    repeated: frozenset[int] = frozenset()


def mark_done(catalog: Catalog, claimed: Collection[Claimed]) -> Operation[frozenset[int]]:
    """Finalize as delivered; return the ids whose lease is lost, or that were out of their turn."""
    closed = yield from close(catalog, claimed)
    return closed.lost | closed.out_of_turn


def close(
    catalog: Catalog, delivered: Collection[Claimed], expanded: Collection[Claimed] = ()
) -> Operation[Closed]:
    """Finalize as delivered, and as expanded, in one step: messages of a key may be of both kinds.

    Ordered messages need a transaction around it: their keys are locked, and what is parked behind them promoted.
    """
    closed = Closed(frozenset())
    ordered: dict[Outcome, list[Claimed]] = {}
    for outcome, claimed in ((Outcome.DELIVERED, delivered), (Outcome.EXPANDED, expanded)):
        unordered = [each for each in claimed if each.message.ordering_key is None]
        closed = _together(closed, (yield from _close_unordered(catalog, unordered, outcome)))
        ordered[outcome] = [each for each in claimed if each.message.ordering_key is not None]
    if any(ordered.values()):
        closed = _together(closed, (yield from _close_ordered(catalog, ordered)))
    return closed


def _together(one: Closed, other: Closed) -> Closed:
    return Closed(
        one.lost | other.lost,
        one.out_of_turn | other.out_of_turn,
        one.promoted + other.promoted,
        one.repeated | other.repeated,
    )


def _close_unordered(catalog: Catalog, claimed: Sequence[Claimed], outcome: Outcome) -> Operation[Closed]:
    lost_ids: set[int] = set()
    repeated: set[int] = set()
    for group in _by_token(claimed):
        rows = yield catalog.statement("mark_done", group.params() | {"outcome": str(outcome)})
        if len(rows) < len(group.ids):
            missing = group.without({row[0] for row in rows})
            standing = yield from _standing(catalog, missing, State.DONE, outcome)
            repeated |= standing
            lost_ids |= lost(missing.ids, standing)
    return Closed(frozenset(lost_ids), repeated=frozenset(repeated))


def _close_ordered(catalog: Catalog, claimed: Mapping[Outcome, Sequence[Claimed]]) -> Operation[Closed]:
    everything = {each.id: (each, outcome) for outcome, some in claimed.items() for each in some}
    keys = {(each.message.queue, each.message.ordering_key or "") for each, _ in everything.values()}
    yield from order.lock_for_finalize(catalog, keys)
    ids = sorted(everything)
    params = {
        "ids": ids,
        "tokens": [everything[row_id][0].token for row_id in ids],
        "message_ids": uuid_array(everything[row_id][0].message.message_id_text for row_id in ids),
        "outcomes": [str(everything[row_id][1]) for row_id in ids],
    }
    rows = yield catalog.statement("mark_done_ordered", params)
    kept = {row[0] for row in rows}
    missing = [each for each, _ in everything.values() if each.id not in kept]
    repeated: set[int] = set()
    for outcome in claimed:
        for absent in _by_token(each for each in missing if everything[each.id][1] is outcome):
            repeated |= yield from _standing(catalog, absent, State.DONE, outcome)
    # What is left is lost; or out of its turn, since an earlier message of its key was lost and is open again.
    # What was published counts as an attempt, and goes back to be published in its turn.
    left = [each for each in missing if each.id not in repeated]
    published = [each for each in left if everything[each.id][1] is Outcome.DELIVERED]
    gone = yield from release(catalog, published, refund_attempt=False)
    gone |= yield from release(catalog, [each for each in left if everything[each.id][1] is not Outcome.DELIVERED])
    promoted = yield from order.promote(catalog, keys)
    return Closed(gone, frozenset(each.id for each in left) - gone, promoted, frozenset(repeated))


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """One message to put back to pending."""

    claimed: Claimed
    delay: timedelta
    error: str
    refund_attempt: bool = False


def reschedule(catalog: Catalog, entries: Collection[Rescheduled]) -> Operation[frozenset[int]]:
    """Put messages back to pending, due after their delays; return the ids whose lease is lost."""
    kept: set[int] = set()
    for refund in (False, True):
        chosen = {entry.claimed.id: entry for entry in entries if entry.refund_attempt is refund}
        for group in _by_token(entry.claimed for entry in chosen.values()):
            extra = {
                "refund_attempt": refund,
                "delays": [seconds(chosen[row_id].delay) for row_id in group.ids],
                "errors": [storable(chosen[row_id].error) for row_id in group.ids],
            }
            kept |= yield from _finalize(catalog, "reschedule", group, extra, State.PENDING, None)
    return lost((entry.claimed.id for entry in entries), kept)


@dataclass(frozen=True, slots=True)
class Buried:
    """One message to make dead."""

    claimed: Claimed
    outcome: Outcome
    error: str


def mark_dead(catalog: Catalog, entries: Collection[Buried]) -> Operation[frozenset[int]]:
    """Make messages dead; return the ids whose lease is lost."""
    kept: set[int] = set()
    for outcome in sorted({entry.outcome for entry in entries}):
        chosen = {entry.claimed.id: entry for entry in entries if entry.outcome is outcome}
        for group in _by_token(entry.claimed for entry in chosen.values()):
            extra = {
                "outcome": str(outcome),
                "errors": [storable(chosen[row_id].error) for row_id in group.ids],
            }
            kept |= yield from _finalize(catalog, "mark_dead", group, extra, State.DEAD, outcome)
    return lost((entry.claimed.id for entry in entries), kept)


def release(
    catalog: Catalog, claimed: Collection[Claimed], *, refund_attempt: bool = True
) -> Operation[frozenset[int]]:
    """Give messages back at once, as if they had never been claimed; return the ids whose lease is lost."""
    kept: set[int] = set()
    for group in _by_token(claimed):
        extra = {"refund_attempt": refund_attempt}
        kept |= yield from _finalize(catalog, "release", group, extra, State.PENDING, None)
    return lost((each.id for each in claimed), kept)


@dataclass(frozen=True, slots=True)
class _Group:
    """Messages held under one token."""

    token: int
    message_ids: Mapping[int, str]
    """By the rows' ids, which ascend, so that all finalizes lock in one order."""

    @property
    def ids(self) -> list[int]:
        return list(self.message_ids)

    def params(self) -> dict[str, Any]:
        """Return what the fence asks for."""
        return {"ids": self.ids, "token": self.token, "message_ids": uuid_array(self.message_ids.values())}

    def without(self, ids: Collection[int]) -> _Group:
        return _Group(self.token, {each: name for each, name in self.message_ids.items() if each not in ids})


def uuid_array(message_ids: Iterable[str]) -> str:
    """Write ids as the text of an array, which the server reads faster than an array of texts."""
    return "{" + ",".join(message_ids) + "}"


def _by_token(claimed: Iterable[Claimed]) -> list[_Group]:
    """Group by token, nearly always one group."""
    groups: dict[int, dict[int, str]] = {}
    for each in sorted(claimed, key=lambda each: each.id):
        groups.setdefault(each.token, {})[each.id] = each.message.message_id_text
    return [_Group(*group) for group in sorted(groups.items())]


def _finalize(
    catalog: Catalog, name: str, group: _Group, extra: Mapping[str, Any], target: State, outcome: Outcome | None
) -> Operation[set[int]]:
    rows = yield catalog.statement(name, {**group.params(), **extra})
    written = {row[0] for row in rows}
    if len(written) < len(group.ids):
        written |= yield from _standing(catalog, group.without(written), target, outcome)
    return written


def _standing(catalog: Catalog, group: _Group, target: State, outcome: Outcome | None) -> Operation[set[int]]:
    """Return those that stand in the target state under this token: written by a try whose answer was lost."""
    rows = yield catalog.statement(
        "finalized", group.params() | {"status": str(target), "outcome": outcome and str(outcome)}
    )
    return {row[0] for row in rows}
