"""Durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_DURATION = re.compile("".join(f"(?:({_NUMBER}){unit})?" for unit in _UNITS))
_LONGEST = timedelta(days=36_500)


def parse_duration(text: str) -> timedelta:
    """Read ``10s``, ``5m``, ``1h30m``, ``7d``, ``250ms``, or a plain number of seconds.

    Raises:
        ValueError: anything else, or more than a hundred years.
    """
    written = text.strip()
    if re.fullmatch(_NUMBER, written):
        seconds = float(written)
    elif written and (match := _DURATION.fullmatch(written)):
        seconds = sum(float(count) * size for count, size in zip(match.groups("0"), _UNITS.values(), strict=True))
    else:
        raise ValueError(f"expected a duration such as 10s, 5m, 1h30m, 7d, 250ms or seconds, not {text!r}")
    if seconds > _LONGEST.total_seconds():
        raise ValueError(f"expected a duration below a hundred years, not {text!r}")
    return timedelta(microseconds=round(seconds * 1_000_000))


def format_duration(duration: timedelta) -> str:
    """Write a duration so that `parse_duration` reads it back."""
    left = round(duration / timedelta(microseconds=1))
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, round(_UNITS[unit] * 1_000_000))
        if count:
            parts.append(f"{count}{unit}")
    if left:
        parts.append(f"{left / 1_000:g}ms")
    return "".join(parts) or "0s"
