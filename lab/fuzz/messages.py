"""Messages for producers: mostly good ones, and ones with a fault that must be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from fencepost import JsonText
from lab.fuzz import values

GOOD, BAD = "must be accepted", "must be refused"

Options = dict[str, Any]


def message(chance: Random) -> dict[str, Any]:
    """Return a case: the arguments of ``enqueue``, and what must become of them."""
    made: dict[str, Any] = {"event_type": values.some_text(chance), "payload": payload(chance), "expected": GOOD}
    made["options"] = options(chance)
    if not _is_short(made):
        made["expected"] = None  # where a limit lies, draft decides
    if values.often(chance, 0.4):
        _spoil(chance, made)
    return made


def payload(chance: Random) -> Any:
    """Return a payload that must be kept."""
    kind = chance.randrange(12)
    if kind == 0:
        return values.data(chance)
    if kind == 1:
        return chance.choice((bytearray, memoryview))(values.data(chance))
    if kind == 2:
        return JsonText(json_text(chance))
    if kind == 3 and values.often(chance, 0.02):
        return "x" * chance.randrange(100_000, 3_000_000)
    if kind == 4 and values.often(chance, 0.2):
        return values.nested(chance.choice((2, 100, 499, 500)))
    return values.json_value(chance)


def json_text(chance: Random) -> str:
    """Return JSON text that is not how Python would write it."""
    return chance.choice(
        (
            ' {"a": 1,  "a": 2}\n',
            "1e400",
            "-0",
            "1.000000000000000000000000000001",
            '"\\u00e9\\ud83d\\ude00"',
            '"\\\\u0000"',
            "\t[ ]\r\n",
            "123456789012345678901234567890",
            '{"\\u0061":"a","a":"b"}',
            "[" * 500 + "]" * 500,
            json.dumps(values.json_value(chance, 2), indent=chance.randrange(4)),
        )
    )


def options(chance: Random) -> Options:
    """Return options that must be taken, each one rarely."""
    found: Options = {}
    makers: dict[str, Callable[[], Any]] = {
        "headers": lambda: headers(chance),
        "aggregate": lambda: (values.some_text(chance), values.some_text(chance)),
        "ordering_key": lambda: values.some_text(chance),
        "queue": lambda: values.ascii_name(chance),
        "dedupe_key": lambda: values.some_text(chance) + str(chance.random()),
        "message_id": lambda: UUID(int=chance.getrandbits(128)),
        "recovery": lambda: chance.choice(("auto", "manual", "verify")),
        "content_type": lambda: chance.choice(("text/plain", "application/json", "x" * 255, "~", "a/b; c=d")),
    }
    for name, make in makers.items():
        if values.often(chance, 0.2):
            found[name] = make()
    if "aggregate" in found and values.often(chance, 0.3):
        found["ordered"] = True
    if values.often(chance, 0.15):
        found |= chance.choice(
            (
                {"delay": timedelta(microseconds=chance.randrange(10 ** chance.randrange(1, 15)))},
                {"available_at": values.instant(chance)},
            )
        )
    return found


def headers(chance: Random) -> dict[str, str]:
    """Return headers that must be kept."""
    return {values.some_text(chance): values.text(chance) for _ in range(chance.randrange(4))}


def _is_short(made: dict[str, Any]) -> bool:
    """Tell whether a message is far from every limit: a text of 40 characters has 160 bytes at most."""
    pair = made["options"].get("aggregate", ())
    return len(json.dumps(pair)) < 500


def _spoil(chance: Random, made: dict[str, Any]) -> None:
    """Put one fault into a message."""
    found: Options = made["options"]
    wrong: dict[str, Callable[[], Any]] = {
        "headers": lambda: bad_headers(chance),
        "aggregate": lambda: chance.choice(
            (
                "a",
                ("a",),
                ["a", "b"],
                ("a", values.wrong_text(chance, 1024)),
                (values.wrong_text(chance, 255), "b"),
                {},
            )
        ),
        "ordering_key": lambda: values.wrong_text(chance, 2048),
        "queue": lambda: chance.choice(("a b", "é", "a\n", "a/b", values.wrong_text(chance, 100))),
        "dedupe_key": lambda: values.wrong_text(chance, 1024),
        "message_id": lambda: chance.choice(("x", 7, str(UUID(int=7)), b"x" * 16, object())),
        "recovery": lambda: chance.choice(("Auto", "maybe", "", 1, ["auto"], {"auto": 1}, b"auto", "\ud800")),
        "content_type": lambda: chance.choice(("a\r\nb", "é", *values.NEVER, values.wrong_text(chance, 255))),
        "delay": lambda: chance.choice(
            (-timedelta(microseconds=1), timedelta.max, timedelta.min, 5, 1.5, "1s", True)
        ),
        "available_at": lambda: chance.choice(
            (
                datetime(2030, 1, 1),  # noqa: DTZ001 - one of the faults
                *(datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)),
                *(datetime(9000, 1, 1, tzinfo=UTC), "2030-01-01", 0, UUID(int=1)),
            )
        ),
        "ordered": lambda: chance.choice((1, "yes", [], 0)),
    }
    kind = chance.randrange(len(wrong) + 4)
    if kind < len(wrong):
        name = list(wrong)[kind]
        found[name] = wrong[name]()
    elif kind == len(wrong):
        made["event_type"] = values.wrong_text(chance, 255)
    else:
        made["payload"] = bad_payload(chance)
    made["expected"] = BAD


def bad_payload(chance: Random) -> Any:
    """Return a payload that must be refused."""
    kind = chance.randrange(8)
    if kind == 0:
        return JsonText(
            chance.choice(("{", "", "nan", "NaN", "[Infinity]", '"\\ud800"', '"\\u0000"', "{'a':1}", "1 2"))
        )
    if kind == 1:
        return JsonText(
            chance.choice(("[" * 501 + "]" * 501, '"\x00"', '"\n"', "01", '{"a":1,}', "\ufeff1", "[" * 90_000))
        )
    if kind == 2 and values.often(chance, 0.05):
        return b"x" * (16 * 1024 * 1024 + 1)
    return values.bad_json_value(chance)


def bad_headers(chance: Random) -> Any:
    """Return headers that must be refused."""
    return chance.choice(
        (
            *([("a", "b")], "a", 7, {"a": 1}, {"a": None}, {1: "a"}, {"": "a"}, {"a": "x" * 65_536}, {"a": b"b"}),
            {"a": "b", "c": chance.choice(values.NEVER)},
            {chance.choice(values.NEVER): "b"},
            {"a": {"b": "c"}},
        )
    )
