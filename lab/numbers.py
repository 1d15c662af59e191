"""Numbers on the command lines of the lab: what makes no sense is refused before anything starts."""

from __future__ import annotations

import argparse
import math


def positive(text: str) -> int:
    """Read a whole number of 1 or more."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """Read a whole number of 0 or more."""
    return _whole(text, 0)


def some(text: str) -> float:
    """Read a number above 0, such as of minutes."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return found


def _whole(text: str, least: int) -> int:
    try:
        found = int(text)
    except ValueError:
        found = least - 1
    if found < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {least} or more")
    return found
