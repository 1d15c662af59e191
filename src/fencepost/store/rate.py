"""Claims within the rate of a queue, which all dispatchers share, as operations."""

from __future__ import annotations

from collections.abc import Callable

from fencepost.core.operation import Operation
from fencepost.store.catalog import Catalog
from fencepost.store.outbox import ClaimOperation, ClaimResult


def claim_within_rate(
    catalog: Catalog, queue: str, wanted: int, claim: Callable[[int], ClaimOperation]
) -> Operation[tuple[ClaimResult, bool]]:
    """Claim as many as the rate leaves, and charge it; needs a transaction around it.

    The queue's row is locked meanwhile, so that together dispatchers never take more; who finds it locked takes
    nothing, and comes again.

    Args:
        wanted: how many to claim at most.
        claim: makes the claim of a number of messages.

    Returns:
        What was claimed, and whether it would have been more but for the rate.
    """
    rows = yield catalog.statement("rate_hold", {"queue": queue})
    # No row: the rate was taken away meanwhile. Null: somebody else has it.
    allowed = min(wanted, rows[0][0] or 0) if rows else wanted
    if allowed < 1:
        return ClaimResult([]), True
    result = yield from claim(allowed)
    if result.claimed:
        yield catalog.statement("rate_spend", {"queue": queue, "messages": len(result.claimed)})
    # Where less was there than the rate left, there is nothing to wait for.
    return result, len(result.claimed) >= allowed and allowed < wanted
