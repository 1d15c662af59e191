"""Kinds of values: how each is read from text and from TOML, and shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fencepost.cli.settings.addresses import check_store, shown_store
from fencepost.cli.settings.durations import format_duration, parse_duration
from fencepost.cli.settings.routing import (
    DESTINATIONS_FORM,
    destinations_from_table,
    destinations_from_texts,
    routes_from_texts,
    routes_from_toml,
    show_destinations,
    show_routes,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one kind are read and shown.

    Args:
        metavar: what stands for the value in the help of a flag.
        from_text: reads a flag's or a variable's text; raises ValueError, which never repeats a secret.
        from_toml: reads a value of the file; raises ValueError likewise.
        show: writes a value for people, secrets masked.
        from_texts: reads a flag that may be given several times; None where it may not.
    """

    metavar: str
    from_text: Callable[[str], Any]
    from_toml: Callable[[object], Any]
    show: Callable[[Any], str] = str
    from_texts: Callable[[Sequence[str]], Any] | None = None


_TOML_NAMES: Mapping[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def _toml(expected: str, types: tuple[type, ...], convert: Callable[[Any], Any]) -> Callable[[object], Any]:
    """Return a reader of TOML values that takes the given types only; True is no number here."""

    def read(value: object) -> Any:
        if type(value) in types:
            return convert(value)
        raise ValueError(f"expected {expected}, not {_TOML_NAMES.get(type(value), type(value).__name__)}")

    return read


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise ValueError(f"expected a whole number, not {text!r}")
    return int(text)


def _yes_or_no(text: str) -> bool:
    word = text.strip().lower()
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"expected true or false, not {text!r}")


def _duration_or_none(text: str) -> timedelta | None:
    return None if text.strip() == "none" else parse_duration(text)


def _names(names: Iterable[object]) -> tuple[str, ...]:
    found = tuple(name for name in names if isinstance(name, str) and name)
    if not found or len(found) != len(list(names)):
        raise ValueError("expected names, at least one; leave it out for all of them")
    return found


def one_of(*choices: str) -> Kind:
    """Return the kind of a text that must be one of a few."""

    def choose(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected {' or '.join(choices)}, not {text!r}")
        return text

    return Kind("|".join(choices), choose, _toml("a text", (str,), choose))


_DURATION = 'a duration such as "10s" or a number of seconds'

TEXT = Kind("NAME", str, _toml("a text", (str,), str))
WHOLE = Kind(
    "NUMBER",
    _whole,
    _toml("a whole number", (int,), int),
    lambda value: "not set" if value is None else str(value),
)
YES_NO = Kind("", _yes_or_no, _toml("true or false", (bool,), bool), lambda value: str(value).lower())
DURATION = Kind(
    "DURATION",
    parse_duration,
    _toml(_DURATION, (str, int, float), lambda value: parse_duration(str(value))),
    format_duration,
)
DURATION_OR_NONE = Kind(
    "DURATION",
    _duration_or_none,
    _toml(_DURATION, (str, int, float), lambda value: _duration_or_none(str(value))),
    lambda value: "none" if value is None else format_duration(value),
)
NAMES = Kind(
    "NAME",
    lambda text: _names([name.strip() for name in text.split(",")]),
    _toml("a list of names", (list,), _names),
    lambda value: "all" if value is None else ", ".join(value),
    _names,
)
STORE = Kind("URL", check_store, _toml("a text", (str,), check_store), shown_store)
DESTINATIONS = Kind(
    "NAME=URL",
    lambda text: destinations_from_texts(text.split()),
    _toml(DESTINATIONS_FORM, (dict,), destinations_from_table),
    show_destinations,
    destinations_from_texts,
)
ROUTES = Kind(
    "PATTERN=URL|NAME,…",
    lambda text: routes_from_texts(text.split()),
    routes_from_toml,
    show_routes,
    routes_from_texts,
)
