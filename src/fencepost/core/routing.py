"""Which destinations an event goes to. A destination is a queue: its own order, retries, pause and breaker."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fencepost.core.queue import checked_name
from fencepost.errors import ConfigError

T = TypeVar("T")

MAX_DESTINATIONS = 100
"""Destinations of one event; each costs a row."""

REMEMBERED = 1_000
"""Kinds of events whose way is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Shell patterns that an event must match, all of them; ``*`` also crosses dots.

    Args:
        event_type: over the event type.
        queue: over the queue that the event was enqueued in.
        aggregate_type: over the aggregate's type; an event without one has the empty text.

    Raises:
        ConfigError: an empty pattern.
    """

    event_type: str = "*"
    queue: str = "*"
    aggregate_type: str = "*"

    def __post_init__(self) -> None:
        for name in ("event_type", "queue", "aggregate_type"):
            pattern = getattr(self, name)
            if not isinstance(pattern, str) or not pattern:
                raise ConfigError(f'routes: the pattern of {name} must not be empty; say "order.*" or "*"')

    def compiled(self) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
        """Return the patterns as regular expressions, in the order of `Kind`."""
        kinds = (self.event_type, self.queue, self.aggregate_type)
        one, other, third = (re.compile(fnmatch.translate(pattern)) for pattern in kinds)
        return one, other, third


Kind = tuple[str, str, str]
"""Event type, queue and aggregate type of an event: what routes look at."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Events that match go to these destinations.

    Args:
        event_type: a shell pattern; see `Match` for this one and the others.
        to: the names of the destinations, or of the only one.

    Raises:
        ConfigError: no destination, too many, one twice, or a name that no queue can have.
    """

    event_type: str
    to: Sequence[str] | str
    queue: str = "*"
    aggregate_type: str = "*"

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", checked_destinations(self.to))
        self.match  # noqa: B018 - checks the patterns

    @property
    def match(self) -> Match:
        return Match(event_type=self.event_type, queue=self.queue, aggregate_type=self.aggregate_type)


class Routing:
    """The rules in their order: the first that matches wins.

    A producer that knows them (``Outbox(routing=…)``) writes a row for each destination at once. Otherwise the
    dispatcher makes these rows when it first claims the event.

    Args:
        rules: at least one.

    Raises:
        ConfigError: no rule.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = [(rule.match.compiled(), tuple(rule.to)) for rule in rules]
        if not self._rules:
            raise ConfigError('routing: at least one rule is needed, such as Rule("order.*", to=["kafka"])')
        self.names = frozenset(name for _, to in self._rules for name in to)
        """Every destination that a rule leads to."""
        self._found: dict[Kind, tuple[str, ...]] = {}

    def destinations(self, event_type: str, queue: str, aggregate_type: str | None) -> tuple[str, ...]:
        """Return where an event goes: nowhere if no rule matches, or if it stands in a destination already."""
        kind = (event_type, queue, aggregate_type or "")
        found = self._found.get(kind)
        if found is None:
            found = () if queue in self.names else first_match(self._rules, kind) or ()
            if len(self._found) < REMEMBERED:
                self._found[kind] = found
        return found


def first_match(rules: Iterable[tuple[Sequence[re.Pattern[str]], T]], kind: Kind) -> T | None:
    """Return what the first rule leads to whose patterns all match."""
    for patterns, target in rules:
        if all(pattern.fullmatch(text) for pattern, text in zip(patterns, kind, strict=True)):
            return target
    return None


def checked_destinations(names: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of destinations.

    Raises:
        ConfigError: none, too many, one twice, or a name that no queue can have.
    """
    found = (names,) if isinstance(names, str) else tuple(names)
    if not 1 <= len(found) <= MAX_DESTINATIONS:
        raise ConfigError(f"routes: a rule leads to 1 to {MAX_DESTINATIONS} destinations, not {len(found)}")
    if len(set(found)) < len(found):
        raise ConfigError(f"routes: a rule leads to one destination twice: {', '.join(found)}")
    return tuple(checked_name(name) for name in found)
