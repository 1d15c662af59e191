"""Routes and destinations as they are written, in the file and as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from urllib.parse import quote

from fencepost.cli.settings.addresses import PYTHON_TARGET, check_target, shown_target
from fencepost.config import ConfiguredRoute, Destinations, Routes
from fencepost.core.draft import MAX_QUEUE_BYTES
from fencepost.core.queue import checked_name
from fencepost.core.routing import MAX_DESTINATIONS, Match
from fencepost.errors import ConfigError
from fencepost.publishers.address import masked

DESTINATIONS_FORM = "a table of NAME = URL, or of NAME = { url = URL, … }"
ROUTES_FORM = "a table of PATTERN = URL or names of destinations, or tables [[routes]]"

_MATCHES = tuple(each.name for each in fields(Match))
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*")


# --- destinations ----------------------------------------------------------------------------------------


def destinations_from_table(table: Mapping[str, object]) -> Destinations:
    """Read ``[destinations]``.

    Raises:
        ValueError: what is wrong with it; no value of an option is shown.
    """
    return tuple((_name(name), _address(name, value)) for name, value in table.items())


def destinations_from_texts(texts: Sequence[str]) -> Destinations:
    """Read ``NAME=URL`` of each text.

    Raises:
        ValueError: as above, or a name that is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        given, separator, target = text.partition("=")
        if not separator:
            raise ValueError("expected NAME=URL, such as hook=https://example.com/hook")
        name = _name(given.strip())
        if name in found:
            raise ValueError(f"destination {name!r} is given twice")
        found[name] = check_target(name, target.strip())
    return tuple(found.items())


def show_destinations(destinations: Destinations) -> str:
    """Return destinations for people, without their secrets."""
    return "  ".join(f"{name}={shown_target(target)}" for name, target in destinations) or "none"


def _name(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError("expected the name of a destination as text")
    try:
        return checked_name(text)
    except ConfigError:
        # Its own text would repeat what may be a URL at the wrong place.
        raise ValueError(
            f"{masked(text)!r} is no name of a destination: that is the name of a queue, of letters, digits "
            f"and _ . : -, at most {MAX_QUEUE_BYTES}"
        ) from None


def _address(name: str, value: object) -> str:
    if not isinstance(value, Mapping):
        return check_target(name, value)
    options = dict(value)
    target = check_target(name, options.pop("url", None))
    if not options:
        return target
    if target.startswith(PYTHON_TARGET):
        raise ValueError(f"destination {name!r} is an object in a module, which takes no options")
    query = "&".join(f"{quote(option)}={quote(text, safe='')}" for option, text in _options(name, options))
    joint = "?" if "?" not in target else "" if target[-1] in "?&" else "&"
    return f"{target}{joint}{query}"


def _options(name: str, table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the options of a destination's URL; TOML makes tables of names with dots, such as ``rdkafka.…``."""
    for key, value in table.items():
        option = f"{prefix}{key}"
        if not _OPTION.fullmatch(option):
            raise ValueError(f"destination {name!r}: {option!r} is no name of an option")
        if isinstance(value, Mapping):
            yield from _options(name, value, f"{option}.")
        elif isinstance(value, bool):
            yield option, "on" if value else "off"
        elif isinstance(value, str | int | float):
            yield option, str(value)
        else:
            raise ValueError(f"destination {name!r}: {option} must be a text, a number, true or false")


# --- routes ----------------------------------------------------------------------------------------------


def routes_from_toml(value: object) -> Routes:
    """Read ``[routes]`` or ``[[routes]]``.

    Raises:
        ValueError: what is wrong with it; nothing secret is shown.
    """
    if isinstance(value, Mapping):
        return _checked(ConfiguredRoute(pattern, _target(pattern, to)) for pattern, to in value.items())
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        return _checked(_route(number, table) for number, table in enumerate(value, start=1))
    raise ValueError(f"expected {ROUTES_FORM}")


def routes_from_texts(texts: Sequence[str]) -> Routes:
    """Read ``PATTERN=URL`` or ``PATTERN=NAME,NAME`` of each text.

    Raises:
        ValueError: what is wrong with it; nothing secret is shown.
    """
    pairs = [text.partition("=") for text in texts]
    if not all(separator for _, separator, _ in pairs):
        raise ValueError(
            "expected PATTERN=URL or PATTERN=NAME,NAME, such as 'order.*=https://example.com/x' or 'mail.*=hook'"
        )
    return _checked(
        ConfiguredRoute(pattern.strip(), _target_of_text(pattern.strip(), text.strip()))
        for pattern, _, text in pairs
    )


def show_routes(routes: Routes) -> str:
    """Return routes for people, without their secrets."""
    return "  ".join(f"{shown_match(route)}={_shown_to(route)}" for route in routes) or "none"


def shown_match(route: ConfiguredRoute) -> str:
    """Return what a route looks at, such as ``order.*`` or ``order.*[queue=mail]``."""
    others = [f"{name}={getattr(route, name)}" for name in _MATCHES[1:] if getattr(route, name) != "*"]
    return route.event_type + (f"[{' '.join(others)}]" if others else "")


def _shown_to(route: ConfiguredRoute) -> str:
    return shown_target(route.to) if isinstance(route.to, str) else ",".join(route.to)


def _route(number: int, table: Mapping[str, object]) -> ConfiguredRoute:
    unknown = sorted(table.keys() - {*_MATCHES, "to"})
    if unknown:
        raise ValueError(f"route {number} has an unknown {unknown[0]!r}: there are {', '.join(_MATCHES)} and to")
    if "to" not in table:
        raise ValueError(f"route {number} leads nowhere: say to = a URL, or the names of destinations in a list")
    patterns = {name: table.get(name, "*") for name in _MATCHES}
    for name, pattern in patterns.items():
        if not isinstance(pattern, str):
            raise ValueError(f"route {number}: expected a pattern as text for {name}")
    texts = {name: str(pattern) for name, pattern in patterns.items()}
    return ConfiguredRoute(**texts, to=_target(texts["event_type"], table["to"]))


def _target(pattern: str, to: object) -> str | tuple[str, ...]:
    if isinstance(to, list):
        return _names(pattern, to)
    if not isinstance(to, str):
        raise ValueError(f"expected a URL or the names of destinations for {pattern!r}")
    return check_target(pattern, to) if ":" in to else _names(pattern, [to])


def _target_of_text(pattern: str, text: str) -> str | tuple[str, ...]:
    if ":" in text:
        return check_target(pattern, text)
    return _names(pattern, [name.strip() for name in text.split(",")])


def _names(pattern: str, names: Sequence[object]) -> tuple[str, ...]:
    found = tuple(_name(name) for name in names)
    if not 1 <= len(found) <= MAX_DESTINATIONS:
        raise ValueError(f"{pattern!r} leads to 1 to {MAX_DESTINATIONS} destinations, not to {len(found)}")
    if len(set(found)) < len(found):
        raise ValueError(f"{pattern!r} leads to one destination twice: {', '.join(found)}")
    return found


def _checked(routes: Iterable[ConfiguredRoute]) -> Routes:
    found = tuple(routes)
    seen = set()
    for route in found:
        if not all(getattr(route, name).strip() for name in _MATCHES):
            raise ValueError('a pattern must not be empty: say "order.*" or "*"')
        match = shown_match(route)
        if match in seen:
            raise ValueError(f"{match!r} stands twice: the first match wins, so the second one never does")
        seen.add(match)
    return found
