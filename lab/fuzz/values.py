"""Odd values from a seed: text, JSON, bytes, things of the wrong type, and good examples that were damaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any, TypeVar
from uuid import UUID

T = TypeVar("T")

WORDS = ("order.created", "a", "shop.order.paid", "default", "42", "x-y_z", "Über", "日本", "😀", "é", " a b ")
TRAPS = (
    *(
        "",
        " ",
        "\n",
        "\t",
        "\r\n",
        "%",
        "%41",
        "%zz",
        "%00",
        "'",
        '"',
        "\\",
        "\\u0000",
        "\\\\u0000",
        "`",
        "{}",
        "{key}",
    ),
    *(
        "{event_type!r}",
        "${x}",
        "%s",
        "%(a)s",
        "$1",
        "NULL",
        "null",
        "true",
        "NaN",
        "-0",
        "1e400",
        "0x10",
        "\u2028",
    ),
    *(
        "\u202e",
        "e\u0301",
        "\ufeff",
        "\ufffe",
        "\uffff",
        "\U0001ffff",
        "\x1b[31m",
        "\x7f",
        "\x85",
        "--",
        ";",
        "/*",
    ),
    *(
        "a=b",
        "a:b",
        "a,b",
        "a/b",
        "..",
        "*",
        ">",
        "#",
        "+",
        "$SYS/x",
        "amq.x",
        "_",
        "[]",
        '["a","b"]',
        "1-1",
        "∞",
        "İ",
    ),
)
NEVER = ("\x00", "a\x00b", "\ud800", "\udfff", "x\udc80", "\ud83d", "\x00" * 50)
"""What no store can keep."""
KEYS = ("a", "b", "1", "", " ", "é", "😀", "__proto__", "$ref", "a.b", "a" * 300)
NUMBERS = (0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400)
FLOATS = (0.0, -0.0, 0.1, 1e308, 5e-324, 1e16, 1.7976931348623157e308, -1.5, 123456789.123456789)
BAD_FLOATS = (math.nan, math.inf, -math.inf)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def often(chance: Random, share: float) -> bool:
    """Return True in this share of cases."""
    return chance.random() < share


def text(chance: Random, most: int = 40) -> str:
    """Return text that every store can keep; rarely of no character."""
    kind = chance.randrange(7)
    if kind < 2:
        return chance.choice(WORDS)[:most]
    if kind == 2:
        return chance.choice(TRAPS)[:most]
    if kind == 3:
        return "".join(chr(chance.randrange(1, 128)) for _ in range(chance.randrange(1, most + 1)))
    if kind == 4:
        return "".join(_any_char(chance) for _ in range(chance.randrange(1, most + 1)))
    if kind == 5:
        return chance.choice(("x", "é", "😀", " ", "%", '"', "\\", "\x01")) * chance.randrange(1, most + 1)
    return "".join(chance.choice((*WORDS, *TRAPS)) for _ in range(chance.randrange(1, 5)))[:most]


def some_text(chance: Random, most: int = 40) -> str:
    """Return text that is not empty."""
    return text(chance, most) or "x"


def _any_char(chance: Random) -> str:
    while True:
        code = chance.choice(
            (chance.randrange(1, 0x300), chance.randrange(1, 0x10000), chance.randrange(0x110000))
        )
        if code and not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def wrong_text(chance: Random, limit: int) -> Any:
    """Return what must be refused where text of 1 to ``limit`` bytes is wanted."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(NEVER)[: max(2, limit)]
    if kind == 1:
        return some_text(chance, 10) + chance.choice(NEVER)
    if kind == 2:
        return chance.choice(("", "x" * (limit + 1), "é" * (limit // 2 + 1), "😀" * (limit // 4 + 1)))
    return not_text(chance)


def not_text(chance: Random) -> Any:
    """Return a value of another type."""
    return chance.choice(
        (0, 7, 1.5, True, b"a", ["a"], ("a",), {"a": "b"}, object, UUID(int=5), datetime(2030, 1, 1, tzinfo=UTC))
    )


def ascii_name(chance: Random, most: int = 20) -> str:
    """Return a name of letters, digits and a few signs."""
    letters = "abcXYZ019_.:-"
    return "".join(chance.choice(letters) for _ in range(chance.randrange(1, most + 1)))


def data(chance: Random, most: int = 200) -> bytes:
    """Return bytes, often not UTF-8."""
    kind = chance.randrange(5)
    if kind == 0:
        return chance.choice(
            (b"", b"\x00", b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"{}", b"null", b"\xef\xbb\xbf{}")
        )
    if kind == 1:
        return text(chance, most).encode()
    if kind == 2:
        return bytes(range(256)) * chance.randrange(1, 3)
    return chance.randbytes(chance.randrange(most))


def json_value(chance: Random, depth: int = 4) -> Any:
    """Return a value that JSON can hold and every store can keep."""
    kind = chance.randrange(8 if depth else 6)
    if kind == 0:
        return chance.choice((None, True, False))
    if kind == 1:
        return chance.choice((*NUMBERS, chance.randrange(-1000, 1000)))
    if kind == 2:
        return chance.choice((*FLOATS, chance.uniform(-1e9, 1e9)))
    if kind <= 5:
        return text(chance)
    size = chance.randrange(5)
    if kind == 6:
        items = [json_value(chance, depth - 1) for _ in range(size)]
        return tuple(items) if often(chance, 0.2) else items
    return {_json_key(chance): json_value(chance, depth - 1) for _ in range(size)}


def _json_key(chance: Random) -> Any:
    if often(chance, 0.1):
        return chance.choice((1, 1.5, None, True))
    return chance.choice(KEYS) if often(chance, 0.5) else text(chance, 12)


def nested(levels: int) -> Any:
    """Return lists and objects in one another."""
    value: Any = []
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return value


def bad_json_value(chance: Random) -> Any:
    """Return a value that no JSON in a store can hold, somewhere inside of a good one."""
    bad = chance.choice(
        (
            *BAD_FLOATS,
            *NEVER,
            {"\ud800": 1},
            {"a\x00": 1},
            b"x",
            {1, 2},
            object(),
            nested(501),
            1j,
            {(1,): 2},
            UUID(int=3),
        )
    )
    for _ in range(chance.randrange(isinstance(bad, bytes), 4)):  # bytes alone are a payload of their own
        bad = [json_value(chance, 1), bad] if often(chance, 0.5) else {"k": bad, "z": json_value(chance, 1)}
    return bad


def damaged(chance: Random, good: bytes, times: int = 3) -> bytes:
    """Return a good example with a few changes: bits, cuts, repeats, insertions."""
    found = bytearray(good)
    for _ in range(chance.randrange(1, times + 1)):
        at = chance.randrange(len(found) + 1)
        end = min(len(found), at + chance.choice((1, 1, 2, 8, 50)))
        kind = chance.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[at:end]
        elif kind == 2:
            found[at:at] = found[at:end] * chance.choice((1, 1, 30))
        elif kind == 3:
            found[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif kind == 4:
            del found[at:]
        elif kind == 5:
            found[at:end] = chance.choice(
                (b"\x00", b"\r\n", b"\n", b"\xff", b" ", b"-1", b"9" * 30, b'"', b"", b":")
            )
        else:
            other = chance.randrange(len(found) + 1)
            found[at:at] = found[other : other + 20]
    return bytes(found)


def damaged_text(chance: Random, good: str, times: int = 3) -> str:
    """Return a good example of text with a few changes."""
    found = list(good)
    for _ in range(chance.randrange(1, times + 1)):
        at = chance.randrange(len(found) + 1)
        end = min(len(found), at + chance.choice((1, 1, 3, 10)))
        kind = chance.randrange(4)
        if kind == 0:
            del found[at:end]
        elif kind == 1:
            found[at:end] = chance.choice((*TRAPS, *WORDS))
        elif kind == 2:
            found[at:at] = found[at:end] * chance.choice((1, 2, 40))
        else:
            found[at:at] = chance.choice((_any_char(chance), "\n", "=", ":", "/", "-", "9", "@", "%"))
    return "".join(found)


def instant(chance: Random) -> datetime:
    """Return an aware instant that a message can be due at."""
    zone = timezone(timedelta(minutes=chance.randrange(-1439, 1440), seconds=chance.choice((0, 0, 0, 17))))
    moment = datetime(1900, 1, 2, tzinfo=UTC) + timedelta(
        days=chance.randrange(2_592_900), microseconds=chance.randrange(86_400_000_000)
    )
    return moment.astimezone(zone)


def pick(chance: Random, makers: Sequence[Callable[[Random], T]]) -> T:
    """Return what one of the makers makes."""
    return chance.choice(makers)(chance)
