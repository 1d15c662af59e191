"""PostgreSQL's own hash of a text, by which the order of locks is chosen: two who want several wait in that order.

Source: ``hash_bytes_extended`` of PostgreSQL's ``src/common/hashfn.c``, after Bob Jenkins' lookup3.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF


def hashtextextended(text: str, seed: int) -> int:
    """Return what the function of that name returns, a signed number of 64 bits."""
    data = text.encode()
    a = b = c = (0x9E3779B9 + len(data) + 3923095) & _MASK
    if seed:
        a, b, c = _mixed(a + (seed >> 32), b + seed, c)
    while len(data) >= 12:
        a, b, c = _mixed(a + _number(data[:4]), b + _number(data[4:8]), c + _number(data[8:12]))
        data = data[12:]
    # The lowest byte of the third is left to the length.
    a, b, c = a + _number(data[:4]), b + _number(data[4:8]), c + (_number(data[8:]) << 8)
    b, c = _final(a & _MASK, b & _MASK, c & _MASK)
    found = b << 32 | c
    return found - (1 << 64) if found >> 63 else found


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    a, b, c = a & _MASK, b & _MASK, c & _MASK
    for bits in ((4, 6, 8), (16, 19, 4)):
        a = (a - c & _MASK) ^ _turned(c, bits[0])
        c = c + b & _MASK
        b = (b - a & _MASK) ^ _turned(a, bits[1])
        a = a + c & _MASK
        c = (c - b & _MASK) ^ _turned(b, bits[2])
        b = b + a & _MASK
    return a, b, c


def _final(a: int, b: int, c: int) -> tuple[int, int]:
    c = (c ^ b) - _turned(b, 14) & _MASK
    a = (a ^ c) - _turned(c, 11) & _MASK
    b = (b ^ a) - _turned(a, 25) & _MASK
    c = (c ^ b) - _turned(b, 16) & _MASK
    a = (a ^ c) - _turned(c, 4) & _MASK
    b = (b ^ a) - _turned(a, 14) & _MASK
    c = (c ^ b) - _turned(b, 24) & _MASK
    return b, c
