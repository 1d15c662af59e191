"""Who takes messages, as operations: claims, of normal messages and of crash suspects, and the reaper.

(What a holder writes is in `fencepost.store.fenced`, what a producer asks in `fencepost.store.enqueue`.) None of
these operations begins or ends a transaction: that is the caller's.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import itemgetter
from typing import Any

from fencepost.core.error_text import storable
from fencepost.core.operation import Operation, Row
from fencepost.core.records import STORED_COLUMNS, Claimed, Message
from fencepost.core.states import Outcome, Recovery, State
from fencepost.store import ledger
from fencepost.store.catalog import Catalog
from fencepost.store.limits import MAX_BATCH, seconds

FRONT_WINDOW = 10_000
"""Rows that the search for expired leases looks at: leased rows stand at the front of the ready index, so
this is the number of messages in flight, over all workers of a queue, up to which each one is found at once."""

QUEUES_PER_LOOK = 5_000
"""Queues that one look for something due goes through."""

QUEUES_PER_STEP = 100
"""Queues that one claim or reap asks, so that a transaction stays short however many there are."""

UNLIMITED = 1_000_000_000
"""The most attempts and reclaims that the table's checks let a row have."""

MAX_EXHAUSTED = 1_000
"""Rows over the limit of attempts past which a claim stops looking for others behind them."""

# --- claims --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """Who claims, for how long, and under which limit of attempts.

    ``is_probe``: also where the breaker of the queue is open.
    """

    owner: str
    lease: timedelta
    max_attempts: int
    is_probe: bool = False


PARK = 1_000
"""Messages behind one claim's blocked heads that it parks besides its own candidates."""

PARKING_CLAIMS = 5
"""Claims in a row that only got parked messages out of the way, past which an operation ends."""


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What a claim took, and what it came across.

    Args:
        claimed: the messages, by id.
        exhausted: rows over the limit of attempts, made dead.
        parked: messages put behind a head that is not free.
        waiting: due messages left alone, as the head of their key is in other hands just now.
        lowest: microseconds since 1970 of the earliest ``available_at`` among the claimed, for a floor.
    """

    claimed: list[Claimed]
    exhausted: int = 0
    parked: int = 0
    waiting: int = 0
    lowest: int | None = None


ClaimOperation = Operation[ClaimResult]


@dataclass(slots=True)
class Rotation:
    """Where the last look at the queues ended; the next one goes on from there, and begins anew at the end."""

    after: str = ""


def open_queues(
    catalog: Catalog, *, rotation: Rotation | None = None, limit: int = QUEUES_PER_LOOK
) -> Operation[list[str]]:
    """Return the queues that have something due, or leased, by name.

    Args:
        rotation: where to go on, and remembered for the next call; None always begins with the first.
        limit: how many queues to look at, due or not. (Nothing due up to the last one: as many from the first.)
    """
    rotation = rotation or Rotation()
    began_later = rotation.after != ""
    names = yield from _look(catalog, rotation, limit)
    if not names and began_later and rotation.after == "":
        names = yield from _look(catalog, rotation, limit)
    return names


def _look(catalog: Catalog, rotation: Rotation, limit: int) -> Operation[list[str]]:
    rows = yield catalog.statement("queues", {"after": rotation.after, "limit": limit})
    rotation.after = next((queue for queue, _, is_cut_off in rows if is_cut_off), "")
    return [queue for queue, is_due, _ in rows if is_due]


Queues = Sequence[str] | Rotation | None
"""Which queues a step may ask: these, or what `open_queues` finds."""


def _a_few(catalog: Catalog, queues: Queues) -> Operation[Sequence[str]]:
    """Choose what one step asks: the first, so that who rotates them reaches each one, and others by chance."""
    if queues is None or isinstance(queues, Rotation):
        queues = yield from open_queues(catalog, rotation=queues)
    if len(queues) <= QUEUES_PER_STEP:
        return queues
    return [queues[0], *random.sample(queues[1:], QUEUES_PER_STEP - 1)]


@dataclass(frozen=True, slots=True)
class Scan:
    """How a normal claim looks for messages.

    Args:
        floor: microseconds since 1970 below which it does not look; 0 looks everywhere. Nothing depends on it
            but speed: see `fencepost.runtime.floor`.
        park_behind_leased: park what waits behind a head that is being published; else leave it alone, since
            that is often over in a moment.
        longest_run: messages of one key that it takes at most; None for as many as fit.
        statements: how often it looks again, at most, where it only came across messages that it made dead or
            parked. With one, all that a claim takes is committed or not, also outside a transaction.
    """

    floor: int = 0
    park_behind_leased: bool = True
    longest_run: int | None = None
    statements: int = PARKING_CLAIMS


EVERYWHERE = Scan()


def claim(
    catalog: Catalog, terms: ClaimTerms, *, queues: Queues, batch: int, scan: Scan = EVERYWHERE
) -> Operation[ClaimResult]:
    """Claim up to ``batch`` due messages that no crash has touched; reclaimed ones come by `claim_suspects`.

    Of an ordering key it takes a run: its first open messages, without a gap.

    Args:
        queues: the queues to take from, in this order; or those that have something due, going on through
            them by a rotation. Of more than `QUEUES_PER_STEP`, the first is asked and others by chance.
        scan: how to look.
    """
    names = yield from _a_few(catalog, queues)
    found = ClaimResult([])
    for queue in names:
        room = min(batch, MAX_BATCH) - len(found.claimed)
        if room <= 0:
            break
        of_queue = yield from _claim_from(catalog, terms, queue, room, scan)
        found = replace(_both(found, of_queue), waiting=found.waiting + of_queue.waiting)
    return found


def _claim_from(catalog: Catalog, terms: ClaimTerms, queue: str, room: int, scan: Scan) -> Operation[ClaimResult]:
    """Claim from one queue; the rows over the limit and the parked ones that it meets do not fill the room."""
    params = _claim_params(terms) | {
        "queue": queue,
        "floor": scan.floor,
        "park": PARK,
        "park_behind_leased": scan.park_behind_leased,
        "longest_run": MAX_BATCH if scan.longest_run is None else scan.longest_run,
    }
    total = ClaimResult([])
    for _ in range(scan.statements):
        rows = yield catalog.statement("claim", params | {"batch": room - len(total.claimed)})
        found = _result(rows, terms)
        yield from _written_down(catalog, found.claimed)
        total = _both(total, found)
        is_clear = not found.exhausted and (found.claimed or not found.parked)
        if is_clear or len(total.claimed) >= room or total.exhausted >= MAX_EXHAUSTED:
            break
    return total


def _result(rows: Sequence[Row], terms: ClaimTerms) -> ClaimResult:
    parked, waiting = rows[0][-2:]
    if rows[0][0] is None:  # what it came across stands in a row of its own, where nothing was claimed
        return ClaimResult([], 0, parked, waiting)
    claimed = _claimed(rows, terms)
    lowest = min(row[_AVAILABLE_AT] for row in rows)
    return ClaimResult(claimed, len(rows) - len(claimed), parked, waiting, lowest)


def _both(one: ClaimResult, other: ClaimResult) -> ClaimResult:
    lows = [each.lowest for each in (one, other) if each.lowest is not None]
    return ClaimResult(
        one.claimed + other.claimed,
        one.exhausted + other.exhausted,
        one.parked + other.parked,
        other.waiting,
        min(lows, default=None),
    )


def claim_suspects(
    catalog: Catalog,
    terms: ClaimTerms,
    *,
    queues: Queues,
    batch: int = 1,
    max_reclaims: int = UNLIMITED,
    spare_attempts: int = 0,
) -> Operation[ClaimResult]:
    """Claim messages whose worker may have crashed on them, one alone unless ``batch`` says otherwise.

    Args:
        queues: as for `claim`.
        max_reclaims: leave out rows that were taken over more often than this before.
        spare_attempts: leave out expired rows that would have fewer attempts left than this after the one that it
            begins.
    """
    names = yield from _a_few(catalog, queues)
    params = _claim_params(terms) | {
        "window": FRONT_WINDOW,
        "max_reclaims": max_reclaims,
        "spare_attempts": spare_attempts,
    }
    exhausted = 0
    for queue in names:
        rows = yield catalog.statement("claim_suspects", params | {"queue": queue, "batch": min(batch, MAX_BATCH)})
        claimed = _claimed(rows, terms)
        exhausted += len(rows) - len(claimed)
        if claimed:
            yield from _written_down(catalog, claimed)
            return ClaimResult(claimed, exhausted)
    return ClaimResult([], exhausted)


def _written_down(catalog: Catalog, claimed: Sequence[Claimed]) -> Operation[None]:
    """Write down the attempts that begin, where the queue that all of them are of keeps a ledger."""
    if claimed and claimed[0].ledger:
        yield from ledger.open_for(catalog, claimed)


def reap(
    catalog: Catalog, *, queues: Queues, max_attempts: int, limit: int
) -> Operation[list[tuple[int, Outcome]]]:
    """Bury expired messages that nobody may take over; return (id, outcome) of at most ``limit`` rows.

    Args:
        queues: as for `claim`.
    """
    names = yield from _a_few(catalog, queues)
    buried: list[tuple[int, Outcome]] = []
    for queue in names:
        room = min(limit, MAX_BATCH) - len(buried)
        if room <= 0:
            break
        rows = yield catalog.statement(
            "reap",
            {
                "queue": queue,
                "window": FRONT_WINDOW,
                "max_attempts": min(max_attempts, UNLIMITED),
                "limit": room,
            },
        )
        buried += [(row_id, Outcome(outcome)) for row_id, outcome in rows]
    return buried


# Where a claimed row has what; see ``claim_returning.sql``.
_STATUS, _TOKEN, _ATTEMPT, _RECOVERY, _RECLAIMS, _AGE, _AVAILABLE_AT, _ROUTED, _LEDGER = range(
    STORED_COLUMNS, STORED_COLUMNS + 9
)
_RECOVERIES = {str(policy): policy for policy in Recovery}


def _claim_params(terms: ClaimTerms) -> dict[str, Any]:
    return {
        "owner": storable(terms.owner),
        "lease": seconds(terms.lease),
        "max_attempts": min(terms.max_attempts, UNLIMITED),
        "is_probe": terms.is_probe,
    }


def _claimed(rows: Iterable[Row], terms: ClaimTerms) -> list[Claimed]:
    max_attempts, lease, owner = terms.max_attempts, terms.lease, terms.owner
    return [
        Claimed(
            Message.stored(row),
            row[_TOKEN],
            row[_ATTEMPT],
            max_attempts,
            _RECOVERIES[row[_RECOVERY]],
            lease,
            row[_AGE],
            row[_RECLAIMS],
            owner,
            row[_ROUTED],
            row[_LEDGER],
        )
        for row in sorted(rows, key=itemgetter(0))
        if row[_STATUS] == State.PROCESSING
    ]
