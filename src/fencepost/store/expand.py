"""One event for several destinations: a message for each of them, in the transaction that closes the original."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from fencepost.core.operation import Operation
from fencepost.core.records import Claimed
from fencepost.store import fenced, order
from fencepost.store.catalog import Catalog

BUSY_PAUSE = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class Expansion:
    """A claimed message, and the queues of its destinations."""

    claimed: Claimed
    destinations: tuple[str, ...]

    @property
    def keys(self) -> set[order.Key]:
        """The ordering keys that it will stand in."""
        key = self.claimed.message.ordering_key
        return set() if key is None else {(queue, key) for queue in self.destinations}


@dataclass(frozen=True, slots=True)
class Expanded:
    """What came of it; see `fencepost.store.fenced.Closed`.

    Args:
        closed: what came of closing the originals.
        busy: given back for a moment, with their attempt: a producer's transaction holds their key in one of the
            destinations, and we must not wait for it; or an earlier one of their key was given back for that.
    """

    closed: fenced.Closed
    busy: frozenset[int] = frozenset()


def close_and_expand(
    catalog: Catalog, delivered: Sequence[Claimed], expansions: Sequence[Expansion]
) -> Operation[Expanded]:
    """Write a message for each destination of the expansions, and close them together with what was delivered.

    Where anything is expanded it needs a transaction around it, and for ordered messages as well.

    The new messages are written only for originals that were closed here and now: a try whose answer was lost, or
    a worker whose lease was lost, writes none.
    """
    if not expansions:
        return Expanded((yield from fenced.close(catalog, delivered)))
    sequenced, locked = yield from _lock(catalog, expansions)
    free, waiting = _in_turn(expansions, locked)
    closed = yield from fenced.close(catalog, delivered, [each.claimed for each in free])
    untouched = closed.lost | closed.out_of_turn | closed.repeated
    yield from _write(catalog, [each for each in free if each.claimed.id not in untouched], sequenced)
    gone = yield from _put_back(catalog, waiting)
    lost = fenced.Closed(closed.lost | gone, closed.out_of_turn, closed.promoted, closed.repeated)
    return Expanded(lost, frozenset(each.id for each in waiting) - gone)


def _lock(
    catalog: Catalog, expansions: Collection[Expansion]
) -> Operation[tuple[frozenset[str], frozenset[order.Key]]]:
    """Take the producers' locks: ids follow commits also where producers write to a destination themselves."""
    keys = {key for each in expansions for key in each.keys}
    tried = yield from order.try_lock_for_producers(catalog, keys)
    return (
        frozenset(queue for queue, _, _, is_sequenced in tried if is_sequenced),
        frozenset((queue, key) for queue, key, got, _ in tried if got),
    )


def _in_turn(
    expansions: Sequence[Expansion], locked: frozenset[order.Key]
) -> tuple[list[Expansion], list[Claimed]]:
    """Tell what can be written now from what waits: whatever is behind one of its key that waits does so too."""
    free: list[Expansion] = []
    waiting: list[Claimed] = []
    held_up: set[order.Key] = set()
    for each in sorted(expansions, key=lambda each: each.claimed.id):
        message = each.claimed.message
        key = None if message.ordering_key is None else (message.queue, message.ordering_key)
        if key is None or (each.keys <= locked and key not in held_up):
            free.append(each)
        else:
            waiting.append(each.claimed)
            held_up.add(key)
    return free, waiting


def _write(catalog: Catalog, expansions: Sequence[Expansion], sequenced: frozenset[str]) -> Operation[None]:
    if not expansions:
        return
    pairs = sorted((each.claimed.id, queue) for each in expansions for queue in each.destinations)
    keys = {each.claimed.id: each.claimed.message.ordering_key for each in expansions}
    counted = [(queue, key) for row_id, queue in pairs if (key := keys[row_id]) is not None and queue in sequenced]
    drawn = iter((yield from order.draw_numbers_of(catalog, counted)) if counted else ())
    numbers = [next(drawn) if keys[row_id] is not None and queue in sequenced else None for row_id, queue in pairs]
    yield catalog.statement(
        "expand",
        {"ids": [row_id for row_id, _ in pairs], "queues": [queue for _, queue in pairs], "numbers": numbers},
    )
    yield catalog.statement("notify", {"channel": catalog.names.channel})


def _put_back(catalog: Catalog, claimed: Sequence[Claimed]) -> Operation[frozenset[int]]:
    text = "a producer's transaction holds its ordering key in one of its destinations"
    return (
        yield from fenced.reschedule(
            catalog, [fenced.Rescheduled(each, BUSY_PAUSE, text, refund_attempt=True) for each in claimed]
        )
    )
