"""Which ticks of a schedule are due, given how far it has come: no clock, no library, nothing remembered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

MISSED_AFTER = timedelta(minutes=1)
"""A tick that is older than this when somebody comes by was missed; what is younger is merely late."""

LARGEST_STEP = 100
"""Ticks that are enqueued in one transaction at most."""

_CLOSEST = timedelta(seconds=1)
"""No two ticks are closer together."""

After = Callable[[datetime], Iterator[datetime]]
"""Returns the ticks strictly after an instant, in their order."""


class CatchUp(StrEnum):
    """What becomes of ticks that were missed, as no worker ran."""

    LAST = "last"
    """One job for the latest of them, and none where a younger tick is due anyway."""
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Due:
    """Ticks to enqueue now.

    Args:
        ticks: in their order.
        last_tick: where the schedule stands once they are enqueued.
        has_more: the step is full; more may be due.
    """

    ticks: tuple[datetime, ...]
    last_tick: datetime
    has_more: bool = False


def due(after: After, last_tick: datetime, now: datetime, catch_up: CatchUp) -> Due:
    """Return the ticks in (``last_tick``, ``now``] that are to be enqueued.

    What was enqueued lies at or before ``last_tick``, so that no instant comes twice, whatever the clock does.
    """
    if catch_up is CatchUp.ALL:
        ticks = tuple(itertools.islice(_until(after(last_tick), now), LARGEST_STEP))
        return Due(ticks, ticks[-1] if ticks else last_tick, has_more=len(ticks) == LARGEST_STEP)
    edge = max(last_tick, now - MISSED_AFTER)
    ticks = tuple(_until(after(edge), now))
    if ticks:
        return Due(ticks, ticks[-1])
    missed = _latest(after, last_tick, edge)
    if missed is None:
        return Due((), last_tick)
    return Due((missed,) if catch_up is CatchUp.LAST else (), missed)


def _until(ticks: Iterator[datetime], now: datetime) -> Iterator[datetime]:
    return itertools.takewhile(lambda tick: tick <= now, ticks)


def _latest(after: After, low: datetime, high: datetime) -> datetime | None:
    """Return the last tick in (``low``, ``high``]: by halves, as millions may lie in between."""
    latest = next(_until(after(low), high), None)
    end = high  # there is none behind it
    while latest is not None and end - latest >= _CLOSEST:
        middle = latest + (end - latest) / 2
        tick = next(_until(after(middle), high), None)
        if tick is None:
            end = middle
        else:
            latest = tick
    return latest
