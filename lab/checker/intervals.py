"""Stretches of time, as sorted lists of (from, until) that do not overlap."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def merged(parts: Iterable[Interval]) -> list[Interval]:
    """Return the same times without overlaps."""
    found: list[Interval] = []
    for begin, end in sorted(parts):
        if begin >= end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def without(parts: Sequence[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """Return ``parts`` (as `merged` returns them) less the holes."""
    found: list[Interval] = []
    cuts = merged(holes)
    place = 0
    for begin, end in parts:
        while place < len(cuts) and cuts[place][1] <= begin:
            place += 1
        at, left = place, begin
        while at < len(cuts) and cuts[at][0] < end:
            if cuts[at][0] > left:
                found.append((left, cuts[at][0]))
            left = max(left, cuts[at][1])
            at += 1
        if left < end:
            found.append((left, end))
    return found


def common(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """Return the times that are in both."""
    found: list[Interval] = []
    left, right = 0, 0
    while left < len(one) and right < len(other):
        begin = max(one[left][0], other[right][0])
        end = min(one[left][1], other[right][1])
        if begin < end:
            found.append((begin, end))
        if one[left][1] < other[right][1]:
            left += 1
        else:
            right += 1
    return found


def clipped(parts: Sequence[Interval], within: Interval) -> Sequence[Interval]:
    """Return those that begin or end within a time, whole."""
    first = bisect.bisect_right(parts, within[0], key=lambda part: part[1])
    return parts[first : bisect.bisect_left(parts, within[1], key=lambda part: part[0])]


def longest(parts: Iterable[Interval]) -> int:
    """Return the length of the longest one, 0 for none."""
    return max((end - begin for begin, end in parts), default=0)
