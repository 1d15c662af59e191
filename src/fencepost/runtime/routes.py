"""Which publisher a message goes to, or which destinations get a message of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from fencepost.core.queue import checked_name
from fencepost.core.records import Claimed
from fencepost.core.routing import REMEMBERED, Kind, Match, checked_destinations, first_match
from fencepost.errors import ConfigError
from fencepost.publishers.callable import Invocable, as_publisher
from fencepost.publishers.registry import publisher_for


@dataclass(frozen=True, slots=True)
class Route:
    """Messages that match, and where they go.

    Args:
        pattern: a shell pattern over the event type; ``*`` also crosses dots.
        publisher: publishes them as they stand in their queue: a `Publisher`, a plain function, a coroutine
            function, or a destination's URL.
        to: instead the name of a destination, or of several: each gets a message of its own in its own queue.
        queue, aggregate_type: further patterns that must match.

    Raises:
        ConfigError: neither or both of ``publisher`` and ``to``.
    """

    pattern: str
    publisher: Any = None
    to: Sequence[str] | str | None = None
    queue: str = "*"
    aggregate_type: str = "*"

    def __post_init__(self) -> None:
        if (self.publisher is None) == (self.to is None):
            raise ConfigError(
                f"routes: {self.pattern!r} needs either a publisher or the destinations that it leads to"
            )


class Foreign(Enum):
    """The queue of a message is a destination that this worker does not know."""

    QUEUE = "a destination of others"


FOREIGN: Final = Foreign.QUEUE

Target = Invocable | tuple[str, ...] | Literal[Foreign.QUEUE] | None
"""A publisher; names of destinations; a destination of others; nowhere."""


class Router:
    """The destinations, and the routes in their order: the first match wins.

    Whatever stands in the queue of a destination goes there, by no route.

    Args:
        routes: for everything else.
        destinations: publishers, or URLs, by the names of their queues.

    Raises:
        ConfigError: none at all, a name that no queue can have, or a route to a destination that is not there.
    """

    def __init__(self, routes: Iterable[Route], destinations: Mapping[str, Any] | None = None) -> None:
        made: dict[Any, Invocable] = {}
        self._destinations = {
            checked_name(name): _invocable(publisher, made) for name, publisher in (destinations or {}).items()
        }
        given = list(routes)
        matches = [
            Match(event_type=each.pattern, queue=each.queue, aggregate_type=each.aggregate_type) for each in given
        ]
        self._routes = [
            (match.compiled(), self._target(route, made)) for match, route in zip(matches, given, strict=True)
        ]
        if not self._routes and not self._destinations:
            raise ConfigError('routes: at least one is needed, such as Route("*", publisher)')
        self._looks_at_aggregates = any(match.aggregate_type != "*" for match in matches)
        self._found: dict[Kind, Target] = {}

    def find(self, queue: str, claimed: Claimed) -> Target:
        """Return what is to be done with a message of this queue; None where nothing matches."""
        publisher = self._destinations.get(queue)
        if publisher is not None:
            return publisher
        if claimed.routed:
            return FOREIGN
        message = claimed.message
        kind = (message.event_type, queue, (message.aggregate_type or "") if self._looks_at_aggregates else "")
        try:
            return self._found[kind]
        except KeyError:
            return self._look_up(kind)

    def is_destination(self, queue: str) -> bool:
        return queue in self._destinations

    def takes_batches(self, queue: str) -> bool:
        """Tell whether all that is in a queue goes to publishers that take batches."""
        publisher = self._destinations.get(queue)
        publishers = [target for _, target in self._routes] if publisher is None else [publisher]
        return all(isinstance(each, Invocable) and each.call_batch is not None for each in publishers)

    def _look_up(self, kind: Kind) -> Target:
        found = first_match(self._routes, kind)
        if len(self._found) < REMEMBERED:
            self._found[kind] = found
        return found

    def _target(self, route: Route, made: dict[Any, Invocable]) -> Invocable | tuple[str, ...]:
        if route.to is None:
            return _invocable(route.publisher, made)
        names = checked_destinations(route.to)
        for name in names:
            if name not in self._destinations:
                known = ", ".join(sorted(self._destinations)) or "none"
                raise ConfigError(
                    f"routes: {route.pattern!r} leads to {name!r}, which is no destination; there are: {known}"
                )
        return names

    @property
    def publishers(self) -> list[Invocable]:
        """Each publisher once: those of the destinations, then in the order of the routes."""
        routed = [target for _, target in self._routes if isinstance(target, Invocable)]
        return list({id(publisher): publisher for publisher in [*self._destinations.values(), *routed]}.values())


def _invocable(publisher: Any, made: dict[Any, Invocable]) -> Invocable:
    """Make each publisher once, however many routes lead to it: it is opened and closed once."""
    key = publisher if isinstance(publisher, str) else id(publisher)
    if key not in made:
        made[key] = as_publisher(publisher_for(publisher) if isinstance(publisher, str) else publisher)
    return made[key]
