"""A floor under the scan of a claim: where nothing due is likely to lie below, it need not look.

While any old snapshot is open, PostgreSQL keeps the index entries of finished messages, and each claim would walk
over all of them. Claims take what is due in the order of ``available_at``, so the smallest one that the last claim
took is a good place to begin. It is a guess: a transaction that commits late, and a message that is given back or
promoted, may stand below it. So the floor lags behind, and claims without one come often enough to find them.
Nothing depends on it but speed.
"""

from __future__ import annotations

from collections import deque

LAG = 0.1
"""Seconds by which the floor lags: what commits this late is found by the very next claim."""

LOOK_EVERYWHERE = 1.0
"""Seconds after which a claim looks everywhere, whatever the others found."""

SHARE = 10
"""A look everywhere that took t seconds is not followed by another one within SHARE * t seconds."""

EVERYWHERE = 0


class ScanFloor:
    """The floor of one queue in one worker; instants are seconds on the caller's monotonic clock."""

    def __init__(self) -> None:
        self._floor = EVERYWHERE
        self._later: deque[tuple[float, int]] = deque()
        self._looked_at = -LOOK_EVERYWHERE
        self._rest_until = 0.0

    def choose(self, now: float) -> int:
        """Return where the next claim begins, in microseconds since 1970; 0 is everywhere."""
        if now >= max(self._looked_at + LOOK_EVERYWHERE, self._rest_until):
            return EVERYWHERE
        while self._later and self._later[0][0] <= now - LAG:
            self._floor = self._later.popleft()[1]
        return self._floor

    def may_look_everywhere(self, now: float) -> bool:
        """Tell whether a claim that found nothing above the floor may be followed by one without."""
        return now >= self._rest_until

    def looked(self, floor: int, lowest: int | None, began: float, ended: float) -> None:
        """Note a claim.

        Args:
            floor: where it began.
            lowest: the smallest ``available_at`` that it took; None where it took nothing.
            began, ended: when it was sent and answered.
        """
        if floor == EVERYWHERE:
            self._looked_at = ended
            self._rest_until = ended + SHARE * (ended - began)
        if lowest is not None and (not self._later or self._later[-1][0] <= ended - LAG / 8):
            self._later.append((ended, lowest))

    def reset(self) -> None:
        """Look everywhere next: something was put below the floor."""
        self._looked_at = -LOOK_EVERYWHERE
        self._rest_until = 0.0
