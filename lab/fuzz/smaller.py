"""Make a failing case smaller: while a smaller one fails in the same way, it takes the place of the larger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

MOST_TRIES = 300
MOST_SECONDS = 8.0


def smaller(case: Any, fails: Callable[[Any], bool]) -> Any:
    """Return the smallest case found for which ``fails`` is still true."""
    ends = time.monotonic() + MOST_SECONDS
    tries = 0
    found = True
    while found:
        found = False
        for candidate in reductions(case):
            tries += 1
            if tries > MOST_TRIES or time.monotonic() > ends:
                return case
            if fails(candidate):
                case, found = candidate, True
                break
    return case


def reductions(value: Any) -> Iterator[Any]:
    """Yield what is a little less than a value, the largest steps first."""
    if isinstance(value, dict):
        yield from ({name: one for name, one in value.items() if name != left} for left in value)
        for name, one in value.items():
            yield from ({**value, name: less} for less in reductions(one))
    elif type(value) in (list, tuple):
        yield from (type(value)(each) for each in _cut(list(value)))
        for at, one in enumerate(value):
            yield from (type(value)([*value[:at], less, *value[at + 1 :]]) for less in reductions(one))
    elif isinstance(value, str | bytes):
        yield from (type(value)(each) for each in _cut(value))
        if isinstance(value, str) and any(char not in "aA" for char in value) and len(value) <= 20:
            yield from (
                type(value)(value[:at] + "a" + value[at + 1 :])
                for at, char in enumerate(value)
                if char not in "aA"
            )
    elif type(value) is int and abs(value) > 1:
        yield from (0, 1, value // 2)


def _cut(value: Any) -> Iterator[Any]:
    """Yield a sequence without a half, a quarter, … or one of its parts."""
    size = len(value)
    step = size
    while step >= 1:
        for start in range(0, size, step):
            yield value[:start] + value[start + step :]
        step //= 2
        if size // max(step, 1) > 64:
            return
