"""Finalize a mixed batch: what each publish result asks for, with few statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.core.ledger import AttemptResult, result_of
from fencepost.core.operation import Operation
from fencepost.core.outcome import Action, Dead, Done, Expand, Release, Reschedule
from fencepost.core.records import Claimed
from fencepost.store import fenced, ledger
from fencepost.store.catalog import Catalog
from fencepost.store.expand import Expansion, close_and_expand

Decided = tuple[Claimed, Action]


@dataclass(frozen=True, slots=True)
class Finalized:
    """What came of a batch; see `fencepost.store.fenced.Closed`."""

    lost: frozenset[int]
    out_of_turn: frozenset[int] = frozenset()
    promoted: int = 0
    busy: frozenset[int] = frozenset()
    """Not expanded but put back for a moment; see `fencepost.store.expand.Expanded`."""


def needs_transaction(decided: Sequence[Decided]) -> bool:
    """Tell whether `finalize` needs one around it.

    It locks keys and promotes what is parked, or expands; or writes the ends of attempts beside their results.
    """
    return any(
        claimed.ledger
        or isinstance(action, Expand)
        or (isinstance(action, Done) and claimed.message.ordering_key is not None)
        for claimed, action in decided
    )


def finalize(catalog: Catalog, decided: Sequence[Decided]) -> Operation[Finalized]:
    """Write every decision behind its fence.

    A row may stand in ``decided`` only once: a holder that lost it and claimed it anew finalizes in two calls.
    """
    done: list[Claimed] = []
    released: list[Claimed] = []
    rescheduled: list[fenced.Rescheduled] = []
    buried: list[fenced.Buried] = []
    expansions: list[Expansion] = []
    for claimed, action in decided:
        match action:
            case Done():
                done.append(claimed)
            case Expand(destinations=destinations):
                expansions.append(Expansion(claimed, destinations))
            case Release():
                released.append(claimed)
            case Reschedule(delay=delay, error=error, refund_attempt=refund):
                rescheduled.append(fenced.Rescheduled(claimed, delay, error, refund))
            case Dead(outcome=outcome, error=error):  # pragma: no branch - there are no other actions
                buried.append(fenced.Buried(claimed, outcome, error))
    expanded = yield from close_and_expand(catalog, done, expansions)
    closed = expanded.closed
    lost = closed.lost
    lost |= yield from fenced.reschedule(catalog, rescheduled)
    lost |= yield from fenced.mark_dead(catalog, buried)
    lost |= yield from fenced.release(catalog, released)
    found = Finalized(lost, closed.out_of_turn, closed.promoted, expanded.busy)
    if any(claimed.ledger for claimed, _ in decided):
        yield from ledger.close_for(catalog, [_end(found, *each) for each in decided], lost)
    return found


def _end(found: Finalized, claimed: Claimed, action: Action) -> tuple[Claimed, AttemptResult, str | None]:
    """Return how an attempt ended: as decided, unless the row was out of its turn or its expansion has to wait."""
    if claimed.id in found.busy:
        return claimed, AttemptResult.DEFERRED, None
    if claimed.id in found.out_of_turn:
        is_published = isinstance(action, Done)
        return claimed, AttemptResult.OUT_OF_TURN if is_published else AttemptResult.RELEASED, None
    return claimed, *result_of(action)
