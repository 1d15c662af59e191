"""Stored JSON text put into other JSON as it is: its numbers, key order, repeated keys and spelling unchanged."""

from __future__ import annotations

import json
from typing import NoReturn


def is_strict_json(payload: bytes) -> bool:
    """Tell whether this is JSON (RFC 8259) in UTF-8, so that it can stand in other JSON byte for byte."""
    try:
        json.loads(payload.decode("utf-8"), parse_constant=_refuse_constant, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads although they are not JSON (RFC 8259, section 6)."""
    raise ValueError(name)
