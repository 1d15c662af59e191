"""What a dispatcher counts while it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Plain totals since the dispatcher started; only the event loop's thread writes them."""

    claimed: int = 0
    reclaimed: int = 0
    delivered: int = 0
    verified: int = 0
    """Of the delivered: found at the receiver from an earlier attempt, and not published again."""
    retried: int = 0
    expanded: int = 0
    """Messages replaced by one for each of their destinations."""
    deferred: int = 0
    outages: int = 0
    """Failures while a breaker was open, whose attempts were given back."""
    dead: int = 0
    released: int = 0
    exhausted_at_claim: int = 0
    parked: int = 0
    """Messages put behind an earlier one of their ordering key that is not free."""
    reaped: int = 0
    lost_leases: int = 0
    delivered_but_lost: int = 0
    """Published, then found the lease lost: the message may be delivered twice, or stand as dead."""
    out_of_turn: int = 0
    """Published, then given back, since an earlier message of its key was lost: it will be delivered twice."""
    unexpected: int = 0
    timed_out: int = 0
    hung_threads: int = 0
    late_claims: int = 0
    finalize_failures: int = 0
    reconnects: int = 0
    stalls: int = 0
    """How often a publisher blocked the event loop for longer than it should."""

    def as_dict(self) -> dict[str, int]:
        """Return every total by name."""
        return asdict(self)
