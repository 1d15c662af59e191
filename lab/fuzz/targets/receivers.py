"""Inbox and fence with odd ids, tokens, numbers and keys: what a small model answers, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from uuid import UUID

import psycopg

from fencepost import Fence, Inbox
from fencepost.errors import FencepostError, InvalidMessage, MessageConflict, SequenceGap
from lab.fuzz import values
from lab.fuzz.places import Places
from lab.fuzz.target import ACCEPTED, Case, Result, Target, failed, refused, unexpected

MOST = 2**63 - 1
NUMBERS = (0, 1, 2, 3, 4, 5, MOST, MOST - 1)
BAD_NUMBERS: tuple[Any, ...] = (-1, MOST + 1, 10**400, 1.0, "1", True, b"1", [], float("nan"))


def _number(chance: Random) -> Any:
    return chance.choice(BAD_NUMBERS) if values.often(chance, 0.15) else chance.choice(NUMBERS)


def _id(chance: Random, limit: int) -> Any:
    kind = chance.randrange(6)
    if kind == 0:
        return values.wrong_text(chance, limit)
    if kind == 1:
        return UUID(int=chance.randrange(3))
    if kind == 2:
        return values.some_text(chance)
    return chance.choice(("a", "b", "A", "a ", "é", "e\u0301", "x" * limit, "😀" * (limit // 4), "c"))


class Receivers(Target):
    name = "receivers"
    share = 6
    batch = 200

    @contextmanager
    def opened(self, places: Places) -> Iterator[None]:
        with psycopg.connect(places.database("receivers")) as self._conn:
            yield

    _conn: psycopg.Connection[Any]

    def case(self, chance: Random) -> Case:
        what = chance.choice(("accept", "accept", "sequence", "admit"))
        if what == "accept":
            body = chance.choice((None, None, b"1", b"2", bytearray(b"1"), memoryview(b"12")[::2], "1", 7))
            fence = chance.choice((None, _number(chance)))
            return {"what": what, "id": _id(chance, 512), "fence": fence, "body": body}
        if what == "sequence":
            gap, first = values.often(chance, 0.3), chance.choice((1, 1, None, _number(chance)))
            return {"what": what, "key": _id(chance, 2048), "number": _number(chance), "gap": gap, "first": first}
        return {"what": what, "resource": _id(chance, 2048), "token": _number(chance)}

    def judged(self, cases: Sequence[Case]) -> list[Result]:
        model = _Model()
        try:
            return [self._one(model, {"id": "a", "key": "a", "resource": "a", **case}) for case in cases]
        finally:
            self._conn.rollback()

    def _one(self, model: _Model, case: Case) -> Result:
        expected = model.expected(case)
        try:
            got = self._asked(case)
        except FencepostError as error:
            got = type(error).__name__
        except Exception as error:  # noqa: BLE001 - the finding
            self._conn.rollback()
            model.forget()
            return unexpected(error)
        self._conn.execute("SELECT 1")  # fails where the transaction is spoilt
        if got != expected:
            return failed("another answer", f"{got} instead of {expected}")
        return refused(got) if got == InvalidMessage.__name__ else ACCEPTED

    def _asked(self, case: Case) -> str:
        inbox = Inbox("fuzz")
        if case.get("what") == "sequence":
            asked = inbox.accept_in_sequence(
                self._conn, case["key"], case.get("number", 1), case.get("gap", False), case.get("first", 1)
            )
            return asked.name
        if case.get("what") == "admit":
            return str(bool(Fence("fuzz").admit(self._conn, case["resource"], case.get("token", 1))))
        return inbox.accept(self._conn, case["id"], case.get("fence"), case.get("body")).name


class _Model:
    """What must be answered."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as after a rollback."""
        self._accepted: dict[str, tuple[int | None, bytes | None]] = {}
        self._last: dict[str, int] = {}
        self._newest: dict[str, int] = {}

    def expected(self, case: Case) -> str:
        """Return the name of an answer or an error."""
        judge: dict[str, Callable[[Case], str]] = {"sequence": self._sequence, "admit": self._admit}
        return judge.get(case.get("what", ""), self._accept)(case)

    def _accept(self, case: Case) -> str:
        fence, body = case.get("fence"), case.get("body")
        name = str(case["id"]) if isinstance(case["id"], UUID) else case["id"]
        is_body = body is None or isinstance(body, bytes | bytearray | memoryview)
        if not _is_text(name, 512) or not (fence is None or _is_number(fence, 0)) or not is_body:
            return InvalidMessage.__name__
        digest = None if body is None else bytes(body)
        if name not in self._accepted:
            self._accepted[name] = fence, digest
            return "ACCEPTED"
        before, known = self._accepted[name]
        if None not in (digest, known) and digest != known:
            return MessageConflict.__name__
        return "STALE" if fence is not None and before is not None and fence < before else "REPEAT"

    def _sequence(self, case: Case) -> str:
        number, first = case.get("number", 1), case.get("first", 1)
        is_sound = (
            _is_text(case["key"], 2048) and _is_number(number, 1) and (first is None or _is_number(first, 1))
        )
        if not is_sound:
            return InvalidMessage.__name__
        last = self._last.get(case["key"], None if first is None else first - 1)
        if last is not None and number <= last:
            return "REPEAT"
        if last is not None and number > last + 1 and not case.get("gap", False):
            return SequenceGap.__name__
        self._last[case["key"]] = number
        return "ACCEPTED"

    def _admit(self, case: Case) -> str:
        token = case.get("token", 1)
        if not _is_text(case["resource"], 2048) or not _is_number(token, 0):
            return InvalidMessage.__name__
        newest = self._newest[case["resource"]] = max(token, self._newest.get(case["resource"], 0))
        return str(token >= newest)


def _is_text(value: object, most: int) -> bool:
    if not isinstance(value, str) or not value or "\x00" in value:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value) and len(value.encode()) <= most


def _is_number(value: object, least: int) -> bool:
    return type(value) is int and least <= value <= MOST
