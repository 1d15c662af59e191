"""The JSON format of CloudEvents 1.0, read without touching the payload: ``data`` comes out byte for byte.

The official SDK parses the payload and writes it anew; a long number or a repeated key would come out as
something else than what was enqueued, and its digest with it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from fencepost.errors import InvalidMessage

_DEFAULT_TYPE = "application/json"
_JSON_TYPE = re.compile(r"[^/;\s]+/([^/;\s]+\+)?json\s*(;.*)?\Z", re.IGNORECASE | re.DOTALL)
_BLANKS = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Event:
    """A CloudEvent: its attributes as text, and its payload."""

    attributes: Mapping[str, str]
    content_type: str
    body: bytes


def read_document(document: bytes) -> Event:
    """Read one event.

    Raises:
        InvalidMessage: it is not JSON in UTF-8, not an object, or a member of it is there twice or cannot be read.
    """
    try:
        text = document.decode("utf-8")
        members = dict(_once(_members(text)))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidMessage):
            raise
        raise InvalidMessage(f"the CloudEvent cannot be read: {type(error).__name__}: {error}") from None
    attributes = {
        name: value if isinstance(value, str) else raw
        for name, (value, raw) in members.items()
        if name not in ("data", "data_base64") and value is not None
    }
    content_type = attributes.get("datacontenttype", _DEFAULT_TYPE)
    return Event(attributes, content_type, _body(members, content_type))


def _body(members: Mapping[str, tuple[Any, str]], content_type: str) -> bytes:
    if "data" in members and "data_base64" in members:
        raise InvalidMessage("the CloudEvent has two payloads: data and data_base64")
    if "data_base64" in members:
        value, _ = members["data_base64"]
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise InvalidMessage("data_base64 of the CloudEvent is not base64") from None
    if "data" not in members:
        return b""
    value, raw = members["data"]
    # Spec, JSON format, section 3.1: of a type that is not JSON, a string is the payload itself.
    is_text = isinstance(value, str) and not _JSON_TYPE.match(content_type)
    try:
        return (value if is_text else raw).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidMessage("data of the CloudEvent holds a lone surrogate, which is not text") from None


def _once(members: Iterator[tuple[str, tuple[Any, str]]]) -> Iterator[tuple[str, tuple[Any, str]]]:
    seen: set[str] = set()
    for name, value in members:
        if name in seen:
            raise InvalidMessage(f"the CloudEvent has two members {name[:60]!r}")
        seen.add(name)
        yield name, value


def _members(text: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield the members of a JSON object, each with its value and the text of its value.

    Raises:
        ValueError: it is none.
    """
    at = _expect(text, 0, "{")
    if _peek(text, at) != "}":
        while True:
            name, at = _DECODER.raw_decode(text, _expect(text, at, '"') - 1)
            start = _blanks(text, _expect(text, at, ":"))
            value, at = _DECODER.raw_decode(text, start)
            yield name, (value, text[start:at])
            if _peek(text, at) != ",":
                break
            at = _expect(text, at, ",")
    at = _expect(text, at, "}")
    if _blanks(text, at) != len(text):
        raise ValueError(f"more than one JSON value: it goes on at character {at}")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers are only looked past: as text they cannot overflow.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def _blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return at if match is None else match.end()


def _peek(text: str, at: int) -> str:
    at = _blanks(text, at)
    return text[at : at + 1]


def _expect(text: str, at: int, wanted: str) -> int:
    at = _blanks(text, at)
    if text[at : at + 1] != wanted:
        raise ValueError(f"{wanted!r} expected at character {at}")
    return at + 1
