"""Whole numbers that come in from outside."""

from __future__ import annotations

from fencepost.errors import InvalidMessage

MAX_NUMBER = 2**63 - 1
"""Of fencing tokens and sequence numbers: PostgreSQL's bigint."""


def checked_number(name: str, value: object, *, least: int) -> int:
    """Return a whole number that fits a bigint.

    Raises:
        InvalidMessage: it is none, or out of range.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_NUMBER:
        raise InvalidMessage(f"{name} must be a whole number from {least} to {MAX_NUMBER}, not {value!r}")
    return int(value)
