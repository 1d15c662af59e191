"""Which publisher a message goes to."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fencepost.errors import ConfigError
from fencepost.publishers.callable import Invocable, as_publisher
from fencepost.publishers.registry import publisher_for

REMEMBERED = 1_000
"""Event types whose route is remembered."""


@dataclass(frozen=True, slots=True)
class Route:
    """Messages whose event type matches a shell pattern, and where they go.

    Args:
        pattern: a shell pattern over the event type; ``*`` also crosses dots.
        publisher: a `Publisher`, a plain function, a coroutine function, or a destination's URL.
    """

    pattern: str
    publisher: Any


class Router:
    """The routes in their order: the first match wins."""

    def __init__(self, routes: Iterable[Route]) -> None:
        made: dict[Any, Invocable] = {}
        self._routes = [(_matcher(route.pattern), _invocable(route.publisher, made)) for route in routes]
        if not self._routes:
            raise ConfigError('routes: at least one is needed, such as Route("*", publisher)')
        self._found: dict[str, Invocable | None] = {}

    def find(self, event_type: str) -> Invocable | None:
        """Return the publisher for an event type, or None where nothing matches."""
        try:
            return self._found[event_type]
        except KeyError:
            return self._look_up(event_type)

    def _look_up(self, event_type: str) -> Invocable | None:
        found = next((publisher for matches, publisher in self._routes if matches.fullmatch(event_type)), None)
        if len(self._found) < REMEMBERED:
            self._found[event_type] = found
        return found

    @property
    def publishers(self) -> list[Invocable]:
        """Each publisher once, in the order of the routes."""
        return list({id(publisher): publisher for _, publisher in self._routes}.values())


def _matcher(pattern: str) -> re.Pattern[str]:
    if not pattern:
        raise ConfigError('routes: a pattern must not be empty; say "order.*" or "*"')
    return re.compile(fnmatch.translate(pattern))


def _invocable(publisher: Any, made: dict[Any, Invocable]) -> Invocable:
    """Make each publisher once, however many routes lead to it: it is opened and closed once."""
    key = publisher if isinstance(publisher, str) else id(publisher)
    if key not in made:
        made[key] = as_publisher(publisher_for(publisher) if isinstance(publisher, str) else publisher)
    return made[key]
