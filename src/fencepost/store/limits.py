"""What one step of any operation asks of the database at most, whatever its caller wants."""

from __future__ import annotations

from datetime import timedelta

from fencepost.core.draft import MAX_DELAY

MAX_BATCH = 100_000
"""Rows that one step of anything takes."""


def seconds(delay: timedelta) -> float:
    """Return a duration as the database takes it: in seconds, neither negative nor past the last instant."""
    return min(max(delay, timedelta(0)), MAX_DELAY).total_seconds()
