"""The breakers of queues, which all workers share, as operations.

Open, half-open, closed as in M. Nygard, "Release It!", 2007. Whoever is first to see an outage opens; while it is
open, nothing of the queue is claimed. When a probe is due, one worker takes the right to it, claims one message
past the breaker, and closes or opens it again by what became of that. Every change raises the version, and what a
probe brought is written only behind the version it was given.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from fencepost.core.error_text import storable
from fencepost.core.operation import Operation, Rows
from fencepost.store.catalog import Catalog
from fencepost.store.limits import seconds
from fencepost.store.outbox import ClaimResult, ClaimTerms, claim, claim_suspects


def open_breaker(catalog: Catalog, queue: str, *, pause: timedelta, error: str) -> Operation[bool]:
    """Open the breaker of a queue; return False where it was open already.

    Args:
        pause: time until the first probe.
        error: the failure that opened it, for people.
    """
    params = {"queue": queue, "pause": seconds(pause), "error": storable(error)}
    return bool((yield catalog.statement("breaker_open", params)))


def note_unavailable(
    catalog: Catalog, queue: str, *, threshold: int, pause: timedelta, error: str
) -> Operation[bool]:
    """Count a failure to reach the destination, over all workers, and open the breaker at the threshold.

    In a quiet queue no worker alone sees enough of them: each of many gets the only message now and then.

    Returns:
        Whether that opened the breaker.
    """
    rows = yield catalog.statement("breaker_failed", {"queue": queue})
    if not rows or rows[0][0] < threshold:
        return False
    return (yield from open_breaker(catalog, queue, pause=pause, error=error))


def note_delivered(catalog: Catalog, queue: str) -> Operation[None]:
    """Something was delivered: failures are counted from the first on again."""
    yield catalog.statement("breaker_delivered", {"queue": queue})


def take_probe(catalog: Catalog, queue: str, *, patience: timedelta) -> Operation[int | None]:
    """Take the right to one probe; return the breaker's version, or None where none is due.

    Args:
        patience: time after which somebody else may probe, whatever became of us.
    """
    rows = yield catalog.statement("breaker_probe", {"queue": queue, "patience": seconds(patience)})
    return rows[0][0] if rows else None


def claim_probe(
    catalog: Catalog, terms: ClaimTerms, queue: str, *, patience: timedelta
) -> Operation[tuple[ClaimResult, int | None]]:
    """Claim one message past an open breaker, if a probe is due; needs a transaction around it.

    Args:
        terms: of the claim.
        patience: as for `take_probe`.

    Returns:
        What was claimed, and the breaker's version for what becomes of it; None where no probe is due.
    """
    version = yield from take_probe(catalog, queue, patience=patience)
    if version is None:
        return ClaimResult([]), None
    terms = replace(terms, is_probe=True)
    found = yield from claim(catalog, terms, queues=[queue], batch=1)
    if not found.claimed:
        found = yield from claim_suspects(catalog, terms, queues=[queue])
    if not found.claimed:
        # Nothing is due: the next message that is must not wait for our patience.
        yield from reopen_breaker(catalog, queue, version=version, pause=timedelta(0), error=None)
    return found, version


def close_breaker(catalog: Catalog, queue: str, *, version: int | None, notify: bool) -> Operation[bool]:
    """Close the breaker after a good probe; return whether it was ours to close.

    Args:
        version: what `take_probe` returned; None closes it whatever happened, which is an operator's right.
        notify: wake the workers.
    """
    rows: Rows = yield catalog.statement("breaker_close", {"queue": queue, "version": version})
    if rows and notify:
        yield catalog.statement("notify", {"channel": catalog.names.channel})
    return bool(rows)


def reopen_breaker(
    catalog: Catalog, queue: str, *, version: int, pause: timedelta, error: str | None
) -> Operation[bool]:
    """Wait for the next probe; return whether it was ours to say.

    Args:
        version: what `take_probe` returned.
        pause: time until the next probe.
        error: why the probe failed; None where it told nothing.
    """
    params = {
        "queue": queue,
        "version": version,
        "pause": seconds(pause),
        "trips": 0 if error is None else 1,
        "error": None if error is None else storable(error),
    }
    return bool((yield catalog.statement("breaker_reopen", params)))
