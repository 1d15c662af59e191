"""Finalize a mixed batch: what each publish result asks for, in one transaction with few statements."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.core.operation import Operation
from fencepost.core.outcome import Action, Dead, Done, Release, Reschedule
from fencepost.core.records import Claimed
from fencepost.store import outbox
from fencepost.store.catalog import Catalog

Decided = tuple[Claimed, Action]


def finalize(catalog: Catalog, decided: Sequence[Decided]) -> Operation[frozenset[int]]:
    """Write every decision behind its fence; return the ids whose lease was lost.

    A row may stand in ``decided`` only once: a holder that lost it and claimed it anew finalizes in two calls.
    """
    done = [claimed for claimed, action in decided if isinstance(action, Done)]
    released = [claimed for claimed, action in decided if isinstance(action, Release)]
    rescheduled = [
        outbox.Rescheduled(claimed, action.delay, action.error, action.refund_attempt)
        for claimed, action in decided
        if isinstance(action, Reschedule)
    ]
    buried = [
        outbox.Buried(claimed, action.outcome, action.error)
        for claimed, action in decided
        if isinstance(action, Dead)
    ]
    lost = yield from outbox.mark_done(catalog, done)
    lost |= yield from outbox.reschedule(catalog, rescheduled)
    lost |= yield from outbox.mark_dead(catalog, buried)
    lost |= yield from outbox.release(catalog, released)
    return lost
