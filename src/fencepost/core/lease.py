"""Leases as a worker sees them, and the only place that decides "lost".

The database's clock decides who may take a row over; its instants never reach a worker. A worker counts the
lease from the moment *before* it sent the claim or the heartbeat, on its own monotonic clock, so its window
of trust always ends before the database's lease does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """How long a worker may believe that a row is still its own, in seconds on its monotonic clock."""

    sent_at: float
    lease: float

    def remaining(self, now: float) -> float:
        """Return the seconds of lease left at ``now``, never below 0."""
        return max(0.0, self.sent_at + self.lease - now)

    def is_over(self, now: float) -> bool:
        """Tell whether the lease may have ended; the token in the database has the last word."""
        return self.remaining(now) <= 0.0


def lost(asked: Iterable[int], kept: Collection[int]) -> frozenset[int]:
    """Return the ids whose lease is lost: asked for under our token, and not confirmed by the database."""
    return frozenset(asked).difference(kept)


def timing_problems(
    *, lease: timedelta, heartbeat: timedelta, publish_timeout: timedelta
) -> list[tuple[str, str]]:
    """Return (setting, what is wrong and what to do) for each combination that cannot work.

    Two beats must be able to go missing before a lease ends, hence a third of the lease; and a publish must
    be over, or timed out, before anybody else may take the row.
    """
    problems = []
    if heartbeat > lease / 3:
        problems.append(
            (
                "heartbeat",
                f"a heartbeat every {heartbeat.total_seconds():g} s is too slow for a lease of "
                f"{lease.total_seconds():g} s: it must be at most a third of it; lower heartbeat or raise lease",
            )
        )
    if publish_timeout >= lease:
        problems.append(
            (
                "publish_timeout",
                f"a publish may take {publish_timeout.total_seconds():g} s but the lease ends after "
                f"{lease.total_seconds():g} s: its verdict would come too late; "
                "lower publish_timeout or raise lease",
            )
        )
    return problems
