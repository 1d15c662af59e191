"""The ledger as the model keeps it: attempts that began, how each one ended, and what a rate leaves to begin."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from fencepost.core.ledger import Attempt as Read
from fencepost.core.outcome import Action, Dead, Done, Expand, Release
from fencepost.core.records import Claimed
from fencepost.core.states import Event, State
from fencepost.store.finalize import Finalized
from fencepost.store.outbox import ClaimResult
from lab.conformance import steps as s
from lab.conformance.model_rows import Queue, Sight, demand, micros
from lab.conformance.seen import Rest

MESSAGE, JOB = "message", "job"


class Attempt(NamedTuple):
    """One attempt; ``place`` is its turn among all of them."""

    kind: str
    row: int
    token: int
    place: int
    queue: str
    attempt: int
    worker: str | None
    began: int
    result: str | None = None
    lost: bool = False


def _all(sight: Sight) -> list[Attempt]:
    return sorted(sight.of("attempt"), key=lambda each: each.place)


def begin(sight: Sight, kind: str, row: int, token: int, queue: str, attempt: int, worker: str | None) -> None:
    """Write down that an attempt begins."""
    key = ("attempt", kind, row, token)
    demand(sight.get(key) is None, f"attempt {key} begins twice")
    sight.put(key, Attempt(kind, row, token, next(sight.turns), queue, attempt, worker, sight.now))


def end(sight: Sight, kind: str, row: int, token: int, result: str, *, lost: bool) -> None:
    """Write down how one ended, unless that stands there, or the attempt is not written down any more."""
    key = ("attempt", kind, row, token)
    found: Attempt | None = sight.get(key)
    if found is not None and found.result is None:
        sight.put(key, found._replace(result=result, lost=lost))


def claimed(sight: Sight, taken: Iterable[Claimed]) -> None:
    """Begin attempts at messages, where their queue keeps a ledger: queue by queue, as they were asked."""
    by_queue: dict[str, list[Claimed]] = {}
    for each in taken:
        by_queue.setdefault(each.message.queue, []).append(each)
    for each in (each for found in by_queue.values() for each in sorted(found, key=lambda each: each.id)):
        row = sight.row(each.id)
        keeps = row is not None and sight.queue(row.queue).ledger
        demand(each.ledger == keeps, f"{each} although its queue keeps {'a' if keeps else 'no'} ledger")
        if row is not None and keeps:
            begin(sight, MESSAGE, row.id, row.token, row.queue, row.attempts, row.owner)


def finalized(sight: Sight, decided: Sequence[tuple[Claimed, Action]], found: Finalized) -> None:
    """End attempts at messages as their results say."""
    for each, action in decided:
        result = "deferred" if each.id in found.busy else word_of(action)
        if each.id in found.out_of_turn and each.id not in found.busy:
            result = "out_of_turn" if isinstance(action, Done) else "released"
        if each.ledger:
            end(sight, MESSAGE, each.id, each.token, result, lost=each.id in found.lost)


def cut_off(sight: Sight, held: Sequence[Claimed], lost: Collection[int]) -> None:
    """End attempts whose outcome nobody knows."""
    for each in held:
        if each.ledger:
            end(sight, MESSAGE, each.id, each.token, "unknown", lost=each.id in lost)


def word_of(action: Action) -> str:
    """Return the result of an attempt that ends so."""
    match action:
        case Done():
            return "delivered"
        case Expand():
            return "expanded"
        case Release():
            return "released"
        case Dead(event=Event.PERMANENT_FAILURE):
            return "refused"
    return "deferred" if action.event is Event.DEFER else "failed"


def read(sight: Sight, messages: Collection[int], jobs: Collection[int], result: Sequence[Read]) -> None:
    """Judge what is told of the attempts at some rows: one without an end is lost, unless its row is held."""
    expected: list[tuple[Any, ...]] = []
    for kind, ids in ((MESSAGE, messages), (JOB, jobs)):
        found = [each for each in _all(sight) if each.kind == kind and each.row in ids]
        expected += [_told(sight, each) for each in sorted(found, key=lambda each: (each.row, each.place))]
    shown = [
        (str(each.kind), each.row_id, each.token, each.attempt, each.worker, each.result, each.lease_lost)
        for each in result
    ]
    demand(shown == expected, f"the attempts are said to be {shown}, not {expected}")


def _told(sight: Sight, each: Attempt) -> tuple[Any, ...]:
    row: Any = sight.row(each.row) if each.kind == MESSAGE else sight.get(("job", each.row))
    token = None if row is None else row.token if each.kind == MESSAGE else row.fence
    is_held = row is not None and row.status == State.PROCESSING and token == each.token
    result = "lost" if each.result is None and not is_held else each.result
    return each.kind, each.row, str(each.token), each.attempt, each.worker, result, each.lost


def purge(sight: Sight, older_than: int, limit: int, locked: Collection[Any], deleted: int) -> None:
    """Judge one step of a purge, which looks at so many of them from the first on."""
    front = _all(sight)[:limit]
    old = [each[:3] for each in front if each.began < sight.now - micros(older_than)]
    gone = [("attempt", *key) for key in old if ("attempt", *key) not in locked]
    demand(deleted == len(gone), f"{deleted} attempts were deleted, not {gone}")
    for key in gone:
        sight.put(key, None)


def compare(sight: Sight, rest: Rest) -> None:
    """Compare with what stands in a store at the end.

    Raises:
        Disagreement: they differ.
    """
    expected = [
        (each.kind, each.row, str(each.token), each.queue, each.attempt, each.worker, each.result, each.lost)
        for each in _all(sight)
    ]
    found = [(*row[:7], row[8]) for row in rest.attempts]
    demand(found == expected, f"the ledger has {found}, not {expected}")


# --- rates ---------------------------------------------------------------------------------------------


def allowed(queue: Queue, now: int, wanted: int) -> int:
    """Return how many the rate of a queue leaves, of those that are wanted: one, once its time has come."""
    if not queue.every:
        return wanted
    is_time = queue.used is None or now - queue.used >= micros(queue.every)
    return min(wanted, int(is_time))


def spend(sight: Sight, name: str, number: int) -> None:
    """Charge the rate: idle time is saved for one message, or for one second."""
    queue = sight.queue(name)
    if number == 0 or queue.every is None:
        return
    period = micros(queue.every) or 1
    full = sight.now - max(1_000_000, period)
    used = max(full, full if queue.used is None else queue.used) + number * period
    sight.put(("queue", name), queue._replace(used=used))


def within_rate(sight: Sight, step: s.ClaimWithinRate, found: ClaimResult, is_short: bool, alone: bool) -> int:
    """Judge how many were claimed within a rate; return how many may have been."""
    number = allowed(sight.queue(step.queue), sight.now, step.batch)
    if not alone and not found.claimed and is_short:
        return 0  # another session has the queue's row
    if number == 0:
        demand((found.claimed, is_short) == ([], True), f"{found} although the rate leaves none")
        return 0
    taken = len(found.claimed)
    demand(taken <= number, f"{taken} were claimed, of the rate's {number}")
    expected = taken >= number and number < step.batch
    demand(is_short == expected, f"the rate is {'' if is_short else 'not '}said to have cut it short")
    return number
