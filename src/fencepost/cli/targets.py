"""From the configured routes and destinations to what a dispatcher takes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fencepost.cli.settings import InvalidSettings
from fencepost.cli.settings.addresses import PYTHON_TARGET
from fencepost.cli.settings.routing import shown_match
from fencepost.config import Settings
from fencepost.core.error_text import describe
from fencepost.errors import ConfigError
from fencepost.publishers.callable import as_publisher
from fencepost.publishers.registry import publisher_for
from fencepost.runtime.routes import Route


@dataclass(frozen=True, slots=True)
class Targets:
    """Where messages go, as a dispatcher takes it: by route, and by the destination whose queue they are in."""

    routes: list[Route]
    destinations: dict[str, Any]


def targets_of(settings: Settings) -> Targets:
    """Return the routes and the destinations; each publisher was made once for a try, nothing is connected yet.

    Raises:
        ConfigError: there are none, a publisher cannot be made, or a route leads to an unknown destination.
    """
    if not settings.routes and not settings.destinations:
        raise ConfigError(
            "routes: nothing says where messages go: pass --to URL, --route PATTERN=URL or --publisher "
            "MODULE:OBJECT, or write [routes] into fencepost.toml"
        )
    if problems := [*_unknown_destinations(settings), *_unusable_targets(settings)]:
        raise InvalidSettings(problems)
    return Targets(
        [
            Route(
                route.event_type,
                publisher=_publisher(route.to) if isinstance(route.to, str) else None,
                to=None if isinstance(route.to, str) else route.to,
                queue=route.queue,
                aggregate_type=route.aggregate_type,
            )
            for route in settings.routes
        ],
        {name: _publisher(target) for name, target in settings.destinations},
    )


def _unknown_destinations(settings: Settings) -> Iterator[str]:
    known = {name for name, _ in settings.destinations}
    there_are = f"there are {', '.join(sorted(known))}" if known else "there are none"
    for route in settings.routes:
        names = () if isinstance(route.to, str) else route.to
        for name in names:
            if name not in known:
                yield (
                    f"routes ({settings.source('routes')}): {shown_match(route)!r} leads to {name!r}, which is no "
                    f"destination: {there_are} (destinations: {settings.source('destinations')})"
                )


def _unusable_targets(settings: Settings) -> Iterator[str]:
    named = [("destinations", name, target) for name, target in settings.destinations]
    named += [("routes", shown_match(each), each.to) for each in settings.routes if isinstance(each.to, str)]
    tried = set()
    for setting, label, target in named:
        if target not in tried:
            tried.add(target)
            try:
                _try_out(target)
            except ConfigError as error:
                yield f"{setting} ({settings.source(setting)}): {label}: {error}"


def _try_out(target: str) -> None:
    found = _publisher(target)
    as_publisher(publisher_for(found) if isinstance(found, str) else found)


def _publisher(target: str) -> Any:
    if not target.startswith(PYTHON_TARGET):
        return target
    return imported(target.removeprefix(PYTHON_TARGET))


def imported(name: str, what: str = "publisher") -> Any:
    """Return the object ``module:object``; modules of the working directory are found as well.

    Args:
        what: what it is to be, for the error.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, path = name.partition(":")
    here = ""  # the working directory, whatever it is at the time of an import
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return functools.reduce(getattr, path.split("."), import_module(module))
    except Exception as error:  # whatever a user's module raises while it is imported
        raise ConfigError(f"{what} {name} cannot be loaded: {describe(error)}") from error
