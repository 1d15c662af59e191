"""Retry delays: full jitter, safe for any attempt number.

Source of the formula: Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015
("Full Jitter": uniform in [0, min(cap, base * 2**attempt)]).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """The base and the cap of the exponential window."""

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(seconds=300)

    def window(self, attempts: int) -> timedelta:
        """Return the upper end of the window after ``attempts`` claims: ``min(cap, base * 2**attempts)``.

        The comparison is made on the exponent first, since ``2.0**1024`` overflows and an operator may
        have let a message run for thousands of attempts.
        """
        doublings = max(0, attempts)
        base, cap = self.base.total_seconds(), self.cap.total_seconds()
        if doublings >= 64 or base * float(2**doublings) >= cap:
            return self.cap
        return timedelta(seconds=base * 2**doublings)

    def delay(self, attempts: int, fraction: float) -> timedelta:
        """Return the delay at ``fraction`` (0 to 1, drawn uniformly by the caller) of the window."""
        return self.window(attempts) * min(1.0, max(0.0, fraction))
