"""An HTTP receiver that answers garbage: whatever it says, the publish ends in time, and as it should."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from tests.acceptor import Acceptor

from fencepost.core.records import Message
from fencepost.publishers.http.publisher import HttpPublisher
from lab.fuzz import values
from lab.fuzz.answers import DELIVERED, TIMEOUT, Answers, Lane, as_result, how_it_is_sent, send
from lab.fuzz.places import Places
from lab.fuzz.target import Case, Result, against_case, failed

HEALTHY = b"HTTP/1.1 204 No Content\r\n\r\n"
STATUSES = (
    100,
    101,
    103,
    199,
    200,
    201,
    202,
    204,
    226,
    299,
    300,
    301,
    304,
    307,
    400,
    401,
    404,
    408,
    410,
    425,
    429,
)
MORE_STATUSES = (431, 451, 499, 500, 502, 503, 504, 599, 600, 700, 999)
RETRY_AFTER = (
    *(
        "0",
        "1",
        "120",
        "9" * 400,
        "-1",
        "1.5",
        "+5",
        "Wed, 21 Oct 2099 07:28:00 GMT",
        "Wed, 21 Oct 1970 07:28:00 GMT",
    ),
    *(
        "Wed, 21 Oct 99999 07:28:00 GMT",
        "Fri, 31 Feb 2031 25:61:61 GMT",
        "Mon, 1 Jan 2035 00:00:00 -0000",
        "",
        "soon",
    ),
    *(
        "Mon, 1 Jan 2035 00:00:00 +9999",
        "Mon, 1 Jan 0000 00:00:00 GMT",
        "１２",
        "1 ; 2",
        "(comment",
        '"x"',
        "9999999999999999999",
    ),
)
PERMANENT = frozenset({300, 301, 304, 307, 400, 404, 410, 431, 451, 499})
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9]{2}(?: [^\r\n]*)?\r?\n(?:[^\r\n]+\r?\n)*\r?\n")
_SUCCESS = re.compile(rb"HTTP/1\.[01] 2[0-9]{2}(?: [^\r\n]*)?\r?\n")


class HttpAnswers(Answers):
    name = "http-answers"
    share = 5
    batch = 200
    lanes = 20

    async def lane(self, stack: AsyncExitStack, places: Places, number: int) -> Lane:
        server = _Receiver()
        await stack.enter_async_context(server.acceptor)
        url = f"http://127.0.0.1:{server.acceptor.port}/?allow_private=on&timeout={TIMEOUT}"
        server.lane = Lane(HttpPublisher(url))
        return server.lane

    def case(self, chance: Random) -> Case:
        status = chance.choice(STATUSES + MORE_STATUSES)
        answer = _answer(chance, status)
        is_whole = not values.often(chance, 0.6)
        if not is_whole:
            answer = values.damaged(chance, answer) if values.often(chance, 0.9) else values.data(chance)
        return {"answer": answer, "status": status if is_whole else None, **how_it_is_sent(chance, len(answer))}

    def is_calm(self, case: Case) -> bool:
        return case.get("status") is not None and case.get("end") is None

    async def verdict(self, lane: Lane, case: Case, message: Message, outcome: str) -> Result:
        answer = case.get("answer", b"")
        if outcome == DELIVERED and not _says_success(answer):
            return failed("delivered without an acknowledgement", answer[:300])
        expected = _expected(case.get("status"))
        is_sure = lane.is_calm and case.get("end") != "reset"
        if expected and is_sure and outcome not in expected:
            return against_case("another outcome", f"{outcome} after status {case['status']}")
        return as_result(outcome)


class _Receiver:
    """Reads whole requests, and answers each with what the case of its lane says."""

    def __init__(self) -> None:
        self.acceptor = Acceptor(self._serve)
        self.lane: Lane | None = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"(?i)\r\ncontent-length: ([0-9]+)\r\n", head)
            await reader.readexactly(int(size[1]) if size else 0)
            case = self.lane.case if self.lane is not None else None
            await send(writer, HEALTHY if case is None else case.get("answer", b""), case or {})


def _answer(chance: Random, status: int) -> bytes:
    """Return a whole answer of this status, as odd as the standard lets it be."""
    body = values.data(chance, 50) * chance.choice((1, 1, 1, 2_000))
    fields = [f"Retry-After: {chance.choice(RETRY_AFTER)}"] if values.often(chance, 0.5) else []
    fields += ["Date: " + chance.choice(RETRY_AFTER)] if values.often(chance, 0.2) else []
    fields += ["Location: http://127.0.0.1:1/"] if 300 <= status < 400 else []
    fields += [
        chance.choice(("Connection: close", "Content-Encoding: gzip", "Set-Cookie: a=b", "X: " + "y" * 3_000))
    ]
    has_body = status >= 200 and status not in (204, 304)
    framed = body
    if not has_body:
        framed = b""
    elif values.often(chance, 0.3):
        fields.append("Transfer-Encoding: chunked")
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    else:
        fields.append(f"Content-Length: {len(body)}")
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" * chance.choice((0, 0, 1, 3))
    lines = "\r\n".join([f"HTTP/1.1 {status} {chance.choice(('OK', '', 'x' * 50))}", *fields, "", ""])
    return interim + lines.encode("utf-8", "surrogatepass") + framed


def _expected(status: int | None) -> set[str]:
    """Return how a publish may end after a whole answer of this status; nothing where anything may be."""
    if status is None or status < 200 or status > 599:
        return set()
    if status < 300:
        return {DELIVERED}
    return {"Gone", "Permanent"} if status in PERMANENT else {"Retryable"}


def _says_success(answer: Any) -> bool:
    """Tell whether an answer begins with a status of success, behind interim ones."""
    rest = bytes(answer)
    while (interim := _INTERIM.match(rest)) is not None:
        rest = rest[interim.end() :]
    return _SUCCESS.match(rest) is not None
