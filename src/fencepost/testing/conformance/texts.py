"""What a publisher must carry unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FREE_TEXTS: Mapping[str, str] = {
    "empty": "",
    "long": "x" * 800,
    "emoji": "\N{ROCKET}" * 100,
    "line ends": "a\r\nFencepost-Token: 999\r\n\r\nGET / HTTP/1.1\r\n",
    "controls": "tab\there, bell\a, escape\x1b[31m, delete\x7f",
    "dot": ".",
    "dots": "..a..b..",
    "wildcards": "*.>",
    "blanks": "  two before and one after ",
    "percent": "100%25 %zz %",
    "server subject": "$JS.API.STREAM.DELETE.EVENTS",
    "path": "../../etc/passwd?x=1#y",
    "quotes": "\"'\\{}[]<>,;:=",
    "no latin": "заказ.создан 注文",
}
"""None of these is refused at enqueue, so a publisher meets all of them."""

PAYLOADS: Sequence[tuple[bytes, str]] = (
    (b'{ "b":1,"a" : 1.00, "a": 1e400, "big": 123456789012345678901234567890 }', "application/json"),
    ('{"text": "заказ \N{ROCKET} \\u0000"}'.encode(), "application/json"),
    (b"null", "application/json"),
    (b"", "application/octet-stream"),
    (bytes(range(256)), "application/x-protobuf"),
    (b"NaN", "text/plain; charset=utf-8"),
)

USER_HEADERS: Mapping[str, str] = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "baggage": "userId=alice,serverNode=DF%2028",
    "tenant": "acme",
    "X-Odd_Name.1": 'value: with, separators; and "quotes"',
}

BAD_HEADERS: Mapping[str, str] = {"not a\r\nname": "x"}
